//! What the program says of itself.

use std::path::Path;
use std::process::Command;

use crate::program::*;

#[test]
fn the_version_tells_the_commit_and_both_engines() {
    let folder = tempfile::tempdir().unwrap();
    let long = stdout(&finish(pstrain(folder.path()).arg("--version")));
    let lines: Vec<Vec<&str>> = long.lines().map(|line| line.split_whitespace().collect()).collect();
    let [first, commit, libtorch, wasmtime] = &lines[..] else { panic!("{long}") };
    assert_eq!(first[..], ["pstrain", env!("CARGO_PKG_VERSION")]);
    assert_eq!(libtorch[..], ["libtorch", "2.11.0"]);
    let locked = format!("name = \"wasmtime\"\nversion = \"{}\"\n", wasmtime[1]);
    assert!(wasmtime[0] == "wasmtime" && include_str!("../../../Cargo.lock").contains(&locked), "{long}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if root.join(".git").exists() {
        let git = Command::new("git")
            .args(["merge-base", "--is-ancestor", commit[1], "HEAD"])
            .current_dir(root)
            .status();
        assert!(git.unwrap().success(), "{long}");
        let development = cfg!(debug_assertions).then_some("or later: a development build");
        assert_eq!(commit[2..].join(" "), development.unwrap_or_default());
    } else {
        assert_eq!(commit[..], ["commit", "unknown"]);
    }
    let short = stdout(&finish(pstrain(folder.path()).arg("-V")));
    assert_eq!(short.trim(), format!("pstrain {}", env!("CARGO_PKG_VERSION")));
}
