//! What others wrote, on the way to a terminal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

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

/// The built-in job with two checkpoints.
fn checkpoints(folder: &Path) -> [PathBuf; 2] {
    let settings = ["train.consistency=bsp", "train.steps=30", "checkpoint.every_steps=10"];
    assert_code(&finish(&mut spawn_with(folder, None, &settings, &["--run-dir", "RUN"])), 0);
    fs::remove_file(folder.join("RUN/summary.json")).unwrap();
    [10, 20].map(|step| folder.join(format!("RUN/checkpoints/step-{step:010}")))
}

fn change_manifest(checkpoint: &Path, change: impl Fn(&mut Value)) {
    let path = checkpoint.join("manifest.json");
    let mut manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(&path, manifest.to_string()).unwrap();
}

/// A file that the coordinator has written, with more in it, and a manifest that says so.
fn add_to(checkpoint: &Path, name: &str, more: &str) {
    let text = fs::read_to_string(checkpoint.join(name)).unwrap() + more;
    fs::write(checkpoint.join(name), &text).unwrap();
    change_manifest(checkpoint, |manifest| {
        let others = manifest["others"].as_array_mut().unwrap();
        let other = others.iter_mut().find(|other| other["file"] == name).unwrap();
        other["bytes"] = text.len().into();
        other["sha256"] =
            Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    });
}

#[track_caller]
fn assert_escaped(output: &Output) {
    let said = stdout(output) + &stderr(output);
    assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    assert!(said.contains(r"\u{1b}]0;owned"), "{said}");
}

/// Keys of its job, which may differ from those of the run that goes on; names of files that are not there.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn what_a_checkpoint_of_somebody_else_says_is_shown_as_escapes() {
    let folder = tempfile::tempdir().unwrap();
    let [older, newer] = checkpoints(folder.path());
    let quoted = serde_json::to_string(EVIL).unwrap().replace('\u{9b}', "\\u009b");
    add_to(&older, "job.toml", &format!("\n[elsewhere]\n{quoted} = 1\n"));
    let resumed = ["--run-dir", "AGAIN", "--resume", older.to_str().unwrap()];
    let settings = ["train.consistency=bsp", "train.steps=30", "checkpoint.every_steps=10"];
    let output = finish(&mut spawn_with(folder.path(), None, &settings, &resumed));
    assert_code(&output, 0);
    assert_escaped(&output);

    change_manifest(&newer, |manifest| manifest["others"][0]["file"] = EVIL.into());
    let resumed = ["--run-dir", "ONCE_MORE", "--resume", "RUN"];
    let output = finish(&mut spawn_with(folder.path(), None, &settings, &resumed));
    assert_code(&output, 0);
    assert_escaped(&output);
    assert!(stderr(&output).contains("a newer checkpoint is left out"), "{}", stderr(&output));
    let export = ["checkpoint", "export", "RUN", "--out", "model.safetensors"];
    let output = finish(pstrain(folder.path()).args(export));
    assert_code(&output, 0);
    assert_escaped(&output);
}
