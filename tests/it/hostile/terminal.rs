//! What others wrote, on the way to a terminal.

use std::fs;

use crate::program::*;

/// Sets the title of a terminal, clears it, and goes back over what stood there.
const EVIL: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\rno";

/// A safetensors file with one tensor of this name.
fn safetensors(name: &str) -> Vec<u8> {
    let header =
        serde_json::json!({ name: { "dtype": "F32", "shape": [1], "data_offsets": [0, 4] } }).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&[0; 4]);
    file
}

/// What the program says of this job.
fn said_of(change: impl Fn(String) -> String) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("evil.safetensors"), safetensors(EVIL)).unwrap();
    let job = change(include_str!("../../../jobs/digits_ps.toml").to_owned());
    fs::write(folder.path().join("job.toml"), job).unwrap();
    let output = finish(pstrain(folder.path()).args(["check", "job.toml"]));
    stdout(&output) + &stderr(&output)
}

#[test]
fn names_in_files_and_values_of_jobs_are_shown_as_escapes() {
    let quoted = serde_json::to_string(EVIL).unwrap().replace('\u{9b}', "\\u009b");
    let weights =
        |job: String| job.replace("[modules.net]\n", "[modules.net]\nweights = \"evil.safetensors\"\n");
    let root = |job: String| job.replace("\"builtin:digits\"", &quoted);
    let key = |job: String| format!("{job}\n[train2]\n{quoted} = 1\n");
    for (change, told) in [(&weights as &dyn Fn(String) -> String, true), (&root, true), (&key, false)] {
        let said = said_of(change);
        assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
        assert!(!told || said.contains("owned"), "{said}");
    }
}
