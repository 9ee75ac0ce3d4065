//! Who is trusted by this process.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Group, Uid, User};

/// Folders, as in PATH, whose owners and writers the user trusts.
pub const TRUSTED_KEY: &str = "PSTRAIN_TRUSTED";

pub struct Trust {
    pub me: u32,
    /// OW-2
    pub owners: Vec<u32>,
    /// Those that the user has named.
    pub named: Vec<PathBuf>,
    /// Is this group, the second, the private one of this user, the first (OW-4)?
    pub is_private_group: fn(u32, u32) -> bool,
}

impl Trust {
    pub fn of_this_process() -> Trust {
        let me = Uid::effective().as_raw();
        let mut owners = vec![0, me];
        owners.extend(fs::metadata("/proc/self/exe").ok().map(|program| program.uid()));
        owners.extend(unmapped_root());
        let named = std::env::var_os(TRUSTED_KEY);
        Trust { me, owners, named: folders(named.as_deref()), is_private_group }
    }

    pub fn is_named(&self, path: &Path) -> bool {
        self.named.iter().any(|named| named == path)
    }
}

fn folders(named: Option<&OsStr>) -> Vec<PathBuf> {
    let folders = named.into_iter().flat_map(std::env::split_paths);
    // An empty entry would be the current folder.
    folders.filter(|folder| folder.is_absolute()).collect()
}

/// In a container with a user namespace of its own root's files belong, as seen from there, to the overflow user.
fn unmapped_root() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let overflow = || fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok();
    if is_whole(&map) { None } else { overflow() }
}

/// Does a uid_map (user_namespaces(7)) map all users?
fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// As Debian and Fedora make users: a group of the user's own name, which is the user's first one and has no other members.
fn is_private_group(user: u32, group: u32) -> bool {
    let (Ok(Some(user)), Ok(Some(group))) =
        (User::from_uid(Uid::from_raw(user)), Group::from_gid(Gid::from_raw(group)))
    else {
        return false;
    };
    user.gid == group.gid && user.name == group.name && group.mem.iter().all(|member| *member == user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_paths_can_be_trusted_by_name() {
        assert_eq!(
            folders(Some("/apps::tools:/scratch/me".as_ref())),
            ["/apps", "/scratch/me"].map(Path::new)
        );
        assert_eq!(folders(None), [""; 0].map(Path::new));
    }

    #[test]
    fn a_namespace_of_its_own_does_not_map_all_users() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("         0       1000          1\n"));
        assert!(!is_whole("0 100000 65536\n65536 1000 1\n"));
    }
}
