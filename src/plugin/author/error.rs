//! What can go wrong between an idea and a plug-in.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wasm_toolchain::NoToolchain;

/// Each message says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum AuthorError {
    #[error("`{name}` cannot be a plug-in's name: {why}\n  hint: use a name like `my-data`")]
    Name { name: String, why: &'static str },

    #[error("`{}` is there already\n  hint: choose another name, or remove it first", path.display())]
    Exists { path: PathBuf },

    #[error(
        "`{}` is not a plug-in's folder: it has neither a Cargo.toml nor a pyproject.toml with `tool.pstrain`\n  \
         hint: `pstrain plugin new NAME --lang rust` makes one", dir.display()
    )]
    NotAPlugin { dir: PathBuf },

    /// A file of the folder that the build needs is wrong.
    #[error("`{}`: {what}\n  hint: {hint}", file.display())]
    Project { file: PathBuf, what: String, hint: String },

    #[error("{what}\n  hint: {hint}")]
    Toolchain { what: String, hint: String },

    #[error("{program} did not compile the plug-in ({status}); its messages are above")]
    Compile { program: &'static str, status: std::process::ExitStatus },

    #[error("{doing} took longer than {limit:?}\n  hint: {hint}")]
    TooLong { doing: String, limit: Duration, hint: &'static str },

    #[error("cannot {doing} `{}`: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl AuthorError {
    /// For `map_err`.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AuthorError {
        move |source| AuthorError::Io { doing, path: path.to_owned(), source }
    }

    /// For a program that could not be started.
    pub(super) fn not_started(program: &'static str, error: &io::Error) -> AuthorError {
        AuthorError::Toolchain {
            what: format!("cannot start `{program}`: {error}"),
            hint: match program {
                "cargo" => "install Rust 1.95 or newer: https://rustup.rs".to_owned(),
                program => format!("install `{program}` and see that it is on the PATH"),
            },
        }
    }
}

impl From<NoToolchain> for AuthorError {
    fn from(NoToolchain { what, hint, packages: _ }: NoToolchain) -> AuthorError {
        AuthorError::Toolchain { what, hint }
    }
}
