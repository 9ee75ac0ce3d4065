//! Alone in its file: opening a library is for the whole process.

#[test]
fn cuda_opens_or_says_why_not_and_says_the_same_again() {
    let first = c10d::cuda::load();
    if let Err(no_cuda) = &first {
        let text = no_cuda.to_string();
        assert!(text.starts_with("libtorch_cuda.so was not opened: "), "{text}");
        assert!(text.contains(".so"), "no library is named: {text}");
        assert!(!tch::Cuda::is_available());
    }
    assert_eq!(c10d::cuda::load(), first);
}
