//! Checkpoints in a folder. While one is written its own has another name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};

use super::{MANIFEST, Sink, Source, Store, name, step_of};
use crate::files;
use crate::job::Place;

/// In front of the name of a folder that is being written.
const UNFINISHED: &str = ".writing-";
/// The buffer of a file that is written in small pieces.
const BUFFER_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    place: Place,
}

impl Folder {
    pub fn new(path: &Path) -> Folder {
        Folder { path: path.into(), place: Place::Folder(path.into()) }
    }

    /// A name that nobody else gives, of which `what` tells what it is for.
    fn unfinished(&self, what: &str) -> PathBuf {
        self.path.join(format!("{UNFINISHED}{what}-{:08x}", rand::random::<u32>()))
    }

    /// Without its name first: what is half removed is none. And who would give it a name meanwhile finds it no more, so that what
    /// has one has all of its files.
    fn take_away(&self, name: &str) -> io::Result<()> {
        let removed = self.unfinished("old");
        fs::rename(self.path.join(name), &removed)?;
        fs::remove_dir_all(removed)
    }

    fn clear(&self) -> io::Result<()> {
        let mut unfinished = self.names()?.into_iter().filter(|name| name.starts_with(UNFINISHED));
        unfinished.try_for_each(|name| match self.take_away(&name) {
            // It has got its name, or somebody else removes it.
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn cannot(&self, what: &str) -> String {
        format!("cannot {what} `{}`", self.path.display())
    }
}

impl Store for Folder {
    fn place(&self) -> &Place {
        &self.place
    }

    fn steps(&self) -> Result<Vec<u64>> {
        let names = self.names().with_context(|| self.cannot("read"))?;
        Ok(names.iter().filter_map(|name| step_of(name)).collect())
    }

    fn files(&self) -> Result<BTreeMap<String, u64>> {
        let names = self.names().with_context(|| self.cannot("read"))?;
        let sized = |name: String| Some((fs::metadata(self.path.join(&name)).ok()?.len(), name));
        Ok(names.into_iter().filter_map(sized).map(|(bytes, name)| (name, bytes)).collect())
    }

    fn is_checkpoint(&self) -> Result<bool> {
        Ok(self.path.join(MANIFEST).exists())
    }

    fn saved(&self) -> Option<SystemTime> {
        self.path.metadata().and_then(|data| data.modified()).ok()
    }

    fn open(&self, file: &str) -> Result<Box<dyn Source>> {
        let path = self.path.join(file);
        let cannot_read = || format!("cannot read `{}`", path.display());
        let file = files::open_regular(&path).with_context(cannot_read)?;
        let bytes = file.metadata().with_context(cannot_read)?.len();
        Ok(Box::new(OpenFile { bytes, file }))
    }

    fn create(&self, file: &str, _bytes: u64) -> Result<Box<dyn Sink>> {
        let path = self.path.join(file);
        let file = files::create_new(&path).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Box::new(NewFile { file: BufWriter::with_capacity(BUFFER_BYTES, file), path }))
    }

    fn begin(&self, step: u64) -> Result<Place> {
        let folder = self.unfinished(&name(step));
        let made = files::make_folders(&self.path)
            .and_then(|()| self.clear())
            .and_then(|()| files::make_folder(&folder));
        made.with_context(|| self.cannot("make a folder for a checkpoint in"))?;
        Ok(Place::Folder(folder))
    }

    fn appear(&self, begun: &Place, step: u64, manifest: &str) -> Result<Place> {
        let unfinished = begun.folder().context("it was not begun in a folder")?;
        let folder = self.path.join(name(step));
        let written = files::write(unfinished, MANIFEST, manifest.as_bytes());
        written.with_context(|| format!("cannot write `{}`", unfinished.join(MANIFEST).display()))?;
        // A run that has gone on from an earlier one comes here again.
        if folder.exists() {
            let removed = self.take_away(&name(step));
            removed.with_context(|| format!("cannot replace `{}`", folder.display()))?;
        }
        sync(unfinished)?;
        fs::rename(unfinished, &folder)
            .with_context(|| format!("cannot give the checkpoint its name `{}`", folder.display()))?;
        sync(&self.path)?;
        Ok(Place::Folder(folder))
    }

    fn abandon(&self, begun: &Place, _step: u64) {
        // What cannot be removed now is removed when the next one is begun.
        let _ = begun.folder().map(fs::remove_dir_all);
    }

    fn remove(&self, step: u64) -> Result<()> {
        self.take_away(&name(step)).with_context(|| self.cannot("remove old checkpoints in"))
    }

    fn remove_unfinished(&self) -> Result<()> {
        self.clear().with_context(|| self.cannot("remove what was left unfinished in"))
    }

    fn shared_by(&self) -> &'static str {
        "checkpoint.to has to be a folder that all machines share"
    }
}

fn sync(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot write `{}`", folder.display()))
}

struct OpenFile {
    file: File,
    bytes: u64,
}

impl Source for OpenFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }
}

struct NewFile {
    file: BufWriter<File>,
    path: PathBuf,
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Sink for NewFile {
    fn finish(mut self: Box<Self>) -> Result<()> {
        let written = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        written.with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use super::*;

    const FILES: [&str; 3] = ["one", "two", "three"];

    fn save(folder: &Folder, step: u64, written: impl FnOnce()) {
        let begun = folder.begin(step).unwrap();
        let within = Folder::new(begun.folder().unwrap());
        let files = FILES.iter().try_for_each(|file| within.create(file, 0).and_then(Sink::finish));
        written();
        if files.and_then(|()| folder.appear(&begun, step, "{}")).is_err() {
            folder.abandon(&begun, step);
        }
    }

    /// Another rank removes what is unfinished just when it is to get its name, as one does that saves what a lost rank has left.
    #[test]
    fn what_gets_its_name_while_others_remove_what_is_unfinished_has_all_of_its_files() {
        const RACES: u64 = 400;
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (Folder::new(folder.path()), Folder::new(folder.path()));
        let written = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                for race in 1..=RACES {
                    written.wait();
                    // Nothing tells of what happens in between: the moment is what varies.
                    thread::sleep(Duration::from_micros(race * 97 % 4000));
                    theirs.remove_unfinished().unwrap();
                }
            });
            for step in 1..=RACES {
                save(&ours, step, || {
                    written.wait();
                });
            }
        });
        save(&ours, RACES + 1, || {});
        let named = ours.steps().unwrap();
        println!("{} of {RACES} got their names", named.len() - 1);
        assert!(named.contains(&(RACES + 1)));
        for &step in &named {
            let files = Folder::new(&folder.path().join(name(step))).files().unwrap();
            assert_eq!(files.len(), FILES.len() + 1, "step {step}: {files:?}");
        }
    }
}
