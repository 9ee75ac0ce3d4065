//! What a run leaves at its end, in another folder where the run folder does not take it: nobody trains a model for a day to
//! lose it to a full disk.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use super::run_folder::RunFolder;
use crate::{cache, files};

/// Where the last files of a run go.
pub struct Spool<'a> {
    folder: &'a RunFolder,
    /// Where to look for room, in this order.
    elsewhere: Vec<PathBuf>,
    /// The one that was made.
    made: Option<RunFolder>,
    /// What was written elsewhere, and why.
    pub warnings: Vec<String>,
}

impl<'a> Spool<'a> {
    pub fn new(folder: &'a RunFolder) -> Spool<'a> {
        let elsewhere = [Some(std::env::temp_dir()), Some("/var/tmp".into()), cache::folder().ok()];
        Spool {
            folder,
            elsewhere: elsewhere.into_iter().flatten().collect(),
            made: None,
            warnings: Vec::new(),
        }
    }

    /// Writes a file of the run to the run folder, or else to a folder for this user alone where there is room. `write`
    /// gets the file and the path that it will have, and may be called several times.
    ///
    /// # Errors
    /// It could be written nowhere: why not, for each place.
    pub fn write(&mut self, name: &str, mut write: impl FnMut(&File, &Path) -> Result<()>) -> Result<()> {
        let mut tried = match self.folder.write_with(name, &mut write) {
            Ok(_) => return Ok(()),
            Err(error) => vec![format!("{error:#}")],
        };
        if let Some(made) = &self.made {
            match made.write_with(name, &mut write) {
                Ok(path) => {
                    self.warn(&tried[0], &path);
                    return Ok(());
                }
                Err(error) => tried.push(format!("{error:#}")),
            }
        }
        for place in &self.elsewhere {
            let made = files::temporary_folder(place);
            let written = made.map_err(anyhow::Error::from).and_then(|made| {
                RunFolder::at(made.path()).write_with(name, &mut write)?;
                Ok(made)
            });
            match written {
                Ok(made) => {
                    let made = RunFolder::at(&made.keep());
                    let path = made.path().join(name);
                    self.made = Some(made);
                    self.warn(&tried[0], &path);
                    return Ok(());
                }
                Err(error) => tried.push(format!("`{}`: {error:#}", place.display())),
            }
        }
        Err(anyhow!("{}\n  hint: free some space; nowhere was any left for `{name}`", tried.join("\n")))
    }

    fn warn(&mut self, why: &str, path: &Path) {
        let warning = format!("{why}; it is in `{}`", path.display());
        tracing::error!("{warning}");
        self.warnings.push(warning);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::{fs, io};

    use super::*;
    use crate::runner::testing::names;

    fn spool<'a>(folder: &'a RunFolder, elsewhere: &[&Path]) -> Spool<'a> {
        Spool { elsewhere: elsewhere.iter().map(|&path| path.into()).collect(), ..Spool::new(folder) }
    }

    #[test]
    fn what_a_deleted_run_folder_does_not_take_is_in_a_folder_of_our_own() {
        let root = tempfile::tempdir().unwrap();
        let (folder, gone) = (RunFolder::at(&root.path().join("run")), root.path().join("gone"));
        let mut spool = spool(&folder, &[&gone, root.path()]);
        for name in ["model", "summary"] {
            spool.write(name, |mut file, _| Ok(file.write_all(name.as_bytes())?)).unwrap();
        }
        let made = spool.made.as_ref().unwrap().path().to_owned();
        assert_eq!(names(&made), ["model", "summary"]);
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
        let [model, _] = &spool.warnings[..] else { panic!("{:?}", spool.warnings) };
        assert!(model.ends_with(&format!("it is in `{}`", made.join("model").display())), "{model}");
        assert!(model.contains("No such file or directory"), "{model}");
    }

    #[test]
    fn what_fits_nowhere_leaves_nothing_and_every_place_is_named() {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(root.path());
        let mut spool = spool(&folder, &[root.path()]);
        let error =
            spool.write("model", |_, _| Err(io::Error::from(io::ErrorKind::StorageFull).into())).unwrap_err();
        assert_eq!(error.to_string().matches("no storage space").count(), 2, "{error}");
        assert_eq!(names(root.path()), [""; 0]);
    }
}
