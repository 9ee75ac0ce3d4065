//! Where trainers take no steps together, what is clipped, left out or scaled in a step is by the gradients of its trainer alone.
//! Real processes.

use std::fs;
use std::path::Path;

use super::models::Place::{self, Caller, Hash, Remote, Rows, Stages};
use super::models::{self, DLRM, Model, SCALED, TOWERS, data, job_of};
use super::placements::{CLOSE, assert_are, farthest};
use crate::program::*;
use crate::support::runs_by_default;
use pstrain::model;
use tch::Tensor;

/// Samples of a trainer's batch, where there are two.
const EACH: usize = 8;

/// A job whose samples are those of two trainers in turn, a batch of each.
fn job_in(folder: &Path, model: &Model, places: &[Place]) -> String {
    for file in ["graph.csv", "graph_columns.csv"] {
        let text = fs::read_to_string(data(file)).unwrap();
        let (head, samples) = text.split_once('\n').unwrap();
        let samples: Vec<&str> = samples.lines().collect();
        let (first, second) = samples.split_at(samples.len() / 2);
        let in_turn = first.chunks(EACH).zip(second.chunks(EACH)).flat_map(|(first, second)| [first, second]);
        let lines: Vec<&str> = [head].into_iter().chain(in_turn.flatten().copied()).collect();
        fs::write(folder.join(file), lines.join("\n")).unwrap();
    }
    let job = job_of(model, places).replace(&format!("{:?}", data("")), &format!("{folder:?}"));
    job.replace("trainer = 2\n", "trainer = 1\n").replace("fractions = [0.5, 0.5]\n", "")
}

fn run(folder: &Path, job: &str, settings: &[&str]) -> Vec<(String, Tensor)> {
    fs::write(folder.join("job.toml"), job).unwrap();
    assert_code(&finish(&mut spawn(folder, Some("job.toml"), settings)), 0);
    model::load(&crate::program::model(folder)).unwrap()
}

const IN_NO_ROUNDS: [&str; 4] = ["async", "ssp", "sequential", "hogwild"];
/// Is of `ssp`.
const STALENESS: &str = "train.staleness=4";

/// One trainer's steps are those of one process, however it would go with others.
fn each_way(mut assert: impl FnMut(&Model, &[Place], &[&str])) {
    for consistency in IN_NO_ROUNDS {
        let mut assert = |model: &Model, places: &[Place]| {
            let set = format!("train.consistency={consistency}");
            let settings = [&set, STALENESS];
            if runs_by_default() {
                assert(model, places, if consistency == "ssp" { &settings } else { &settings[..1] });
            }
        };
        assert(&DLRM, &[Remote, Remote, Remote]);
        assert(&TOWERS, &[Remote, Caller, Remote]);
        assert(&TOWERS, &[Caller, Stages, Remote]);
        // Without locks no rows are made.
        if consistency != "hogwild" {
            assert(&DLRM, &[Remote, Rows, Caller]);
            assert(&DLRM, &[Caller, Hash, Remote]);
        }
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn one_trainer_clips_as_one_process_under_every_consistency() {
    each_way(|model, places, consistency| {
        let folder = tempfile::tempdir().unwrap();
        let tuned = models::tuned(model);
        let tuned: Vec<&str> = tuned.iter().map(String::as_str).collect();
        let settings = [&tuned[..], consistency, &["train.batch_size=16"]].concat();
        let trained = run(folder.path(), &job_in(folder.path(), model, places), &settings);
        assert_are(model, "_tuned", places, &settings, &trained);
    });
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn one_trainer_scales_as_torchs_grad_scaler_under_every_consistency() {
    each_way(|model, places, consistency| {
        let folder = tempfile::tempdir().unwrap();
        // As there each half goes its own way; here it counts half from the beginning, and overflows at twice the scale.
        let halves = ["train.accumulate=2", "precision.init_scale=33554432"];
        let settings = [&SCALED[..], consistency, &halves].concat();
        let trained = run(folder.path(), &job_in(folder.path(), model, places), &settings);
        let (name, off) = farthest(model, "_fp16", places, &trained);
        let (_, of_float32) = farthest(model, "", places, &trained);
        assert!(
            off <= CLOSE.max(of_float32 / 1000.0),
            "{}, {places:?}, {consistency:?}, {name}: {off}",
            model.name
        );
        assert!(of_float32 > 20.0 * CLOSE, "{}, {places:?}: {of_float32}", model.name);
    });
}

/// Two in turns are one that takes the steps of both.
#[test]
fn two_trainers_in_turns_clip_each_by_its_own_norm() {
    for (model, places) in [
        (&DLRM, &[Remote, Remote, Remote]),
        (&DLRM, &[Caller, Hash, Remote]),
        (&TOWERS, &[Remote, Caller, Remote]),
        (&TOWERS, &[Caller, Caller, Caller]),
    ]
    .into_iter()
    .filter(|_| runs_by_default())
    {
        let [two, one] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let clipped = "optimizer.clip_norm=0.15";
        let of_two = run(two.path(), &job_of(model, places), &[clipped, "train.consistency=sequential"]);
        let as_one = job_in(one.path(), model, places);
        let of_one = run(one.path(), &as_one, &[clipped, "train.consistency=sequential", "train.steps=100"]);
        assert_eq!(of_two.len(), of_one.len());
        for (name, value) in &of_two {
            let (_, other) = of_one.iter().find(|(other, _)| other == name).unwrap();
            let off = (value - other).abs().max().double_value(&[]);
            assert!(off <= CLOSE, "{}, {places:?}, {name}: {off}", model.name);
        }
    }
}
