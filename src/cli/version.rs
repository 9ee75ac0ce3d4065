//! What `--version` tells.

use std::sync::LazyLock;

use crate::runner::libtorch;

/// The version, the commit that it was built from, and those of the two engines.
pub static LONG: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("BUILT_FROM_COMMIT"));
    let (libtorch, wasmtime) = (libtorch::VERSION, env!("BUILT_WITH_WASMTIME"));
    format!("{version}\ncommit    {commit}\nlibtorch  {libtorch}\nwasmtime  {wasmtime}")
});
