//! The lock of a run folder (F-5): on a file that nobody else can open, since whoever can read a file can lock it, and whoever
//! holds a lock would keep a run from its own folder.
//!
//! It is a lock of the open file (fcntl(2), `F_OFD_SETLK`): ranks that are forked have it too, and others can ask whether there
//! is one without taking any.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::stat::{major, minor};
use nix::unistd::Uid;

use super::in_use::FolderInUse;

/// Stays when a run has ended: one that is removed could be locked by two.
pub const LOCK: &str = ".run.lock";

/// Keeps others from the folder for as long as the file is open, here or in processes that were forked from this one. None: this
/// file system has no locks.
///
/// # Errors
/// A run has the folder, as [`FolderInUse`]; the file cannot be made, or is somebody else's.
pub fn lock(folder: &Path) -> Result<Option<Arc<File>>> {
    let path = folder.join(LOCK);
    let cannot_open = || format!("cannot open `{}`", path.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(&path).with_context(cannot_open)?;
    let found = file.metadata().with_context(cannot_open)?;
    // Whoever has the folder could take it away as well.
    let trusted = [Uid::effective().as_raw(), 0, fs::metadata(folder).with_context(cannot_open)?.uid()];
    if !found.is_file() || !trusted.contains(&found.uid()) {
        bail!(
            "`{}` is not this run's: somebody else could keep it locked\n  hint: name another folder with --run-dir",
            path.display()
        );
    }
    if found.mode() & 0o077 != 0 {
        let narrowed = file.set_permissions(Permissions::from_mode(0o600));
        narrowed.with_context(|| format!("cannot keep others from `{}`", path.display()))?;
    }
    match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file())) {
        Ok(_) => Ok(Some(Arc::new(file))),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(FolderInUse::UnderWay { folder: folder.into() }.into()),
        // Not every file system has locks.
        Err(_) => Ok(None),
    }
}

/// Is there such a lock? Takes none, not for a moment: a run that begins meanwhile would be refused.
pub fn is_locked(folder: &Path) -> bool {
    let path = folder.join(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    match options.open(&path) {
        Ok(file) => {
            let mut lock = whole_file();
            let asked = fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock));
            asked.is_ok() && i32::from(lock.l_type) != libc::F_UNLCK
        }
        // Another user's run.
        Err(denied) if denied.kind() == ErrorKind::PermissionDenied => is_listed(&path).unwrap_or(false),
        Err(_) => false,
    }
}

/// Has the system a lock of this file in its list, which all may read?
fn is_listed(path: &Path) -> Option<bool> {
    let found = fs::symlink_metadata(path).ok()?;
    let (device, number) = (found.dev(), found.ino());
    let file = format!(" {:02x}:{:02x}:{number} ", major(device), minor(device));
    Some(fs::read_to_string("/proc/locks").ok()?.lines().any(|lock| lock.contains(&file)))
}

/// An exclusive lock.
fn whole_file() -> libc::flock {
    let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    /// F-5
    #[test]
    fn whoever_can_only_read_the_folder_keeps_no_run_from_it() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        let of_a_neighbour = File::open(root.path()).unwrap();
        of_a_neighbour.lock_shared().unwrap();
        let lock = lock(root.path()).unwrap();
        assert!(lock.is_some() && is_locked(root.path()));
        assert_eq!(mode(&root.path().join(LOCK)), 0o600);
        drop(lock);
        assert!(!is_locked(root.path()));
    }

    #[test]
    fn a_lock_file_that_others_could_open_is_narrowed() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(LOCK), "").unwrap();
        fs::set_permissions(root.path().join(LOCK), Permissions::from_mode(0o666)).unwrap();
        assert!(lock(root.path()).unwrap().is_some());
        assert_eq!(mode(&root.path().join(LOCK)), 0o600);
    }

    #[test]
    fn a_link_or_a_pipe_in_its_place_is_refused() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("elsewhere", root.path().join(LOCK)).unwrap();
        assert!(lock(root.path()).is_err() && !is_locked(root.path()));
        assert!(!root.path().join("elsewhere").exists());
        fs::remove_file(root.path().join(LOCK)).unwrap();
        nix::unistd::mkfifo(&root.path().join(LOCK), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(lock(root.path()).is_err() && !is_locked(root.path()));
    }

    /// F-5
    #[test]
    fn who_looks_whether_a_run_is_under_way_keeps_none_from_its_folder() {
        let root = tempfile::tempdir().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    is_locked(root.path());
                }
            });
            let all = (0..5000).all(|_| lock(root.path()).is_ok());
            done.store(true, Ordering::Relaxed);
            assert!(all, "a look kept a run from its folder");
        });
    }

    #[test]
    fn a_lock_is_found_in_the_systems_list_too() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(LOCK);
        let lock = lock(root.path()).unwrap().unwrap();
        assert_eq!(is_listed(&path), Some(true));
        drop(lock);
        assert_eq!(is_listed(&path), Some(false));
    }
}
