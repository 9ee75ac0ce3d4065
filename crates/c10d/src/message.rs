//! What libtorch says, cut to what a person reads.

use tch::TchError;

/// What libtorch says of a failed operation, in its first line: a C++ stack or a list of kernels follows. What `tch`
/// says itself comes whole.
pub fn torch_message(error: &TchError) -> String {
    match error {
        TchError::Torch(text) => text.trim_start().lines().next().unwrap_or_default().trim_end().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtorchs_stack_is_left_out_and_a_hint_of_ours_is_not() {
        let stack = "size mismatch [3]\nException raised from check at f.cpp:7\nframe #0: c10::Error";
        assert_eq!(torch_message(&TchError::Torch(stack.into())), "size mismatch [3]");
        let ours = "one value\n  hint: take two";
        assert_eq!(torch_message(&TchError::Shape(ours.into())), format!("invalid shape: {ours}"));
    }
}
