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

    fn unfinished(&self, step: u64) -> PathBuf {
        self.path.join(format!("{UNFINISHED}{}", name(step)))
    }

    /// Without its name first: what is half removed is none.
    fn take_away(&self, step: u64) -> io::Result<()> {
        let removed = self.path.join(format!("{UNFINISHED}old-{}", name(step)));
        fs::rename(self.path.join(name(step)), &removed)?;
        fs::remove_dir_all(removed)
    }

    fn clear(&self) -> io::Result<()> {
        let mut unfinished = self.names()?.into_iter().filter(|name| name.starts_with(UNFINISHED));
        unfinished.try_for_each(|name| fs::remove_dir_all(self.path.join(name)))
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
        let folder = self.unfinished(step);
        let made = files::make_folders(&self.path)
            .and_then(|()| self.clear())
            .and_then(|()| files::make_folder(&folder));
        made.with_context(|| self.cannot("make a folder for a checkpoint in"))?;
        Ok(Place::Folder(folder))
    }

    fn appear(&self, step: u64, manifest: &str) -> Result<Place> {
        let (unfinished, folder) = (self.unfinished(step), self.path.join(name(step)));
        let written = files::write(&unfinished, MANIFEST, manifest.as_bytes());
        written.with_context(|| format!("cannot write `{}`", unfinished.join(MANIFEST).display()))?;
        // A run that has gone on from an earlier one comes here again.
        if folder.exists() {
            let removed = self.take_away(step);
            removed.with_context(|| format!("cannot replace `{}`", folder.display()))?;
        }
        sync(&unfinished)?;
        fs::rename(&unfinished, &folder)
            .with_context(|| format!("cannot give the checkpoint its name `{}`", folder.display()))?;
        sync(&self.path)?;
        Ok(Place::Folder(folder))
    }

    fn abandon(&self, step: u64) {
        // What cannot be removed now is removed when the next one is begun.
        let _ = fs::remove_dir_all(self.unfinished(step));
    }

    fn remove(&self, step: u64) -> Result<()> {
        self.take_away(step).with_context(|| self.cannot("remove old checkpoints in"))
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
