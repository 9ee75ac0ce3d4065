//! Whose a file is. Nothing is loaded, run, locked on or believed that another user could have made or can write.
//!
//! A crate of its own because both the program and `c10d` load code. Two questions are answered here and nowhere else:
//!
//! - [`private_folder`] makes a folder that is this user's alone, or makes sure that one is.
//! - [`check_code`] looks at a file that is about to be loaded.
//!
//! - `OW-1` Everything on the way to a file counts, each link and each folder from the root on: who can write one of them can
//!   put another file there.
//! - `OW-2` Trusted are root, this user, and the owner of the program that runs, who could have changed it; beside them whoever
//!   owns a folder that is named in `PSTRAIN_TRUSTED`.
//! - `OW-3` A folder with the sticky bit (as /tmp) may be written by all: nobody can replace what is another's there.
//! - `OW-4` What a group can write is refused, unless it is the owner's private group, which nobody else is in.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Gid, Group, Uid, User};

mod trust;

pub use trust::TRUSTED_KEY;
use trust::Trust;

/// Why a file or folder is left alone.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    #[error("`{}` belongs to {}", path.display(), named(*owner))]
    Owner { path: PathBuf, owner: u32 },
    #[error("`{}` can be written by {by}", path.display())]
    Writable { path: PathBuf, by: Others },
    #[error("`{}` is {what}", path.display())]
    Kind { path: PathBuf, what: &'static str },
    #[error("`{}`: {cause}", path.display())]
    Io { path: PathBuf, cause: io::Error },
}

/// Who else can write a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    Group(u32),
    Everybody,
}

impl std::fmt::Display for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Others::Everybody => f.write_str("everybody"),
            Others::Group(gid) => match Group::from_gid(Gid::from_raw(gid)) {
                Ok(Some(group)) => write!(f, "the group `{}`", group.name),
                _ => write!(f, "the group {gid}"),
            },
        }
    }
}

fn named(owner: u32) -> String {
    match User::from_uid(Uid::from_raw(owner)) {
        Ok(Some(user)) => format!("the user `{}`", user.name),
        _ => format!("the user {owner}"),
    }
}

impl Untrusted {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Untrusted::Writable { path, by: Others::Everybody } => {
                format!(
                    "`chmod o-w {0}`, or name it in {TRUSTED_KEY} if nobody else uses this machine",
                    path.display()
                )
            }
            Untrusted::Writable { path, by: Others::Group(_) } => {
                format!(
                    "`chmod g-w {0}`, or name it in {TRUSTED_KEY} if you trust that group",
                    path.display()
                )
            }
            Untrusted::Owner { path, .. } => {
                format!(
                    "if you trust its owner with all that is yours, name `{}` in {TRUSTED_KEY}",
                    path.display()
                )
            }
            Untrusted::Kind { .. } | Untrusted::Io { .. } => "see what is there".into(),
        }
    }
}

/// Makes `folder`, and those above it that are missing, for this user alone; of one that is there already makes sure that it
/// is. Others may not even read it, since who can read a file can lock it.
///
/// Returns where it really is.
///
/// # Errors
/// It cannot be made; it is a link or belongs to somebody else; others can write it, or what leads there.
pub fn private_folder(folder: &Path) -> Result<PathBuf, Untrusted> {
    private(folder, &Trust::of_this_process())
}

fn private(folder: &Path, trust: &Trust) -> Result<PathBuf, Untrusted> {
    let failed = |cause| Untrusted::Io { path: folder.into(), cause };
    let folder = std::path::absolute(folder).map_err(failed)?;
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    let found = fs::symlink_metadata(&folder).map_err(failed)?;
    if !found.is_dir() {
        let what = if found.is_symlink() { "a link, and not a folder of its own" } else { "not a folder" };
        return Err(Untrusted::Kind { path: folder, what });
    }
    let real = trust.walk(&folder)?;
    if found.uid() != trust.me {
        return Err(Untrusted::Owner { path: folder, owner: found.uid() });
    }
    // Not even with the sticky bit: others could make files here.
    if let Some(by) = trust.others(&found) {
        return Err(Untrusted::Writable { path: folder, by });
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(real)
}

/// Makes sure that nobody but those who are trusted (OW-2) could have written `file`, which is about to be loaded. Returns
/// where it really is.
///
/// # Errors
/// Somebody else could have, by way of the file, a link to it or a folder above it; it cannot be looked at.
pub fn check_code(file: &Path) -> Result<PathBuf, Untrusted> {
    let absolute = std::path::absolute(file).map_err(|cause| Untrusted::Io { path: file.into(), cause })?;
    Trust::of_this_process().walk(&absolute)
}

impl Trust {
    /// OW-1. Follows each link by itself, as the system would.
    fn walk(&self, path: &Path) -> Result<PathBuf, Untrusted> {
        /// As many as Linux follows.
        const MOST_LINKS: u32 = 40;
        let mut ahead: VecDeque<OsString> = parts(path).collect();
        let mut here = PathBuf::from("/");
        let mut owners = self.owners.clone();
        self.look(&here, &mut owners)?;
        let mut links = 0;
        while let Some(part) = ahead.pop_front() {
            if part == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&part);
            let found = self.look(&next, &mut owners)?;
            if !found.is_symlink() {
                here = next;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(Untrusted::Kind { path: path.into(), what: "a link to itself" });
            }
            let target = fs::read_link(&next).map_err(|cause| Untrusted::Io { path: next.clone(), cause })?;
            if target.is_absolute() {
                here = "/".into();
            }
            let behind = std::mem::take(&mut ahead);
            ahead = parts(&target).chain(behind).collect();
        }
        Ok(here)
    }

    /// One file, link or folder on the way. `owners` are those who are trusted from here on.
    fn look(&self, path: &Path, owners: &mut Vec<u32>) -> Result<Metadata, Untrusted> {
        let found = fs::symlink_metadata(path).map_err(|cause| Untrusted::Io { path: path.into(), cause })?;
        if self.is_named(path) {
            owners.push(found.uid());
            return Ok(found);
        }
        if !owners.contains(&found.uid()) {
            return Err(Untrusted::Owner { path: path.into(), owner: found.uid() });
        }
        let is_sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        match self.others(&found) {
            // A link's own mode means nothing.
            Some(by) if !is_sticky && !found.is_symlink() => {
                Err(Untrusted::Writable { path: path.into(), by })
            }
            _ => Ok(found),
        }
    }

    /// Who but the owner can write it.
    fn others(&self, found: &Metadata) -> Option<Others> {
        if found.mode() & 0o002 != 0 {
            return Some(Others::Everybody);
        }
        let is_shared = found.mode() & 0o020 != 0 && !(self.is_private_group)(found.uid(), found.gid());
        is_shared.then(|| Others::Group(found.gid()))
    }
}

/// The names in a path; `..` stays, the root and `.` do not.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests;
