//! Where checkpoints are kept, and how one comes to be there: a folder, or a bucket of an object store.
//!
//! All that is above knows [`Store`] only. A store is opened by whoever uses it, for as long as that takes: the launcher of forked
//! ranks must have neither threads nor sockets left, and what opens one may wait, which the thread of the calls must not.
//!
//! A checkpoint is there when its manifest is, in a place of its name (CP-1). Under that name a folder gets it by a rename; in a
//! bucket, where nothing can be renamed, the manifest is written last.

mod folder;
mod s3;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::human::hex;
use crate::job::Place;
use crate::profile::beat;

pub const MANIFEST: &str = "manifest.json";
/// In front of the number of steps in a checkpoint's name.
const PREFIX: &str = "step-";
/// What is read of a file at once.
const CHUNK: u64 = 8 << 20;

pub trait Store: Debug {
    fn place(&self) -> &Place;

    /// The steps of which there are checkpoints here, whole or not. Where there is nothing yet: none.
    ///
    /// # Errors
    /// The place cannot be read.
    fn steps(&self) -> Result<Vec<u64>>;

    /// The files here, with their bytes.
    ///
    /// # Errors
    /// The place cannot be read.
    fn files(&self) -> Result<BTreeMap<String, u64>>;

    /// Is this very place a checkpoint?
    ///
    /// # Errors
    /// The place cannot be read.
    fn is_checkpoint(&self) -> Result<bool>;

    /// When it became one, if that is known.
    fn saved(&self) -> Option<SystemTime>;

    /// # Errors
    /// The file is not there, or cannot be read.
    fn open(&self, file: &str) -> Result<Box<dyn Source>>;

    /// A file of so many bytes, in a place that was begun.
    ///
    /// # Errors
    /// It cannot be made.
    fn create(&self, file: &str, bytes: u64) -> Result<Box<dyn Sink>>;

    /// Makes room for a checkpoint: the place to which its files go until it is there. What others have left unfinished is removed.
    ///
    /// # Errors
    /// The place cannot be written to.
    fn begin(&self, step: u64) -> Result<Place>;

    /// All files but the manifest are where [`Store::begin`] said: now the checkpoint is there, in place of an earlier one.
    ///
    /// # Errors
    /// The place cannot be written to.
    fn appear(&self, begun: &Place, step: u64, manifest: &str) -> Result<Place>;

    /// What was begun will not be finished.
    fn abandon(&self, begun: &Place, step: u64);

    /// Removes a checkpoint: at once it is none any more.
    ///
    /// # Errors
    /// The place cannot be written to.
    fn remove(&self, step: u64) -> Result<()>;

    /// Removes what a process has left that ended while it wrote or removed one.
    ///
    /// # Errors
    /// The place cannot be written to.
    fn remove_unfinished(&self) -> Result<()>;

    /// What to look at where ranks do not see what others have written.
    fn shared_by(&self) -> &'static str;
}

/// A file that is read.
pub trait Source {
    fn bytes(&self) -> u64;

    /// Fills `buffer` with what stands from byte `at` on.
    ///
    /// # Errors
    /// The file ends before; it cannot be read.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;
}

/// A file that is written.
pub trait Sink: Write {
    /// All is written: it is there when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// # Errors
/// There is no access to it, which is found without asking the store.
pub fn open(place: &Place) -> Result<Box<dyn Store>> {
    Ok(match place {
        Place::Folder(path) => Box::new(folder::Folder::new(path)),
        Place::Bucket(part) => Box::new(s3::Bucket::open(part)?),
    })
}

/// A checkpoint's, in the place where a run's are.
pub fn name(step: u64) -> String {
    format!("{PREFIX}{step:010}")
}

fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// The largest file that is read at once. The manifest of a model of a million tensors has less.
const MOST_TEXT: u64 = 256 << 20;

/// The whole of a small file.
///
/// # Errors
/// It is not there, cannot be read, is no text, or is too large for one.
pub fn text(store: &dyn Store, file: &str) -> Result<String> {
    let cannot = || format!("cannot read `{}`", store.place().join(file));
    let source = store.open(file)?;
    ensure!(
        source.bytes() <= MOST_TEXT,
        "`{}` has {} bytes; {MOST_TEXT} are possible",
        store.place().join(file),
        source.bytes()
    );
    let mut bytes = vec![0; usize::try_from(source.bytes()).with_context(cannot)?];
    source.read_at(&mut bytes, 0).with_context(cannot)?;
    String::from_utf8(bytes).with_context(cannot)
}

/// The size of a file, and its SHA-256.
///
/// # Errors
/// It is not there, or cannot be read.
pub fn sum(store: &dyn Store, file: &str) -> Result<(u64, String)> {
    let source = store.open(file)?;
    let (mut hash, bytes) = (Sha256::new(), source.bytes());
    let mut chunk = vec![0; CHUNK.min(bytes) as usize];
    for at in (0..bytes).step_by(CHUNK as usize) {
        let chunk = &mut chunk[..CHUNK.min(bytes - at) as usize];
        let read = source.read_at(chunk, at);
        read.with_context(|| format!("cannot read `{}`", store.place().join(file)))?;
        hash.update(chunk);
        beat();
    }
    Ok((bytes, hex(hash.finalize())))
}

/// A file from its beginning on.
pub struct InOrder<'a> {
    source: &'a dyn Source,
    at: u64,
}

impl<'a> InOrder<'a> {
    pub fn new(source: &'a dyn Source) -> InOrder<'a> {
        InOrder { source, at: 0 }
    }
}

impl Read for InOrder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.source.bytes() - self.at;
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.source.read_at(&mut buffer[..length], self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

/// A file that is written and counted, with what its manifest has to say of it.
pub struct CountedFile {
    sink: Box<dyn Sink>,
    hash: Sha256,
    bytes: u64,
}

impl CountedFile {
    pub fn new(sink: Box<dyn Sink>) -> CountedFile {
        CountedFile { sink, hash: Sha256::new(), bytes: 0 }
    }

    /// The size of the file, and its SHA-256.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Result<(u64, String)> {
        self.sink.finish()?;
        Ok((self.bytes, hex(self.hash.finalize())))
    }
}

impl Write for CountedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.sink.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
