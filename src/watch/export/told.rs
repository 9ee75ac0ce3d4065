//! How far somebody has been told of a run, in a file of its folder: what was told is not told again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files;

/// Bytes of such a file.
const MOST: u64 = 16 << 20;

/// `own`: what the exporter has to know beside it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Told<T> {
    /// Somebody else has been told nothing.
    to: String,
    /// Of `metrics.jsonl`, from its first one.
    pub lines: u64,
    #[serde(flatten)]
    pub own: T,
    #[serde(skip)]
    at: PathBuf,
}

impl<T: Serialize + DeserializeOwned + Default> Told<T> {
    /// What `name` in `folder` says of `to`.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub fn load(folder: &Path, name: &str, to: &str) -> Result<Told<T>> {
        let at = folder.join(name);
        let nothing = || Told { to: to.into(), lines: 0, own: T::default(), at: at.clone() };
        let text = match files::read_at_most(&at, MOST) {
            Ok(text) => text,
            Err(missing) if missing.kind() == ErrorKind::NotFound => return Ok(nothing()),
            Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", at.display())),
        };
        let told: Told<T> = serde_json::from_slice(&text).with_context(|| {
            let at = at.display();
            format!("`{at}` does not say how far the run has been told\n  hint: without that file all of it is told anew")
        })?;
        Ok(if told.to == to { Told { at, ..told } } else { nothing() })
    }

    /// # Errors
    /// It cannot be written.
    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_vec(self).context("what was told is not JSON")?;
        let (folder, name) = (self.at.parent(), self.at.file_name().and_then(|name| name.to_str()));
        let (folder, name) = folder.zip(name).context("a file has a folder and a name")?;
        files::write(folder, name, &text).with_context(|| format!("cannot write `{}`", self.at.display()))
    }

    /// The file.
    pub fn at(&self) -> &Path {
        &self.at
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Own {
        run: Option<String>,
    }

    #[test]
    fn what_was_told_is_known_again_and_of_somebody_else_nothing_is() {
        let folder = tempfile::tempdir().unwrap();
        let load = |to: &str| Told::<Own>::load(folder.path(), "told.json", to).unwrap();
        let mut told = load("http://a");
        assert_eq!(told.lines, 0);
        (told.lines, told.own.run) = (7, Some("r".into()));
        told.save().unwrap();
        assert_eq!(load("http://a"), told);
        assert_eq!((load("http://b").lines, load("http://b").own), (0, Own::default()));
    }

    #[test]
    fn another_file_in_its_place_is_refused_with_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("told.json"), "[]").unwrap();
        let refused = Told::<Own>::load(folder.path(), "told.json", "x").unwrap_err().to_string();
        assert!(refused.contains("hint: without that file"), "{refused}");
    }
}
