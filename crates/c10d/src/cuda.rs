//! Libtorch's CUDA half. The binary does not link it, so that it runs on machines without CUDA.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::shim;

const LIBRARY: &str = "libtorch_cuda.so";

/// Why there is no CUDA in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{LIBRARY} was not opened: {why}")]
pub struct NoCuda {
    pub why: String,
}

/// Opens `libtorch_cuda.so` for the whole process; a second call gives the first one's answer.
///
/// Call it before any CUDA query: libtorch remembers at the first query that there is no CUDA. Takes about 0.15 s where
/// the library is there. That it opens does not mean that there is a GPU: ask `tch::Cuda` for those.
///
/// # Errors
/// The library or one it needs is not installed; the reason is the loader's.
pub fn load() -> Result<(), NoCuda> {
    static ANSWER: OnceLock<Result<(), NoCuda>> = OnceLock::new();
    ANSWER.get_or_init(|| open().map_err(|why| NoCuda { why })).clone()
}

fn open() -> Result<(), String> {
    let library = library();
    // What has no folder is the loader's choice.
    if library.is_absolute() {
        ownership::check_code(&library).map_err(|untrusted| format!("{untrusted}; {}", untrusted.hint()))?;
    }
    shim::open_library(&library).map(drop)
}

/// The one beside the `libtorch_cpu.so` in use, because both halves must be of one build; where there is none, the
/// loader's own choice.
fn library() -> PathBuf {
    // SAFETY: the shim returns null or a string made for us, taken once.
    let cpu_half = unsafe { shim::take_text(shim::shim_libtorch_path()) };
    cpu_half
        .and_then(|path| PathBuf::from(path).canonicalize().ok())
        .map(|path| path.with_file_name(LIBRARY))
        .filter(|path| path.exists())
        .unwrap_or_else(|| LIBRARY.into())
}
