//! Words for a shell, and what may stand where a scheduler reads it. Pure.

use crate::cli::exit::Failure;
use crate::cli::going_on::quoted;

/// A command line that a shell reads as these words.
pub fn line<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    words.into_iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// A value of an option that goes into a line of a script or of a manifest.
///
/// # Errors
/// It is empty, or has blanks or characters that no scheduler means.
pub fn plain<'v>(option: &str, value: &'v str) -> Result<&'v str, Failure> {
    let fits = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c.is_control());
    match fits {
        true => Ok(value),
        false => Err(Failure::usage(format_args!(
            "{option}: {value:?} is empty or has blanks\n  hint: use letters, digits and signs"
        ))),
    }
}

/// A name as Kubernetes wants it in the name of a host, RFC 1123: at most `most` lower-case letters, digits and `-`.
///
/// # Errors
/// It is none.
pub fn label<'v>(option: &str, value: &'v str, most: usize) -> Result<&'v str, Failure> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = (1..=most).contains(&value.len())
        && value.chars().all(inner)
        && !value.starts_with('-')
        && !value.ends_with('-');
    match fits {
        true => Ok(value),
        false => Err(Failure::usage(format_args!(
            "{option}: {value:?} is not a name of Kubernetes\n  hint: use at most {most} lower-case letters, digits and `-`, \
             such as {:?}",
            as_label(value, most)
        ))),
    }
}

/// The nearest name of that kind.
pub fn as_label(name: &str, most: usize) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let letters: String = name.chars().map(letter).take(most).collect();
    match letters.trim_matches('-') {
        "" => "job".into(),
        some => some.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
        result.expect_err("refused").message.expect("a message")
    }

    #[test]
    fn a_value_with_a_line_of_its_own_does_not_get_into_a_script() {
        assert_eq!(plain("--partition", "gpu").expect("plain"), "gpu");
        insta::assert_snapshot!(refused(plain("--partition", "gpu\n#SBATCH --uid=0")), @r##"
        error: --partition: "gpu\n#SBATCH --uid=0" is empty or has blanks
          hint: use letters, digits and signs
        "##);
    }

    #[test]
    fn names_become_labels() {
        let labels = ["digits_ps", "DDP + RPC", "__", "a-b"].map(|name| as_label(name, 8));
        assert_eq!(labels, ["digits-p", "ddp---rp", "job", "a-b"]);
        insta::assert_snapshot!(refused(label("--name", "My_Job", 48)), @r#"
        error: --name: "My_Job" is not a name of Kubernetes
          hint: use at most 48 lower-case letters, digits and `-`, such as "my-job"
        "#);
        assert!(label("--name", "-a", 48).is_err());
    }
}
