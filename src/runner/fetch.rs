//! Fetches public data sets from their mirrors: `pstrain data fetch mnist`.
//!
//! - D-1 A file appears under its name only when its unpacked bytes have the right SHA-256.
//! - D-2 Whatever a mirror answers, it costs bounded time, disk and memory; the next mirror is asked then.
//! - D-3 A file that is there and right is not fetched again.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::progress::{Board, Update};
use crate::files;
use crate::human::hex;

/// Where `pstrain data fetch mnist` puts the files by default.
pub const MNIST_FOLDER: &str = "data/mnist";

/// The mirrors that PyTorch and TensorFlow use; the original site often refuses.
const MNIST_MIRRORS: [&str; 2] =
    ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"];

pub const MNIST: [RemoteFile; 4] = [
    RemoteFile {
        name: "train-images-idx3-ubyte.gz",
        unpacked_bytes: 47_040_016,
        sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    },
    RemoteFile {
        name: "train-labels-idx1-ubyte.gz",
        unpacked_bytes: 60_008,
        sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    },
    RemoteFile {
        name: "t10k-images-idx3-ubyte.gz",
        unpacked_bytes: 7_840_016,
        sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    },
    RemoteFile {
        name: "t10k-labels-idx1-ubyte.gz",
        unpacked_bytes: 10_008,
        sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
];

/// A gzip file that mirrors have.
#[derive(Clone, Copy, Debug)]
pub struct RemoteFile {
    pub name: &'static str,
    pub unpacked_bytes: u64,
    /// Hash of the unpacked bytes, in hex: mirrors may have packed them differently.
    pub sha256: &'static str,
}

impl RemoteFile {
    /// Bytes that are fetched at most: packing never adds more.
    fn packed_limit(&self) -> u64 {
        self.unpacked_bytes + self.unpacked_bytes / 1000 + 4096
    }
}

/// A data set, and how to get it.
pub struct Fetcher {
    pub agent: ureq::Agent,
    /// URLs that end with a slash, best first.
    pub mirrors: Vec<String>,
    pub files: Vec<RemoteFile>,
}

/// How many files were fetched, and how many were there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    pub fetched: usize,
    pub kept: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("cannot write into `{}`: {cause}", .folder.display())]
    Folder { folder: PathBuf, cause: io::Error },
    #[error("{0}")]
    NoMirror(NoMirror),
}

/// Every mirror failed for a file.
#[derive(Debug)]
pub struct NoMirror {
    pub file: &'static str,
    pub folder: PathBuf,
    /// What each mirror answered.
    pub tries: Vec<(String, Failure)>,
    wanted: Vec<&'static str>,
}

/// Why a mirror's answer is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Request(ureq::Error),
    #[error("broke off after {0} bytes: {1}")]
    Body(u64, io::Error),
    #[error("more than {0} bytes, which the file does not have")]
    TooLong(u64),
    #[error("{0}")]
    Wrong(Wrong),
}

/// Why a file is not the one that was wanted.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    #[error("cannot be unpacked: {0}")]
    NotGzip(io::Error),
    #[error("unpacks to other data: SHA-256 {found} instead of {wanted}")]
    Hash { found: String, wanted: &'static str },
}

impl Fetcher {
    /// MNIST from its public mirrors. Proxies are those of the environment (`https_proxy`, `no_proxy`).
    pub fn mnist() -> Fetcher {
        let patience = Some(Duration::from_secs(20));
        let config = ureq::Agent::config_builder()
            .timeout_resolve(patience)
            .timeout_connect(patience)
            .timeout_recv_response(patience)
            .timeout_per_read(patience)
            .timeout_global(Some(Duration::from_secs(15 * 60)))
            .user_agent(concat!("pstrain/", env!("CARGO_PKG_VERSION")))
            .build();
        Fetcher {
            agent: config.new_agent(),
            mirrors: MNIST_MIRRORS.map(Into::into).into(),
            files: MNIST.into(),
        }
    }

    /// The names of the files: one line each on a board.
    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.name.into()).collect()
    }

    /// Gets what is not in `folder` yet. `board` has a line for each file.
    ///
    /// # Errors
    /// When the folder cannot be written, or no mirror gives a file; what was fetched until then stays.
    pub fn fetch(&self, folder: &Path, board: &Board) -> Result<Fetched, FetchError> {
        let in_folder = |cause| FetchError::Folder { folder: folder.into(), cause };
        files::make_folders(folder).map_err(in_folder)?;
        let mut count = Fetched::default();
        let mut good_mirror = 0;
        for (nth, file) in self.files.iter().enumerate() {
            let progress = |update: Update| board.update(nth, &update);
            if File::open(folder.join(file.name)).is_ok_and(|there| check(there, file).is_ok()) {
                progress(Update::Done("there already".into()));
                count.kept += 1;
                continue;
            }
            let temporary = self.ask_mirrors(file, folder, &mut good_mirror, &progress)?;
            temporary.persist(folder.join(file.name)).map_err(|refused| in_folder(refused.error))?;
            progress(Update::Done("fetched and checked".into()));
            count.fetched += 1;
        }
        Ok(count)
    }

    /// Asks the mirrors in turn, first the one that gave the last file (D-2).
    fn ask_mirrors(
        &self,
        file: &RemoteFile,
        folder: &Path,
        good: &mut usize,
        progress: &dyn Fn(Update),
    ) -> Result<NamedTempFile, FetchError> {
        let mut tries = Vec::new();
        for offset in 0..self.mirrors.len() {
            let nth = (*good + offset) % self.mirrors.len();
            let url = format!("{}{}", self.mirrors[nth], file.name);
            let in_folder = |cause| FetchError::Folder { folder: folder.into(), cause };
            let mode = fs::Permissions::from_mode(0o666);
            let temporary =
                tempfile::Builder::new().prefix(".").suffix(".part").permissions(mode).tempfile_in(folder);
            let mut temporary = temporary.map_err(in_folder)?;
            match self.download(&url, file, temporary.as_file_mut(), progress) {
                Ok(()) => {
                    *good = nth;
                    return Ok(temporary);
                }
                Err(Trouble::Disk(cause)) => return Err(in_folder(cause)),
                Err(Trouble::Mirror(failure)) => tries.push((url, failure)),
            }
        }
        let wanted = self.files.iter().map(|file| file.name).collect();
        Err(FetchError::NoMirror(NoMirror { file: file.name, folder: folder.into(), tries, wanted }))
    }

    fn download(
        &self,
        url: &str,
        file: &RemoteFile,
        to: &mut File,
        progress: &dyn Fn(Update),
    ) -> Result<(), Trouble> {
        let answer = self.agent.get(url).call().map_err(|error| Trouble::Mirror(Failure::Request(error)))?;
        let body = answer.into_body();
        let total = body.content_length();
        let limit = file.packed_limit();
        copy(body.into_reader(), to, limit, &|done| progress(Update::Fetching { done, total }))?;
        to.rewind().map_err(Trouble::Disk)?;
        check(to, file).map_err(|wrong| Trouble::Mirror(Failure::Wrong(wrong)))
    }
}

/// Whose fault it is: another mirror does not help against a full disk.
enum Trouble {
    Disk(io::Error),
    Mirror(Failure),
}

fn copy(mut from: impl Read, to: &mut File, limit: u64, progress: &dyn Fn(u64)) -> Result<(), Trouble> {
    let mut chunk = vec![0; 64 * 1024];
    let mut done = 0;
    loop {
        let length = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) => return Err(Trouble::Mirror(Failure::Body(done, cause))),
        };
        done += length as u64;
        if done > limit {
            return Err(Trouble::Mirror(Failure::TooLong(limit)));
        }
        to.write_all(&chunk[..length]).map_err(Trouble::Disk)?;
        progress(done);
    }
}

/// Unpacks `packed` and compares. Stops one byte after the size that the file should have.
fn check(packed: impl Read, file: &RemoteFile) -> Result<(), Wrong> {
    let mut unpacked = GzDecoder::new(packed).take(file.unpacked_bytes + 1);
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match unpacked.read(&mut chunk).map_err(Wrong::NotGzip)? {
            0 => break,
            length => hash.update(&chunk[..length]),
        }
    }
    let found = hex(hash.finalize());
    if found == file.sha256 { Ok(()) } else { Err(Wrong::Hash { found, wanted: file.sha256 }) }
}

impl fmt::Display for NoMirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no mirror gave {}", self.file)?;
        for (url, failure) in &self.tries {
            write!(f, "\n  {url}: {failure}")?;
        }
        let (wanted, folder) = (self.wanted.join(", "), self.folder.display());
        write!(f, "\n  hint: behind a proxy, set https_proxy")?;
        write!(
            f,
            "\n  hint: without a network, put {wanted} into `{folder}` and run this again to check them,"
        )?;
        write!(f, "\n        or train on the built-in digits: `pstrain spawn --world-size 4`")
    }
}

#[cfg(test)]
mod tests;
