//! For those who write plug-ins: `pstrain plugin new` and `pstrain plugin build`.
//!
//! A new folder is complete: it has the SDK and the WIT package of this very program, an example that works, and a
//! job that trains with it. This file and its folder know files and other programs (cargo, Python), and nothing of
//! the host that runs plug-ins.

mod error;
mod python;
mod rust;
mod sources;

pub use error::AuthorError;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use crate::files;

/// The language of a plug-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lang {
    Rust,
    Python,
}

/// What a plug-in is, after the WIT package's worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Dataset,
    Loss,
    RawLoss,
    Metric,
}

/// What `pstrain plugin new` is asked for.
#[derive(Clone, Debug)]
pub struct NewPlugin {
    pub name: String,
    pub lang: Lang,
    pub kind: Kind,
    /// Where the folder `name` is made.
    pub parent: PathBuf,
}

/// What `pstrain plugin build` made.
#[derive(Clone, Debug)]
pub struct Built {
    pub path: PathBuf,
    pub bytes: u64,
    /// For people: `rustc 1.95.0, wasm32-wasip1 by rustup`.
    pub toolchain: String,
    pub seconds: f64,
}

/// Makes the folder of a plug-in that can be built, tested and trained with at once. Returns its files.
///
/// # Errors
/// If the name is not valid, or the folder is there already.
pub fn new(plugin: &NewPlugin) -> Result<Vec<PathBuf>, AuthorError> {
    check_name(&plugin.name)?;
    let folder = plugin.parent.join(&plugin.name);
    if folder.exists() {
        return Err(AuthorError::Exists { path: folder });
    }
    let mut written = Vec::new();
    for (path, content) in sources::of(plugin) {
        let path = folder.join(path);
        let parent = path.parent().expect("a file in `folder` has a parent");
        files::make_folders(parent).map_err(AuthorError::io("make the folder", parent))?;
        std::fs::write(&path, content).map_err(AuthorError::io("write", &path))?;
        written.push(path);
    }
    Ok(written)
}

/// Compiles the plug-in in `dir` with whichever toolchain is there, to `out` or to `NAME.wasm` in `dir`. What the
/// compiler prints goes to stderr.
///
/// # Errors
/// If `dir` is not a plug-in's folder, the toolchain is missing (tells what to install), or it does not compile.
pub fn build(dir: &Path, out: Option<&Path>) -> Result<Built, AuthorError> {
    let begun = Instant::now();
    let project = python::Project::read(dir)?;
    let (name, toolchain, wasm) = if dir.join("Cargo.toml").is_file() {
        rust::build(dir)?
    } else if let Some(project) = project {
        project.build(dir)?
    } else {
        return Err(AuthorError::NotAPlugin { dir: dir.to_owned() });
    };
    let path = out.map_or_else(|| dir.join(format!("{name}.wasm")), Path::to_owned);
    let bytes = place(wasm.path(), &path)?;
    Ok(Built { path, bytes, toolchain, seconds: begun.elapsed().as_secs_f64() })
}

/// A compiled file: one that the toolchain keeps, or one that is gone when this is.
enum Wasm {
    Kept(PathBuf),
    Temporary(tempfile::TempPath),
}

impl Wasm {
    fn path(&self) -> &Path {
        match self {
            Wasm::Kept(path) => path,
            Wasm::Temporary(path) => path,
        }
    }
}

/// Whole or not at all: a job may be reading the file that is replaced.
fn place(from: &Path, to: &Path) -> Result<u64, AuthorError> {
    let folder = to.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    files::make_folders(folder).map_err(AuthorError::io("make the folder", folder))?;
    let mut whole = tempfile::NamedTempFile::new_in(folder).map_err(AuthorError::io("write into", folder))?;
    let mut from_file = std::fs::File::open(from).map_err(AuthorError::io("read", from))?;
    let bytes = std::io::copy(&mut from_file, &mut whole).map_err(AuthorError::io("write", to))?;
    readable(whole.as_file()).map_err(AuthorError::io("write", to))?;
    whole.persist(to).map_err(|error| AuthorError::io("write", to)(error.error))?;
    Ok(bytes)
}

/// Temporary files are their owner's alone; this one is for everyone.
fn readable(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

fn check_name(name: &str) -> Result<(), AuthorError> {
    // As cargo and Python want it, so that it can be a crate and a module.
    const TAKEN: [&str; 10] = [
        "alloc",
        "core",
        "csv",
        "proc_macro",
        "pstrain",
        "pstrain-plugin",
        "pstrain_plugin",
        "serde",
        "std",
        "test",
    ];
    const LONGEST: usize = 64;
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    let why = if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        "it does not begin with a small letter"
    } else if !name.chars().all(letters) {
        "it has characters other than small letters, digits, `-` and `_`"
    } else if name.len() > LONGEST {
        "it is longer than 64 characters"
    } else if TAKEN.contains(&name) || sources::RUST_WORDS.contains(&name) {
        "it has a meaning of its own"
    } else {
        return Ok(());
    };
    Err(AuthorError::Name { name: name.to_owned(), why })
}

impl Kind {
    /// The file of the templates.
    fn file(self) -> &'static str {
        match self {
            Kind::Dataset => "dataset",
            Kind::Loss => "loss",
            Kind::RawLoss => "raw_loss",
            Kind::Metric => "metric",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Dataset => "dataset",
            Kind::Loss => "loss",
            Kind::RawLoss => "raw-loss",
            Kind::Metric => "metric",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dataset" => Ok(Kind::Dataset),
            "loss" => Ok(Kind::Loss),
            "raw-loss" | "raw_loss" => Ok(Kind::RawLoss),
            "metric" => Ok(Kind::Metric),
            _ => Err(format!("`{text}` is not a kind of plug-in; use dataset, loss, raw-loss or metric")),
        }
    }
}

#[cfg(test)]
mod tests;
