//! CUDA's half of libtorch, in a process of its own: opening a library is for all of a process.

pub const TESTS: &[(&str, fn())] = tests![cuda_opens_or_says_why_not_and_says_the_same_again,];

pub fn open() {
    let first = c10d::cuda::load();
    if let Err(no_cuda) = &first {
        let text = no_cuda.to_string();
        assert!(text.starts_with("libtorch_cuda.so was not opened: "), "{text}");
        assert!(text.contains(".so"), "no library is named: {text}");
        assert!(!tch::Cuda::is_available());
    }
    assert_eq!(c10d::cuda::load(), first);
}

fn cuda_opens_or_says_why_not_and_says_the_same_again() {
    let output = crate::process("open cuda").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
