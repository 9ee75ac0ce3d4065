//! Copies of the program that run with another user's rights. Only root can make some.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::{Command, Stdio};

use crate::support::{later, within};

pub const TESTS: &[(&str, fn())] = tests![a_copy_with_rights_of_its_own_does_not_start,];

fn a_copy_with_rights_of_its_own_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (user, group, bits) in [(Some(4242), None, 0o4755), (None, Some(4242), 0o2755)] {
        let copy = folder.path().join(format!("pstrain-{bits:o}"));
        fs::copy(env!("CARGO_BIN_EXE_pstrain"), &copy).unwrap();
        chown(&copy, user, group).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(bits)).unwrap();
        let mut command = Command::new(&copy);
        command.args(["spawn", "--run-dir", "RUN"]).current_dir(folder.path()).env_remove("LD_PRELOAD");
        let output = within(later(move || command.stdin(Stdio::null()).output().unwrap()));
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("error: this program has rights that whoever starts it has not"), "{said}");
    }
}
