//! Checkpoints with the rows of a table that were written since an earlier one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tch::Tensor;

use crate::program::*;
use crate::support::runs_by_default;

/// Two trainers, and a table on two servers, of which a step has a few rows.
pub const JOB: &str = r#"name = "rows"
seed = 3
[roles]
trainer = 2
server = 2
[modules.table]
place = "server"
shards = "hash"
input = [10]
input_dtype = "int64"
layers = [{ type = "embedding_bag", num_embeddings = 3000, embedding_dim = 16, mode = "sum" }]
[modules.net]
place = "trainer"
layers = [{ type = "linear", in_features = 16, out_features = 8 }]
[data]
plugin = "bags"
[data.train]
samples = 4000
rows = 3000
bags = 8
classes = 8
seed = 0
[loss]
plugin = "cross_entropy"
[optimizer]
type = "adagrad"
lr = 0.05
[train]
forward = ["table", "net"]
epochs = 10
steps = 150
batch_size = 4
consistency = "bsp"
[checkpoint]
every_steps = 8
keep = 100
"#;

fn begin(folder: &Path, settings: &[&str], more: &[&str]) -> std::process::Command {
    fs::write(folder.join("job.toml"), JOB).unwrap();
    spawn_with(folder, Some("job.toml"), settings, more)
}

fn train(folder: &Path, settings: &[&str], more: &[&str]) {
    assert_code(&finish(&mut begin(folder, settings, more)), 0);
}

pub(super) fn tool(folder: &Path, args: &[&str]) -> std::process::Output {
    finish(pstrain(folder).arg("checkpoint").args(args))
}

/// The listed checkpoints of a run: each one's folder, its step, and the step of what it builds on.
fn listed(folder: &Path, run: &str) -> Vec<(String, u64, Option<u64>)> {
    let listed: Value = serde_json::from_str(&stdout(&tool(folder, &["list", run, "--json"]))).unwrap();
    let of = |one: &Value| {
        let number = |key: &str| one[key].as_u64();
        let path = one["folder"].as_str().unwrap().to_owned();
        (path, number("step").unwrap(), number("since"))
    };
    listed.as_array().unwrap().iter().map(of).collect()
}

/// How many bytes each of the listed has, by its step.
fn sizes(folder: &Path, run: &str) -> BTreeMap<u64, f64> {
    let listed: Vec<Value> = serde_json::from_str(&stdout(&tool(folder, &["list", run, "--json"]))).unwrap();
    listed.iter().map(|one| (one["step"].as_u64().unwrap(), one["bytes"].as_f64().unwrap())).collect()
}

/// The last one that builds on another, and its step.
pub(super) fn last_built(folder: &Path, run: &str) -> (String, u64) {
    let (path, step, _) = listed(folder, run).into_iter().rfind(|one| one.2.is_some()).unwrap();
    (path, step)
}

const WAYS: [&[&str]; 4] = [
    &["optimizer.type=adagrad"],
    &["modules.table.shards=rows", "optimizer={type=\"adam\", lr=0.01}"],
    &["modules.table.admit_after=2", "modules.table.evict_after=14"],
    &["ema.decay=0.9", "modules.table.admit_after=2", "modules.table.evict_after=14"],
];

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_run_goes_on_from_rows_that_were_written_since_an_earlier_checkpoint() {
    for way in WAYS.into_iter().filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), way, &["--run-dir", "RUN"]);
        let all = listed(folder.path(), "RUN");
        assert_eq!(all[0].2, None, "{way:?}");
        assert!(all[1..].iter().take(9).all(|one| one.2 == Some(all[0].1)), "{way:?}: {all:?}");
        let (from, step) = last_built(folder.path(), "RUN");
        train(folder.path(), way, &["--run-dir", "OTHER", "--resume", &from]);
        let [whole, other] = ["RUN", "OTHER"].map(|run| folder.path().join(run));
        let model = "model.safetensors";
        let same = fs::read(whole.join(model)).unwrap() == fs::read(other.join(model)).unwrap();
        assert!(same, "{way:?}: the model is another");
        if way.contains(&"ema.decay=0.9") {
            let [whole, other] = [whole, other].map(|run| loaded(&run.join("model-ema.safetensors")));
            assert_near(&whole, &other, 1e-6);
        }
        // As one file: what a run has that ends there.
        let steps = format!("train.steps={step}");
        let short = [way, &[&steps]].concat();
        train(folder.path(), &short, &["--run-dir", "SHORT"]);
        let export = |out: &str, more: &[&str]| {
            assert_code(&tool(folder.path(), &[&["export", &from, "--out", out], more].concat()), 0);
            loaded(&folder.path().join(out))
        };
        assert_near(
            &export("model.safetensors", &[]),
            &loaded(&folder.path().join("SHORT/model.safetensors")),
            0.0,
        );
        if way.contains(&"ema.decay=0.9") {
            let averages = loaded(&folder.path().join("SHORT/model-ema.safetensors"));
            assert_near(&export("ema.safetensors", &["--ema"]), &averages, 1e-6);
        }
    }
}

fn loaded(file: &Path) -> Vec<(String, Tensor)> {
    Tensor::read_safetensors(file).unwrap()
}

/// The rows by their ids, and of a tensor without ids by their places.
fn rows(tensors: &[(String, Tensor)], name: &str) -> BTreeMap<i64, Vec<f32>> {
    let find = |name: &str| tensors.iter().find(|(of, _)| of == name).map(|(_, value)| value);
    let value = find(name).unwrap_or_else(|| panic!("{name}"));
    let ids = name.strip_suffix("weight").and_then(|table| find(&format!("{table}ids")));
    let ids = ids.map(|ids| Vec::<i64>::try_from(ids).unwrap());
    let ids = ids.unwrap_or_else(|| (0..value.size()[0]).collect());
    let row = |at: usize| Vec::<f32>::try_from(value.get(at as i64).view([-1])).unwrap();
    ids.into_iter().enumerate().map(|(at, id)| (id, row(at))).collect()
}

/// What one has of the other's rows is within `most` of them. A checkpoint may have rows that the next step has asked for already,
/// and has none that nobody has asked for. Of an average the last bits differ: it is brought up to date when a checkpoint is made,
/// and the disk decides when that is.
#[track_caller]
fn assert_near(exported: &[(String, Tensor)], saved: &[(String, Tensor)], most: f32) {
    for (name, _) in exported.iter().filter(|(name, _)| !name.ends_with(".ids")) {
        let (exported, wanted) = (rows(exported, name), rows(saved, name));
        let common: Vec<i64> = exported.keys().filter(|id| wanted.contains_key(id)).copied().collect();
        assert_eq!(common.len(), exported.len().min(wanted.len()), "{name}: rows are missing");
        for id in common {
            let off = exported[&id].iter().zip(&wanted[&id]).map(|(one, other)| (one - other).abs());
            assert!(off.fold(0.0, f32::max) <= most, "{name}, row {id}");
        }
    }
}

/// One of so many has all rows, and what is kept keeps what it builds on.
#[test]
fn what_a_checkpoint_builds_on_is_kept_and_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["checkpoint.full_every=4", "checkpoint.keep=1"];
    train(folder.path(), &settings, &["--run-dir", "RUN"]);
    let all = listed(folder.path(), "RUN");
    let Some(since) = all.last().unwrap().2 else {
        assert_eq!(all.len(), 1, "the last one has all rows");
        return;
    };
    assert_eq!(all.iter().map(|one| one.1).collect::<Vec<_>>(), [since, all[1].1]);
    let text = stdout(&tool(folder.path(), &["list", "RUN"]));
    assert!(text.contains(&format!("rows since step {since}")), "{text}");
    assert_code(&tool(folder.path(), &["verify", "RUN"]), 0);

    let [base, last] = [0, 1].map(|nth: usize| folder.path().join(&all[nth].0));
    let manifest = fs::read_to_string(base.join("manifest.json")).unwrap();
    fs::write(base.join("manifest.json"), manifest.replacen("\"job\":\"rows\"", "\"job\":\"cows\"", 1))
        .unwrap();
    let output = tool(folder.path(), &["verify", last.to_str().unwrap()]);
    assert_code(&output, 1);
    let text = stdout(&output);
    assert!(text.contains("than the one beside it: the SHA-256 of its manifest is"), "{text}");
    fs::write(base.join("manifest.json"), manifest).unwrap();
    let part = fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path());
    let part = part.filter(|path| path.extension().is_some_and(|kind| kind == "safetensors")).last().unwrap();
    let mut bytes = fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&part, bytes).unwrap();
    let text = stdout(&tool(folder.path(), &["verify", last.to_str().unwrap()]));
    assert!(text.contains("is not as it was written: its SHA-256 is"), "{text}");
    fs::remove_dir_all(&base).unwrap();
    let output = finish(&mut begin(
        folder.path(),
        &settings,
        &["--run-dir", "OTHER", "--resume", last.to_str().unwrap()],
    ));
    assert_code(&output, 2);
    let text = stderr(&output);
    assert!(text.contains("which has to lie beside it\n  hint: copy both of them"), "{text}");
}

#[test]
fn all_rows_are_written_where_the_job_says_so() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), &["checkpoint.full_every=1"], &["--run-dir", "RUN"]);
    let all = listed(folder.path(), "RUN");
    assert!(all.len() > 1 && all.iter().all(|one| one.2.is_none()), "{all:?}");
}

/// After 100 rounds of both trainers most of the 3,000 rows are in use, and a round touches 35 of them: in 4 they are one in twenty.
#[test]
fn a_checkpoint_of_few_rows_has_few_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["checkpoint.every_steps=4", "checkpoint.full_every=3"];
    train(folder.path(), &settings, &["--run-dir", "RUN"]);
    let sizes = sizes(folder.path(), "RUN");
    let built = listed(folder.path(), "RUN").into_iter().filter_map(|(_, step, since)| Some((step, since?)));
    let built: Vec<_> = built.filter(|&(_, since)| since >= 100).collect();
    assert!(!built.is_empty(), "{sizes:?}");
    for (step, since) in built {
        // The next but one has the rows of twice as many rounds, and one that is due while another is written is left out.
        let most = (step - since).div_ceil(4) as f64 / 6.0;
        let share = sizes[&step] / sizes[&since];
        println!("step {step}, rows since step {since}: {share:.3} of its bytes");
        assert!(share <= most, "{share} of the bytes, and at most {most}");
    }
}
