//! Runs that go on from a checkpoint: to the bit what they would have been, in the same placement and, as far as sums in other
//! orders are the same, in another.

use std::fs;

use super::models::Place::{Caller, Hash, Remote, RemoteReplicas, Replicas, Rows, Stages, With};
use super::models::{COLUMNS, CONV, CONV_PLACES, DIAMOND, DLRM, Model, Place, SCRIPT, TOWERS, job_of, run};
use crate::program::*;
use crate::support::runs_by_default;
use pstrain::model;
use tch::Tensor;

/// What saves at step 20 of fifty; a validation or the end of a warm-up may lie on either side.
const SAVED: [&str; 2] = ["checkpoint.every_steps=20", "checkpoint.keep=9"];

/// Trains, and goes on in another folder from a checkpoint on the way: with the places `then`. Gives both folders.
fn resumed(model: &Model, places: &[Place], then: &[Place], settings: &[&str]) -> [tempfile::TempDir; 2] {
    let settings = [&SAVED, settings].concat();
    let whole = run(model, places, &settings);
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("job.toml"), job_of(model, then)).unwrap();
    let from = whole.path().join("RUN/checkpoints/step-0000000020");
    let more = ["--run-dir", "RUN", "--resume", from.to_str().unwrap()];
    assert_code(&finish(&mut spawn_with(other.path(), Some("job.toml"), &settings, &more)), 0);
    [whole, other]
}

#[track_caller]
fn assert_goes_on(model: &Model, places: &[Place], settings: &[&str]) {
    if !runs_by_default() {
        return;
    }
    let [whole, other] = resumed(model, places, places, settings);
    for name in ["model.safetensors", "model-ema.safetensors"] {
        let files = [&whole, &other].map(|folder| folder.path().join("RUN").join(name));
        // An average of a row of a cut table is brought up to date when a checkpoint is made, and the disk decides when the one of
        // step 40 is: its last bits differ.
        let of_rows = name != "model.safetensors" && places.iter().any(|place| matches!(place, Rows | Hash));
        if of_rows && files[0].exists() {
            assert_near(&files.map(|file| model::load(&file).unwrap()), 1e-6, (model, places, places));
            continue;
        }
        let [before, after] = files.map(|file| fs::read(file).ok());
        assert!(before == after, "{}, {places:?}, {settings:?}: {name} is another", model.name);
    }
    let kept = fs::read_dir(other.path().join("RUN/checkpoints")).unwrap().count();
    assert_eq!(kept, 1, "that of step 40");
}

const ADAM: [&str; 3] = [
    "optimizer={type=\"adamw\", lr=0.01}",
    "ema.decay=0.9",
    "optimizer.schedule={type=\"cosine\", warmup_steps=25}",
];

#[test]
fn a_dlrm_goes_on_as_it_would_have_under_every_placement() {
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Remote, Replicas],
        [Caller, Remote, Caller],
        [Remote, Caller, Replicas],
        [Remote, With("bottom"), Stages],
        [Replicas, Remote, RemoteReplicas],
    ] {
        assert_goes_on(&DLRM, &places, &ADAM);
    }
    // Tables that are cut, whose optimizers update rows.
    let rows = ["optimizer={type=\"adagrad\", lr=0.05}", "optimizer.clip_norm=0.15"];
    for places in [[Replicas, Rows, Replicas], [Caller, Hash, Caller], [Remote, Hash, Remote]] {
        assert_goes_on(&DLRM, &places, &rows);
    }
    assert_goes_on(&COLUMNS, &[Replicas, Rows, Remote], &["ema.decay=0.9"]);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn other_models_go_on_as_they_would_have() {
    let momentum = ["optimizer={type=\"sgd\", lr=0.1, momentum=0.9}"];
    assert_goes_on(&TOWERS, &[Stages, Remote, With("item")], &momentum);
    assert_goes_on(&DIAMOND, &[Remote, Caller, Remote, Replicas], &momentum);
    let after = [momentum[0], "replicas.average=all_reduce"];
    assert_goes_on(&SCRIPT, &[Replicas, RemoteReplicas], &after);
    let scaled = ["precision.autocast=fp16", "precision.init_scale=16777216", "precision.growth_interval=7"];
    assert_goes_on(&TOWERS, &[Remote, Caller, Replicas], &scaled);
    for places in CONV_PLACES {
        // With two of OpenMP's threads a gradient of a convolution has another last bit in the first step, as if it were the first
        // of a run; with one it has not. The weights differ by less than 1e-7 then.
        match places == [Replicas, Remote] {
            true => moved(&CONV, &places, &places, &momentum),
            false => assert_goes_on(&CONV, &places, &momentum),
        }
    }
}

/// What a plateau has lowered, and how long nothing has been better, are found again.
#[test]
fn what_validations_have_decided_goes_on() {
    let test = "data.test={file=\"graph.csv\", features=[\"id0\", \"id1\", \"id2\", \"id3\"], \
                feature_dtype=\"int64\", target=[\"x0\", \"x1\", \"x2\", \"x3\"]}";
    let plateau =
        "optimizer.schedule={type=\"plateau\", metric=\"loss\", patience=1, gamma=0.5, threshold=0.1}";
    let settings = [test, plateau, "eval.every_steps=4", "eval.best=loss"];
    assert_goes_on(&DLRM, &[Remote, Remote, Replicas], &settings);
}

/// The same within what sums in other orders leave.
fn moved(model: &Model, before: &[Place], then: &[Place], settings: &[&str]) {
    if !runs_by_default() {
        return;
    }
    let trained = resumed(model, before, then, settings)
        .map(|folder| model::load(&crate::program::model(folder.path())).unwrap());
    assert_near(&trained, 1e-5, (model, before, then));
}

#[track_caller]
fn assert_near(
    trained: &[Vec<(String, Tensor)>; 2],
    most: f64,
    (model, before, then): (&Model, &[Place], &[Place]),
) {
    let [whole, other] = trained;
    assert_eq!(whole.len(), other.len());
    for ((name, one), (_, other)) in whole.iter().zip(other) {
        let difference = (one - other).abs().max().double_value(&[]);
        assert!(difference <= most, "{}, {before:?} to {then:?}: {name} differs by {difference}", model.name);
    }
}

/// From one cut and placement to another.
#[test]
fn a_run_goes_on_in_another_placement() {
    let momentum = ["optimizer={type=\"sgd\", lr=0.1, momentum=0.9}"];
    moved(&TOWERS, &[Remote, Remote, Remote], &[Replicas, Replicas, Replicas], &momentum);
    moved(&TOWERS, &[Replicas, Replicas, Replicas], &[Caller, Stages, Remote], &momentum);
    moved(&TOWERS, &[Caller, Stages, RemoteReplicas], &[Remote, Caller, With("item")], &ADAM[..1]);
    moved(&CONV, &[Stages, Caller], &[Replicas, Replicas], &momentum);
}
