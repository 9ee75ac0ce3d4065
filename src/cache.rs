//! The user's cache folder: built-in data, compiled plug-ins, tools that build them. All of it can be made again.

use std::path::PathBuf;

/// The folder `pstrain` of the cache, which need not exist yet. None: neither XDG_CACHE_HOME nor HOME is set.
pub fn folder() -> Option<PathBuf> {
    // <https://specifications.freedesktop.org/basedir-spec/latest/>: a relative path does not count.
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("pstrain"))
}
