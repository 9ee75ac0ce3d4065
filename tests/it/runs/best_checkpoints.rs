//! Checkpoints and validations: those of the best ones are kept longer than others, and one may be made while a trainer waits.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use super::small::{begin, checkpoints, last_step, trained};
use crate::program::*;
use crate::support::{eventually, runs_by_default};

/// The best validations by `metric`, as the run recorded them but for the last, which comes behind all steps.
fn best_validations(folder: &Path, metric: &str, most: bool) -> Vec<u64> {
    let mut found: Vec<(u64, f64)> = records(folder, "eval")
        .iter()
        .map(|eval| (eval["step"].as_u64().unwrap(), eval[metric].as_f64().unwrap()))
        .collect();
    found.pop();
    found.sort_by(|(_, one), (_, other)| if most { other.total_cmp(one) } else { one.total_cmp(other) });
    found.into_iter().take(2).map(|(step, _)| step).collect()
}

/// The steps of the checkpoints that `list` calls the best.
fn listed_as_best(folder: &Path) -> Vec<u64> {
    let listed = finish(pstrain(folder).args(["checkpoint", "list", "RUN", "--json"]));
    assert_code(&listed, 0);
    let listed: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    let best = listed.as_array().unwrap().iter().filter(|one| one["judged"]["best"] == true);
    best.map(|one| one["step"].as_u64().unwrap()).collect()
}

/// Behind each validation, at the model that it judged, where nobody has to be waited for.
#[test]
fn checkpoints_of_the_best_validations_are_kept() {
    let keeps = ["train.steps=181", "eval.every_steps=30", "checkpoint.keep=1", "checkpoint.keep_best=2"];
    for (best, metric, most, consistency) in [
        ("eval.best=accuracy", "accuracy", true, "bsp"),
        ("eval.best={metric=\"loss\", mode=\"max\"}", "loss", true, "async"),
        ("eval.best=loss", "loss", false, "bsp"),
    ]
    .into_iter()
    .filter(|_| runs_by_default())
    {
        let folder = tempfile::tempdir().unwrap();
        let consistency = format!("train.consistency={consistency}");
        let settings = [&keeps[..], &[best, &consistency, "checkpoint.every_seconds=600"]].concat();
        trained(folder.path(), &settings);
        let mut best = best_validations(folder.path(), metric, most);
        best.sort_unstable();
        assert_eq!(listed_as_best(folder.path()), best, "{metric}");
        // And the last one, if that is another.
        assert!(checkpoints(folder.path()).len() <= 3);
        let text = stdout(&finish(pstrain(folder.path()).args(["checkpoint", "list", "RUN"])));
        assert_eq!(text.matches(" (best)").count(), 2, "{text}");
    }
}

/// Where the others are ahead, one is made as soon as they can meet.
#[test]
fn under_ssp_the_best_are_kept_some_steps_behind() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "train.consistency=ssp",
        "train.staleness=1",
        "train.steps=121",
        "eval.every_steps=40",
        "eval.best={metric=\"loss\", mode=\"max\"}",
        "checkpoint.every_seconds=600",
        "checkpoint.keep=1",
        "checkpoint.keep_best=1",
    ];
    trained(folder.path(), &settings);
    assert_eq!(checkpoints(folder.path()).len(), 1);
    let [step] = listed_as_best(folder.path())[..] else { panic!("one is the best") };
    assert!((41..80).contains(&step), "{step}");
}

/// What was the best so far is found in the checkpoints.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_run_that_goes_on_keeps_the_best_of_all() {
    let [whole, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let settings = [
        "train.consistency=bsp",
        "eval.every_steps=20",
        "eval.best={metric=\"loss\", mode=\"max\"}",
        "checkpoint.every_steps=60",
        "train.epochs=50",
        "checkpoint.keep=1",
        "checkpoint.keep_best=1",
    ];
    trained(whole.path(), &[&settings[..], &["train.steps=201"]].concat());
    trained(folder.path(), &[&settings[..], &["train.steps=81"]].concat());
    fs::remove_file(folder.path().join("RUN/summary.json")).unwrap();
    let names = |folder: &Path| -> Vec<_> {
        checkpoints(folder).iter().map(|one| one.file_name().unwrap().to_owned()).collect()
    };
    assert_eq!(names(folder.path()), ["step-0000000020", "step-0000000060"]);
    let settings = [&settings[..], &["train.steps=201"]].concat();
    assert_code(&finish(&mut begin(folder.path(), &settings, &["--resume", "RUN"])), 0);
    assert_eq!(names(folder.path()), ["step-0000000020", "step-0000000180"]);
    assert_eq!(names(folder.path()), names(whole.path()));
    assert_eq!(fs::read(model(whole.path())).unwrap(), fs::read(model(folder.path())).unwrap());
}

/// Where trainers go at their own pace one may be in a validation that the first has not come to when a checkpoint is made. A run
/// that goes on has it there again, and all of them come to as many.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_trainer_that_waited_in_a_validation_goes_on_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "train.consistency=async",
        "cluster.world_size=3",
        "train.epochs=100000",
        "train.steps=460",
        "eval.every_steps=400",
        "log.every=1",
        "checkpoint.every_seconds=600",
        "cluster.lost_after_ms=60000",
    ];
    let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    wait_for_metrics(folder.path(), |metrics| last_step(metrics) > 0);
    let first = ranks_of(&launcher)[1];
    kill(first, Signal::SIGSTOP).unwrap();
    eventually("the other trainer's validation", || {
        stdout(&finish(pstrain(folder.path()).args(["doctor", "RUN"]))).contains("validating")
    });
    send_signal(&launcher, Signal::SIGTERM);
    kill(first, Signal::SIGCONT).unwrap();
    assert_code(&wait(launcher), 143);
    let last = checkpoints(folder.path()).pop().unwrap();
    let states: Value = serde_json::from_slice(&fs::read(last.join("state.json")).unwrap()).unwrap();
    let of = |key: &str| [&states[0][key], &states[1][key]];
    assert!(states[0]["steps"].as_u64().unwrap() < 400, "{states}");
    assert_eq!(states[1]["steps"], 400, "{states}");
    assert_eq!(of("awaits_validation"), [false, true], "{states}");
    assert_code(&finish(&mut begin(folder.path(), &settings, &["--resume", "RUN"])), 0);
    // Behind step 400, and at the end.
    let steps = records(folder.path(), "eval").iter().map(|of| of["step"].as_u64()).collect::<Vec<_>>();
    assert_eq!(steps, [Some(400), Some(460)]);
}

/// Trainers that meet for a checkpoint behind the step behind which they have validated: one of them may not be back from there.
#[test]
fn a_validation_that_is_over_is_not_gone_on_in() {
    let [whole, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // The first trainer is told two steps ahead of where they meet.
    let settings = [
        "train.consistency=sequential",
        "cluster.world_size=4",
        "train.steps=25",
        "eval.every_steps=10",
        "checkpoint.every_steps=8",
        "checkpoint.keep=9",
    ];
    trained(whole.path(), &settings);
    let judged = |folder: &Path| -> Vec<Value> {
        let evals = records(folder, "eval");
        evals.iter().map(|of| Value::from(vec![of["step"].clone(), of["loss"].clone()])).collect()
    };
    let at_validation = whole.path().join("RUN/checkpoints/step-0000000010");
    assert!(at_validation.exists(), "{:?}", checkpoints(whole.path()));
    let more = ["--run-dir", "RUN", "--resume", at_validation.to_str().unwrap()];
    assert_code(&finish(&mut begin(folder.path(), &settings, &more)), 0);
    assert_eq!(judged(folder.path()), judged(whole.path())[1..]);
}
