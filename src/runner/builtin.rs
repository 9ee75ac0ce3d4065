//! The data inside the binary: handwritten digits (see `assets/digits/ATTRIBUTION.md`), so that there is something
//! to train on in an empty folder.
//!
//! - B-1 A file that is handed out has exactly the embedded bytes: each is compared before it is trusted. No others are beside
//!   them.
//! - B-2 Any number of processes may unpack at once: a file appears whole.

mod png;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use ownership::private_folder;

use crate::{cache, files};

/// As IDX files, and the name of their folder.
pub const DIGITS: &str = "digits";
/// As PNG files, a folder for each class.
pub const DIGIT_IMAGES: &str = "digit_images";

struct DataFile {
    /// Below the data set's folder.
    name: Cow<'static, str>,
    bytes: Cow<'static, [u8]>,
}

macro_rules! digits {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../assets/digits/", $name)).as_slice())
    };
}

const TRAIN: [(&str, &[u8]); 2] =
    [digits!("train-images-idx3-ubyte.gz"), digits!("train-labels-idx1-ubyte.gz")];
const TEST: [(&str, &[u8]); 2] = [digits!("t10k-images-idx3-ubyte.gz"), digits!("t10k-labels-idx1-ubyte.gz")];
const ATTRIBUTION: (&str, &[u8]) = digits!("ATTRIBUTION.md");

impl From<(&'static str, &'static [u8])> for DataFile {
    fn from((name, bytes): (&'static str, &'static [u8])) -> DataFile {
        DataFile { name: name.into(), bytes: bytes.into() }
    }
}

/// The files of the data set `name`, if there is one.
fn embedded(name: &str) -> io::Result<Option<Vec<DataFile>>> {
    let as_they_are = || TRAIN.into_iter().chain(TEST).map(DataFile::from);
    let images = || -> io::Result<Vec<DataFile>> {
        let mut all = png::images("train", TRAIN[0].1, TRAIN[1].1)?;
        all.extend(png::images("test", TEST[0].1, TEST[1].1)?);
        Ok(all.into_iter().map(|(name, bytes)| DataFile { name: name.into(), bytes: bytes.into() }).collect())
    };
    let mut all = match name {
        DIGITS => as_they_are().collect(),
        DIGIT_IMAGES => images()?,
        _ => return Ok(None),
    };
    all.push(ATTRIBUTION.into());
    Ok(Some(all))
}

/// The folder of the built-in data set `name`. What is there already and right is kept.
///
/// It is in the user's cache folder, or in a folder for temporary files where that cannot be written.
///
/// # Errors
/// When there is no such data set, or no folder can be written to.
pub fn unpack(name: &str) -> Result<PathBuf> {
    let Some(files) = embedded(name)? else {
        bail!(
            "there is no built-in data set `{name}`\n  hint: `{DIGITS}` is built in, and as PNG files `{DIGIT_IMAGES}`"
        );
    };
    Places::of_this_user().unpack(name, &files)
}

/// A folder with nothing in it, for data that are made up.
///
/// # Errors
/// When no folder can be made.
pub fn empty() -> Result<PathBuf> {
    Places::of_this_user().unpack("empty", &[])
}

/// Where data may be unpacked.
struct Places {
    /// Or why there is none.
    cache: Result<PathBuf, String>,
    /// Others can write there as well.
    temporary: PathBuf,
}

impl Places {
    fn of_this_user() -> Places {
        Places {
            cache: cache::folder().map_err(|no_cache| no_cache.to_string()),
            temporary: std::env::temp_dir(),
        }
    }

    fn unpack(&self, name: &str, files: &[DataFile]) -> Result<PathBuf> {
        let tried = match &self.cache {
            Err(no_cache) => no_cache.clone(),
            Ok(cache) => match unpack_into(cache.join(name), files) {
                Ok(folder) => return Ok(folder),
                Err(cause) => format!("`{}`: {cause}", cache.join(name).display()),
            },
        };
        let private = self.temporary.join(format!("pstrain-{}", nix::unistd::getuid()));
        let unpacked =
            private_folder(&private).map_err(|untrusted| untrusted.to_string()).and_then(|folder| {
                unpack_into(folder.join(name), files)
                    .map_err(|cause| format!("`{}`: {cause}", private.display()))
            });
        unpacked.map_err(|cause| {
            anyhow!(
                "cannot unpack the built-in data: {tried}; {cause}\n  \
                 hint: set XDG_CACHE_HOME or TMPDIR to a folder of yours that nobody else can write to"
            )
        })
    }
}

fn unpack_into(folder: PathBuf, files: &[DataFile]) -> io::Result<PathBuf> {
    if !folder.is_dir() {
        unpack_new(&folder, files)?;
    }
    for file in files.iter().filter(|file| !is_there(&folder, file)) {
        let path = folder.join(&*file.name);
        let (Some(within), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
        else {
            continue;
        };
        files::make_folders(within)?;
        // B-2
        files::write(within, name, &file.bytes)?;
    }
    match foreign(&folder, files)? {
        None => Ok(folder),
        Some(other) => Err(io::Error::other(format!("`{}` is not of the data: delete it", other.display()))),
    }
}

/// All at once: of many small files each would wait for the disk.
fn unpack_new(folder: &Path, files: &[DataFile]) -> io::Result<()> {
    let above = folder.parent().unwrap_or(Path::new("."));
    files::make_folders(above)?;
    let made = tempfile::Builder::new().prefix(".unpack").tempdir_in(above)?;
    for file in files {
        let path = made.path().join(&*file.name);
        files::make_folders(path.parent().unwrap_or(above))?;
        fs::write(path, &file.bytes)?;
    }
    let renamed = fs::rename(made.path(), folder);
    // Where another process was first, its files are looked at as any that are there.
    renamed.or_else(|error| if folder.is_dir() { Ok(()) } else { Err(error) })
}

/// B-1. The files are small, so they are compared whole rather than by hash.
fn is_there(folder: &Path, file: &DataFile) -> bool {
    let path = folder.join(&*file.name);
    let right_size = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == file.bytes.len() as u64);
    right_size && fs::read(&path).is_ok_and(|bytes| *bytes == *file.bytes)
}

/// A file in `folder` that is none of the data's: a folder of images is what lies in it. Hidden ones may be on their way to
/// a name (B-2).
fn foreign(folder: &Path, files: &[DataFile]) -> io::Result<Option<PathBuf>> {
    let known: BTreeSet<PathBuf> = files.iter().map(|file| folder.join(&*file.name)).collect();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next)? {
            let entry = entry?;
            let path = entry.path();
            match entry.file_type()?.is_dir() {
                true => left.push(path),
                false if known.contains(&path) || entry.file_name().as_encoded_bytes().starts_with(b".") => {}
                false => return Ok(Some(path)),
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use sha2::{Digest, Sha256};

    use super::*;
    use crate::human::hex;

    fn unpacked_hash(path: &Path) -> String {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
        hex(Sha256::digest(&bytes))
    }

    fn digits() -> Vec<DataFile> {
        embedded(DIGITS).unwrap().unwrap()
    }

    fn places(cache: Result<PathBuf, String>, temporary: &Path) -> Places {
        Places { cache, temporary: temporary.into() }
    }

    #[test]
    fn the_digits_are_the_ones_that_the_attribution_names() {
        let cache = tempfile::tempdir().unwrap();
        let folder =
            places(Ok(cache.path().join("pstrain")), cache.path()).unpack(DIGITS, &digits()).unwrap();
        assert_eq!(folder, cache.path().join("pstrain/digits"));
        // `zcat FILE | sha256sum` of the files as they came.
        let expected = [
            (
                "train-images-idx3-ubyte.gz",
                "d37552f46c4f26a5c42058c9ff46077312a72b562a3c865e9f275c878904934a",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                "bd3edaa3a988280a3961d7c68a1df9acde2a3f3b377241ca8fcebd995127d8e8",
            ),
            ("t10k-images-idx3-ubyte.gz", "5689a491f1243ff62a6df36474347a38e5254526e8340b9458c0aa9ac71b3d67"),
            ("t10k-labels-idx1-ubyte.gz", "e6698ad083c2c36b514003f58a4da1112904c486bc4ed10f9f6ac2b47ee729c7"),
        ];
        for (name, hash) in expected {
            assert_eq!(unpacked_hash(&folder.join(name)), hash, "{name}");
        }
        assert!(folder.join("ATTRIBUTION.md").exists());
    }

    /// B-1
    #[test]
    fn a_damaged_file_is_replaced_and_a_right_one_is_left_alone() {
        let cache = tempfile::tempdir().unwrap();
        let unpack = || places(Ok(cache.path().to_owned()), cache.path()).unpack(DIGITS, &digits()).unwrap();
        let folder = unpack();
        let inode = |name: &str| fs::metadata(folder.join(name)).unwrap().ino();
        let kept = inode(TRAIN[1].0);
        let mut wrong = TRAIN[0].1.to_vec();
        wrong[1000] ^= 1;
        fs::write(folder.join(TRAIN[0].0), wrong).unwrap();
        unpack();
        assert_eq!(fs::read(folder.join(TRAIN[0].0)).unwrap(), TRAIN[0].1);
        assert_eq!(inode(TRAIN[1].0), kept);
    }

    /// B-2
    #[test]
    fn many_may_unpack_at_once() {
        let cache = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let folder =
                        places(Ok(cache.path().to_owned()), cache.path()).unpack(DIGITS, &digits()).unwrap();
                    assert!(digits().iter().all(|file| is_there(&folder, file)));
                });
            }
        });
        assert_eq!(fs::read_dir(cache.path().join(DIGITS)).unwrap().count(), digits().len());
    }

    #[test]
    fn a_cache_folder_that_cannot_be_written_is_no_obstacle() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, b"").unwrap();
        let folder = places(Ok(file.join("cache")), root.path()).unpack(DIGITS, &digits()).unwrap();
        assert!(folder.starts_with(root.path()));
        let error = places(Ok(file.join("cache")), &file).unpack(DIGITS, &digits()).unwrap_err().to_string();
        assert!(error.contains("file/cache/digits`: Not a directory"), "{error}");
        assert!(error.contains("hint: set XDG_CACHE_HOME"), "{error}");
    }

    #[test]
    fn a_temporary_folder_that_others_can_write_to_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let user = nix::unistd::getuid();
        let planted = root.path().join(format!("pstrain-{user}"));
        fs::create_dir(&planted).unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o777)).unwrap();
        let error =
            places(Err("no cache".into()), root.path()).unpack(DIGITS, &digits()).unwrap_err().to_string();
        assert!(error.contains("can be written by everybody"), "{error}");
    }

    #[test]
    fn other_data_are_not_built_in() {
        let error = unpack("mnist").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no built-in data set `mnist`\n  hint: `digits` is built in, and as PNG files `digit_images`"
        );
    }

    #[test]
    fn made_up_data_get_an_empty_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = places(Ok(root.path().to_owned()), root.path()).unpack("empty", &[]).unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }

    /// B-1
    #[test]
    fn a_file_that_is_not_of_the_images_is_told_and_a_damaged_one_replaced() {
        let cache = tempfile::tempdir().unwrap();
        let files = embedded(DIGIT_IMAGES).unwrap().unwrap();
        let places = places(Ok(cache.path().to_owned()), Path::new("/proc"));
        let unpack = || places.unpack(DIGIT_IMAGES, &files);
        let folder = unpack().unwrap();
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
        let image = folder.join(&*files[7].name);
        fs::write(&image, "").unwrap();
        unpack().unwrap();
        assert_eq!(fs::read(&image).unwrap(), *files[7].bytes);
        fs::write(folder.join("train/3/mine.png"), "").unwrap();
        let error = unpack().unwrap_err().to_string();
        assert!(error.contains("train/3/mine.png` is not of the data: delete it"), "{error}");
    }
}
