//! Checkpoints that somebody has changed: whatever their manifest and their state say, they are read or refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use pstrain::job::{JobText, Place, Sources, load};
use pstrain::runner::checkpoint::Checkpoint;
use pstrain::runner::saved_model::Numbers;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::program::*;
use crate::runs::changed_rows;
use crate::support::{is_alone, peak_kib, times};

/// The time for all that is done with one.
const BOUND: Duration = Duration::from_secs(20);

/// A run with a table whose rows were written since an earlier checkpoint, averages and all.
fn trained(folder: &Path) -> PathBuf {
    fs::write(folder.join("job.toml"), changed_rows::JOB).unwrap();
    let settings = ["train.steps=24", "ema.decay=0.9", "modules.table.admit_after=2"];
    assert_code(&finish(&mut spawn(folder, Some("job.toml"), &settings)), 0);
    let within = folder.join("RUN/checkpoints");
    let names = fs::read_dir(&within).unwrap().map(|entry| entry.unwrap().path());
    let newest = names.max().unwrap();
    let manifest: Value = serde_json::from_slice(&fs::read(newest.join("manifest.json")).unwrap()).unwrap();
    assert!(manifest["base"].is_object(), "it builds on another");
    newest
}

/// All nodes below one, in the order in which they are found.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Changes the node that is `at` places behind the first.
fn change(value: &mut Value, at: &mut usize, random: &mut ChaCha8Rng) -> bool {
    if *at == 0 {
        *value = wild(value, random);
        return true;
    }
    *at -= 1;
    match value {
        Value::Array(all) => all.iter_mut().any(|one| change(one, at, random)),
        Value::Object(all) => all.values_mut().any(|one| change(one, at, random)),
        _ => false,
    }
}

/// What somebody could put in its place: mostly of the same kind.
fn wild(old: &Value, random: &mut ChaCha8Rng) -> Value {
    let numbers = [0, 1, 2, 7, 1 << 31, 1 << 32, 1 << 53, 1 << 62, i64::MAX as u64, u64::MAX, u64::MAX - 7];
    let names = [
        "",
        ".",
        "..",
        "../job.toml",
        "/etc/passwd",
        "manifest.json",
        "x\u{1b}[2J",
        "a\0b",
        "Int64",
        "exp_avg",
    ];
    let number = |random: &mut ChaCha8Rng| numbers[random.random_range(0..numbers.len())];
    match (old, random.random_range(0..8)) {
        (_, 0) => Value::Null,
        (_, 1) => json!([]),
        (_, 2) => json!({}),
        (Value::Number(_), 3) => json!(-1 - random.random_range(0..1i64 << 40)),
        (Value::Number(_), _) => json!(number(random)),
        (Value::String(_), _) => json!(names[random.random_range(0..names.len())]),
        (Value::Bool(old), _) => json!(!old),
        (Value::Array(all), 3) => all.iter().chain(all).cloned().collect(),
        (Value::Array(all), _) => all.iter().skip(1).cloned().collect(),
        (Value::Object(all), _) if !all.is_empty() => {
            let gone = random.random_range(0..all.len());
            all.iter()
                .enumerate()
                .filter(|(at, _)| *at != gone)
                .map(|(_, (k, v))| (k.clone(), v.clone()))
                .collect()
        }
        _ => json!(number(random)),
    }
}

/// One or several changes of what a text says, or of the text.
fn changed(text: &str, random: &mut ChaCha8Rng) -> Vec<u8> {
    if random.random_range(0..6) == 0 {
        let mut bytes = text.as_bytes().to_vec();
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..3) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << random.random_range(0..8),
            _ => random.fill_bytes(&mut bytes[at..]),
        }
        return bytes;
    }
    let mut value: Value = serde_json::from_str(text).unwrap();
    for _ in 0..random.random_range(1..4) {
        let mut at = random.random_range(0..count(&value));
        change(&mut value, &mut at, random);
    }
    value.to_string().into()
}

/// Does with a checkpoint what the program does with one that somebody names.
fn use_it(place: &Path, out: &Path) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::open(&Place::Folder(place.into()))?;
    let _ = (checkpoint.size(), checkpoint.saved(), checkpoint.verify());
    let _ = checkpoint.scattered();
    for numbers in [Numbers::Weights, Numbers::Averages] {
        let _ = checkpoint.export(numbers, &fs::File::create(out)?, out);
    }
    let text = checkpoint.job_text()?;
    let file = JobText { name: "job.toml", text: &text };
    let resolved = load(&Sources { file, env: Vec::new(), overrides: &[] }).map_err(io::Error::other)?;
    let training = resolved.job.training().expect("it trains");
    let successors = checkpoint.successors(training)?;
    for module in ["table", "net"] {
        checkpoint.module(module, &successors)?;
    }
    Ok(())
}

#[test]
fn no_changed_manifest_or_state_does_more_than_to_be_refused() {
    const MOST_MIB: u64 = 512;
    if !is_alone("hostile::checkpoints::no_changed_manifest_or_state_does_more_than_to_be_refused") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = trained(folder.path());
    let out = folder.path().join("out.safetensors");
    use_it(&place, &out).expect("it is whole");
    let files = ["manifest.json", "state.json"]
        .map(|name| (place.join(name), fs::read_to_string(place.join(name)).unwrap()));
    let before = peak_kib("self").expect("it runs");
    let (mut worst, mut refused) = ((Duration::ZERO, 0), 0);
    let all = times(150, 5_000);
    for seed in 0..all as u64 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (path, text) = &files[usize::from(random.random_range(0..4) == 0)];
        fs::write(path, changed(text, &mut random)).unwrap();
        let began = Instant::now();
        let used = catch_unwind(AssertUnwindSafe(|| use_it(&place, &out)));
        let took = began.elapsed();
        fs::write(path, text).unwrap();
        let used = used.unwrap_or_else(|_| panic!("seed {seed}: `{}` brings it down", path.display()));
        assert!(took < BOUND, "seed {seed}: it took {took:?}");
        refused += usize::from(used.is_err());
        worst = worst.max((took, seed));
    }
    let grown = (peak_kib("self").expect("it runs") - before) >> 10;
    println!(
        "{refused} of {all} refused; the longest took {:?} (seed {}); memory grew by {grown} MiB",
        worst.0, worst.1
    );
    assert!(grown < MOST_MIB, "memory grew by {grown} MiB");
    assert!(refused > all / 4, "{refused} of {all}");
}

#[test]
fn a_manifest_that_names_files_elsewhere_is_refused_and_so_is_a_pipe_or_one_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let place = trained(folder.path());
    let manifest = place.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let refused = || format!("{:#}", Checkpoint::open(&Place::Folder(place.clone())).unwrap_err());
    for name in ["../../job.toml", "/etc/passwd", "..", ""] {
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["others"][0]["file"] = name.into();
        fs::write(&manifest, value.to_string()).unwrap();
        assert!(
            refused().contains(&format!("names a file `{name}`, which is not one beside it")),
            "{}",
            refused()
        );
    }
    fs::File::create(&manifest).unwrap().set_len(300 << 20).unwrap();
    assert!(refused().contains("has 314572800 bytes; 268435456 are possible"), "{}", refused());
    fs::remove_file(&manifest).unwrap();
    nix::unistd::mkfifo(&manifest, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused().contains("manifest.json`: it is not a regular file"), "{}", refused());
}
