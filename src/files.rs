//! Files that appear whole or not at all, and that nobody can read who could not read the folder that they are in.
//!
//! - `WF-1` A file that is being written has no name: a process that is killed leaves nothing behind. (Where the file system
//!   has no nameless files it has another name until it is whole.)
//! - `WF-2` A new file or folder follows the umask, and is never open to more than the folder that it is in.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use tempfile::{TempDir, TempPath};

/// A file that is being written.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    folder: PathBuf,
    name: String,
    /// Until it has its own, where it cannot go without.
    other_name: Option<TempPath>,
}

impl WholeFile {
    /// `name` in `folder`, which it gets by [`WholeFile::finish`].
    ///
    /// # Errors
    /// The system's: the folder cannot be written to.
    pub fn create(folder: &Path, name: &str) -> io::Result<WholeFile> {
        let mode = 0o666 & width(folder)?;
        let of = |file, other_name| WholeFile { file, folder: folder.into(), name: name.into(), other_name };
        if let Some(file) = nameless(folder, mode)? {
            return Ok(of(file, None));
        }
        let mode = Permissions::from_mode(mode);
        let suffix = format!(".{name}");
        let temporary =
            tempfile::Builder::new().prefix(".").suffix(&suffix).permissions(mode).tempfile_in(folder)?;
        let (file, other_name) = temporary.into_parts();
        Ok(of(file, Some(other_name)))
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, in place of one that has it.
    ///
    /// # Errors
    /// The system's, as when a disk is full.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        let target = self.folder.join(&self.name);
        if let Some(other_name) = self.other_name {
            return Ok(other_name.persist(target)?);
        }
        match link(&self.file, &target) {
            Err(taken) if taken.kind() == ErrorKind::AlreadyExists => {
                let suffix = format!(".{}", self.name);
                let named = tempfile::Builder::new()
                    .prefix(".")
                    .suffix(&suffix)
                    .make_in(&self.folder, |path| link(&self.file, path))?;
                Ok(named.into_temp_path().persist(target)?)
            }
            linked => linked,
        }
    }

    /// Gives the file its name, if nobody has it.
    ///
    /// # Errors
    /// `AlreadyExists`; the system's.
    pub fn claim(self) -> io::Result<()> {
        self.file.sync_all()?;
        let target = self.folder.join(&self.name);
        match self.other_name {
            Some(other_name) => Ok(other_name.persist_noclobber(target)?),
            None => link(&self.file, &target),
        }
    }
}

/// Writes `name` in `folder`, whole or not at all, in place of what is there.
///
/// # Errors
/// The system's.
pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let whole = WholeFile::create(folder, name)?;
    whole.file().write_all(bytes)?;
    whole.finish()
}

/// Makes a folder that is not there yet (WF-2).
///
/// # Errors
/// `AlreadyExists`; the system's.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(width(above(path))?).create(path)
}

/// Makes a folder and those above it, as far as they are missing (WF-2).
///
/// # Errors
/// The system's.
pub fn make_folders(path: &Path) -> io::Result<()> {
    match make_folder(path) {
        Err(missing) if missing.kind() == ErrorKind::NotFound => {
            make_folders(above(path))?;
            make_folder(path)
        }
        Err(there) if there.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// A folder for this user alone in one that others may share, gone when it is dropped.
///
/// # Errors
/// The system's.
pub fn temporary_folder(within: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("pstrain-").permissions(Permissions::from_mode(0o700)).tempdir_in(within)
}

/// Opens a file to read it, where somebody else may have put another thing in its place: a pipe would keep whoever reads it waiting.
///
/// # Errors
/// It is not a regular file; the system's.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Are these its first bytes?
///
/// # Errors
/// Those of [`open_regular`]; the system's.
pub fn begins_with<const N: usize>(path: &Path, magic: [u8; N]) -> io::Result<bool> {
    let mut first = [0; N];
    match open_regular(path)?.read_exact(&mut first) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        read => Ok(read.is_ok() && first == magic),
    }
}

/// All of such a file, however long it is.
///
/// # Errors
/// Those of [`open_regular`]; the system's.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All of such a file, which has `most` bytes at most.
///
/// # Errors
/// It has more; those of [`open_regular`].
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes),
        false => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes"))),
    }
}

/// The same as text.
///
/// # Errors
/// It is no text; those of [`read_at_most`].
pub fn text_at_most(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_at_most(path, most)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))
}

/// Opens a file of our own for appending, made if it is missing. A link that stands in its place is not followed.
///
/// # Errors
/// The system's.
pub fn append_to(path: &Path) -> io::Result<File> {
    let mode = 0o666 & width(above(path))?;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(mode).custom_flags(OFlag::O_NOFOLLOW.bits());
    options.open(path)
}

/// Makes a file that is not there yet (WF-2), which has its name while it is written: in a folder that is still another's.
///
/// # Errors
/// `AlreadyExists`; the system's.
pub fn create_new(path: &Path) -> io::Result<File> {
    let mode = 0o666 & width(above(path))?;
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

fn above(path: &Path) -> &Path {
    path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."))
}

/// To whom a folder is open; what is in it may be to no more.
fn width(folder: &Path) -> io::Result<u32> {
    // Its owner's own rights do not count: whoever is writing needs them.
    Ok(fs::metadata(folder)?.mode() & 0o077 | 0o700)
}

/// A file without a name. None: this file system has none.
fn nameless(folder: &Path, mode: u32) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode).custom_flags(OFlag::O_TMPFILE.bits());
    match options.open(folder) {
        // Without /proc it could never get a name.
        Ok(file) if own_path(&file).exists() => Ok(Some(file)),
        Ok(_) => Ok(None),
        // What file systems and kernels that do not know them say (open(2)).
        Err(unknown)
            if unknown.kind() == ErrorKind::Unsupported || unknown.kind() == ErrorKind::IsADirectory =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn own_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(AT_FDCWD, &own_path(file), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    /// WF-1
    #[test]
    fn what_is_not_finished_leaves_nothing_and_what_is_takes_the_old_ones_place() {
        let root = tempfile::tempdir().unwrap();
        let half = WholeFile::create(root.path(), "model").unwrap();
        half.file().write_all(b"half").unwrap();
        // A process that is killed now has written nothing with a name, but where the file system wants one.
        assert_eq!(names(root.path()).len(), usize::from(half.other_name.is_some()));
        drop(half);
        assert_eq!(names(root.path()), [""; 0]);
        write(root.path(), "model", b"first").unwrap();
        write(root.path(), "model", b"second").unwrap();
        assert_eq!(names(root.path()), ["model"]);
        assert_eq!(fs::read(root.path().join("model")).unwrap(), b"second");
    }

    #[test]
    fn a_name_is_claimed_once() {
        let root = tempfile::tempdir().unwrap();
        let claim = || WholeFile::create(root.path(), "job").unwrap().claim();
        claim().unwrap();
        assert_eq!(claim().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(root.path()), ["job"]);
    }

    /// WF-2
    #[test]
    fn nothing_is_open_to_more_than_the_folder_it_is_in() {
        let root = tempfile::tempdir().unwrap();
        for (above, folder, file) in [(0o700, 0o700, 0o600), (0o750, 0o750, 0o640), (0o711, 0o711, 0o600)] {
            let own = root.path().join(format!("{above:o}"));
            fs::create_dir(&own).unwrap();
            fs::set_permissions(&own, Permissions::from_mode(above)).unwrap();
            make_folders(&own.join("runs/one")).unwrap();
            let run = own.join("runs/one");
            write(&run, "model", b"").unwrap();
            append_to(&run.join("metrics")).unwrap();
            create_new(&run.join("shard")).unwrap();
            assert_eq!([mode(&own.join("runs")), mode(&run)], [folder; 2]);
            assert_eq!(["model", "metrics", "shard"].map(|name| mode(&run.join(name))), [file; 3]);
        }
    }

    #[test]
    fn a_temporary_folder_is_for_its_user_alone() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(mode(temporary_folder(root.path()).unwrap().path()), 0o700);
    }

    #[test]
    fn a_link_in_the_place_of_our_file_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("elsewhere", root.path().join("metrics")).unwrap();
        assert!(append_to(&root.path().join("metrics")).is_err());
        assert_eq!(names(root.path()), ["metrics"]);
    }
}
