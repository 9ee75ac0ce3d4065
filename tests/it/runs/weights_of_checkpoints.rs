//! Jobs whose modules start from the checkpoint of another.

use std::fs;
use std::path::Path;
use std::process::Output;

use super::changed_rows::{JOB, last_built, tool};
use crate::program::*;
use crate::support::runs_by_default;

const LINEAR: &str = r#"layers = [{ type = "linear", in_features = 16, out_features = 8 }]"#;
/// With running statistics.
const NORM: &str = r#"layers = [
    { type = "linear", in_features = 16, out_features = 8 },
    { type = "batch_norm1d", num_features = 8 },
    { type = "linear", in_features = 8, out_features = 8 },
]"#;

fn run(folder: &Path, settings: &[&str], name: &str) -> Output {
    let job = JOB.replace(LINEAR, NORM).replace("server = 2\n", "server = 2\nother = 1\n");
    fs::write(folder.join("job.toml"), job).unwrap();
    finish(&mut spawn_with(folder, Some("job.toml"), settings, &["--run-dir", name]))
}

/// The last checkpoint that has rows since another one, and its model as a file.
fn trained(folder: &Path, settings: &[&str]) -> (String, String) {
    // So many that a slow disk takes several checkpoints, too.
    assert_code(&run(folder, &[settings, &["train.steps=240"]].concat(), "FIRST"), 0);
    let (last, _) = last_built(folder, "FIRST");
    assert_code(&tool(folder, &["export", &last, "--out", "first.safetensors"]), 0);
    (last, "first.safetensors".into())
}

const PULLED: &[&str] = &["modules.net.place=server", "modules.net.run=caller"];
/// How the first job is placed, and how the second.
const WAYS: [(&[&str], &[&[&str]]); 2] = [
    (
        &[],
        &[
            &["modules.net.place=other", "modules.table.shards=rows"],
            &["modules.net.place=[\"other\", \"server\"]", "modules.table.place=other"],
            PULLED,
        ],
    ),
    (PULLED, &[&["modules.net.freeze=[\"net.0.*\"]", "optimizer.type=adam", "roles.server=3"], PULLED]),
];

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_checkpoint_is_started_from_as_its_model_in_one_file() {
    for (way, places) in WAYS.into_iter().filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        let (checkpoint, file) = trained(folder.path(), way);
        for place in places {
            let model = |name: &str, from: &str| {
                let weights = ["table", "net"].map(|module| format!("modules.{module}.weights={from}"));
                let more = ["name=second", "train.steps=3", "seed=8"];
                let settings: Vec<&str> =
                    weights.iter().map(String::as_str).chain(more).chain(place.iter().copied()).collect();
                let name = format!("{name}{}", place.concat().len());
                assert_code(&run(folder.path(), &settings, &name), 0);
                fs::read(folder.path().join(name).join("model.safetensors")).unwrap()
            };
            let (of_checkpoint, of_file) = (model("CHECKPOINT", &checkpoint), model("FILE", &file));
            assert!(of_checkpoint == of_file, "{way:?} {place:?}: another model");
        }
    }
}

/// What `check` and `spawn` say, the same.
#[track_caller]
fn refused(folder: &Path, settings: &[&str]) -> String {
    let output = run(folder, settings, "REFUSED");
    assert_code(&output, 2);
    let said = stderr(&output);
    let sets = settings.iter().flat_map(|setting| ["--set", setting]);
    let checked = finish(pstrain(folder).args(["check", "job.toml"]).args(sets));
    assert_code(&checked, 2);
    assert_eq!(stderr(&checked), said);
    said
}

#[test]
fn what_cannot_be_started_from_is_refused_before_any_rank_starts() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, _) = trained(folder.path(), &[]);
    let net = format!("modules.net.weights={checkpoint}");

    let said = refused(folder.path(), &["modules.net.weights=FIRST"]);
    insta::assert_snapshot!("a_run_folder", said);
    let said = refused(folder.path(), &["modules.net.weights=s3://bucket/first"]);
    insta::assert_snapshot!("a_bucket", said);
    let narrow = r#"modules.net.layers=[{ type = "linear", in_features = 16, out_features = 9 }]"#;
    let said = refused(folder.path(), &[&net, narrow]).replace(&checkpoint, "CHECKPOINT");
    insta::assert_snapshot!("another_shape", said);

    let part = folder.path().join(&checkpoint).join("shard-00001-model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&part, bytes).unwrap();
    let said = refused(folder.path(), &[&net]);
    assert!(
        said.contains(&format!("`modules.net.weights` = \"{checkpoint}\" cannot be started from: ")),
        "{said}"
    );
    assert!(said.contains("is not as it was written: its SHA-256 is"), "{said}");
}
