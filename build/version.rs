//! What `pstrain --version` tells beside the version: the commit, and the wasmtime that Cargo.lock has.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

pub fn tell() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let commit = commit(&root).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=BUILT_FROM_COMMIT={commit}");
    println!("cargo::rerun-if-changed=Cargo.lock");
    let wasmtime = locked("wasmtime").unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=BUILT_WITH_WASMTIME={wasmtime}");
}

/// None: this is not a working tree of git's, or part of somebody else's.
fn commit(root: &str) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
    };
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if fs::canonicalize(top).ok()? != fs::canonicalize(root).ok()? {
        return None;
    }
    let built_from = git(&["rev-parse", "--short=12", "HEAD"])?;
    if env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        // To compile everything again after each commit would take minutes.
        return Some(format!("{built_from} or later: a development build"));
    }
    // These change with the commit. What is not there would count as changed each time.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in [Some("HEAD"), branch.as_deref(), Some("packed-refs")].into_iter().flatten() {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(root).join(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    Some(built_from)
}

/// The version of a package in Cargo.lock.
fn locked(package: &str) -> Option<String> {
    let lock = fs::read_to_string("Cargo.lock").ok()?;
    let entry = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?.1;
    Some(entry.split_once('"')?.0.to_owned())
}
