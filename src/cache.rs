//! The user's cache folder: built-in data, compiled plug-ins, tools that build them, the library that calls libtorch. All of
//! it can be made again, and some of it is run: so it is the user's alone, or not used.

use std::path::PathBuf;

use ownership::{Untrusted, private_folder};

/// Why there is no cache folder.
#[derive(Debug, thiserror::Error)]
pub enum NoCache {
    #[error("neither XDG_CACHE_HOME nor HOME names a folder")]
    NoPlace,
    #[error("{0}")]
    Untrusted(#[from] Untrusted),
}

impl NoCache {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            NoCache::NoPlace => "set one of them to a folder that you can write to".into(),
            NoCache::Untrusted(untrusted) => {
                format!("{}; XDG_CACHE_HOME names another cache folder", untrusted.hint())
            }
        }
    }
}

/// The folder `pstrain` of the cache, which is made where it is missing.
///
/// # Errors
/// Nobody says where; it cannot be made; somebody else could write there.
pub fn folder() -> Result<PathBuf, NoCache> {
    // <https://specifications.freedesktop.org/basedir-spec/latest/>: a relative path does not count.
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache =
        set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).ok_or(NoCache::NoPlace)?;
    Ok(private_folder(&cache.join("pstrain"))?)
}
