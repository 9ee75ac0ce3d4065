//! What the tests of this folder share.

use std::path::Path;

use super::run_folder::LOCK;

/// What is in a folder, sorted, but for the lock that each run has there.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != LOCK).collect();
    names.sort();
    names
}
