//! Numbers that are not finite: no step takes them into the model unseen, and no run that saves some ends well.

use std::fs;
use std::path::Path;

use pstrain::model;
use tch::Tensor;

use crate::program::*;
use crate::support::regression;

/// A regression of one feature from a weight of 0.01, 24 steps of one sample each by each trainer, whose loss is finite
/// throughout. The gradient of a row of 1e21 is not.
fn job(folder: &Path, place: &str, large: impl Fn(u32) -> bool) {
    let row = |row| if large(row) { "1e21,0\n" } else { "0,0\n" };
    let rows: String = (0..24).map(row).collect();
    let start =
        [("0.weight", Tensor::from_slice(&[0.01f32]).view([1, 1])), ("0.bias", Tensor::from_slice(&[0f32]))];
    let start: Vec<_> = start.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
    model::save(&folder.join("start.safetensors"), &start).unwrap();
    let weights = ("input = [1]", "input = [1]\nweights = \"start.safetensors\"");
    let whole = ("shuffle = false", "shuffle = false\npartition = \"whole\"");
    regression(folder, place, &rows, &[weights, whole]);
}

const HOSTED: &str = "place = \"server\"";
const PULLED: &str = "place = \"server\"\nrun = \"caller\"";
const REPLICAS: &str = "place = \"trainer\"";

#[track_caller]
fn run(folder: &Path, settings: &[&str], code: i32) -> String {
    let output = finish(&mut spawn(folder, Some("job.toml"), settings));
    assert_code(&output, code);
    stderr(&output) + &stdout(&output)
}

/// Also in the last step, after which no loss would show it.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn an_infinite_gradient_of_a_finite_loss_stops_the_job_with_rank_step_and_parameter() {
    for place in [HOSTED, PULLED, REPLICAS] {
        for last in [23, 7] {
            let folder = tempfile::tempdir().unwrap();
            job(folder.path(), place, |row| row == last);
            let said = run(folder.path(), &[], 1);
            let wrong = "module `net`: the gradient of parameter `0.weight` is infinite";
            // Replicas all see the same average, and the first of them to say so ends the job.
            let rank = if place == REPLICAS && said.contains("rank 0, step") { 0 } else { 1 };
            assert!(said.contains(&format!("rank {rank}, step {}: {wrong}", last + 1)), "{place}: {said}");
            assert!(!model(folder.path()).exists());
        }
    }
}

#[test]
fn where_the_job_says_so_such_a_step_is_left_out_and_counted() {
    for place in [HOSTED, PULLED] {
        let folder = tempfile::tempdir().unwrap();
        job(folder.path(), place, |row| [3, 9, 23].contains(&row));
        let said = run(folder.path(), &["train.on_nan=skip"], 0);
        assert!(said.contains("step 10: module `net`: the gradient"), "{said}");
        assert!(said.contains("skipped   3 of 24 steps, whose loss or gradients were not finite"), "{said}");
        assert_eq!(summary(folder.path())["skipped_steps"], 3);
        let trained = model::load(&model(folder.path())).unwrap();
        let weight = &trained.iter().find(|(name, _)| name == "0.weight").unwrap().1;
        assert_eq!(weight.double_value(&[0, 0]), f64::from(0.01f32), "{place}");
    }
}

/// In a round the others' gradients count, and his who has none to give do not.
#[test]
fn a_round_goes_on_without_the_trainer_whose_gradients_are_not_finite() {
    let folder = tempfile::tempdir().unwrap();
    job(folder.path(), HOSTED, |row| row == 5);
    let settings =
        ["cluster.world_size=3", "train.consistency=bsp", "train.on_nan=skip", "data.partition=split"];
    let said = run(folder.path(), &settings, 0);
    assert!(said.contains("skipped   1 of 24 steps"), "{said}");
}

/// The update itself overflows: the gradient is finite, and so was every loss.
#[test]
fn a_model_that_is_no_numbers_is_saved_with_a_warning_and_exit_code_1() {
    for place in [HOSTED, PULLED, REPLICAS] {
        let folder = tempfile::tempdir().unwrap();
        job(folder.path(), place, |_| false);
        fs::write(folder.path().join("rows.csv"), "x,y\n1,1e18\n1,1e18\n").unwrap();
        let said = run(folder.path(), &["train.steps=1", "optimizer.lr=1e30"], 1);
        let warning = "the saved model has numbers that are not finite, in `0.bias` (infinite) and 1 other";
        assert!(said.contains(&format!("error: {warning}")), "{place}: {said}");
        assert!(said.contains(&format!("warning   {warning}")), "{place}: {said}");
        let warnings = summary(folder.path())["warnings"].clone();
        assert!(warnings[0].as_str().is_some_and(|told| told.starts_with(warning)), "{place}: {warnings}");
        assert!(model(folder.path()).exists());
    }
}

/// Also the averages of its weights, the model of the best validation, and what is taken out of a checkpoint.
#[test]
fn whatever_is_saved_of_a_model_that_is_no_numbers_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        // The model is of large numbers after the first step, of none after the second, and the third has no loss.
        "train.steps=3",
        "train.consistency=bsp",
        "train.on_nan=skip",
        // Beyond float32 together, and each of them a number.
        "optimizer.lr=1e25",
        "optimizer.weight_decay=1e25",
        "eval.every_steps=2",
        "eval.best=accuracy",
        "ema.decay=0.5",
        "checkpoint.every_steps=2",
    ];
    let output = finish(&mut spawn(folder.path(), None, &settings));
    assert_code(&output, 1);
    let warnings = summary(folder.path())["warnings"].to_string();
    for saved in ["the saved model", "the model of the best validation", "the saved average of the model"] {
        assert!(warnings.contains(&format!("{saved} has numbers that are not finite, in `")), "{warnings}");
    }
    for (more, saved) in [(None, "the saved model"), (Some("--ema"), "the saved average of the model")] {
        let mut export = pstrain(folder.path());
        export.args(["checkpoint", "export", "RUN", "--out", "model.safetensors", "--overwrite"]).args(more);
        let output = finish(&mut export);
        assert_code(&output, 1);
        let said = stderr(&output);
        assert!(said.contains(&format!("warning: {saved} has numbers that are not finite")), "{said}");
        assert!(folder.path().join("model.safetensors").exists());
    }
}

/// TorchScript masks with infinities, which are no numbers that went wrong.
#[test]
fn infinities_with_which_torchscript_masks_are_no_warning() {
    let folder = tempfile::tempdir().unwrap();
    let masked = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/torchscript/masked.pt");
    fs::copy(masked, folder.path().join("masked.pt")).unwrap();
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/torchscript.toml")).unwrap();
    let settings = ["modules.net.torchscript=masked.pt", "train.steps=20", "checkpoint.every_steps=10"];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    assert!(summary(folder.path()).get("warnings").is_none_or(|warnings| *warnings == serde_json::json!([])));
    let mut export = pstrain(folder.path());
    export.args(["checkpoint", "export", "RUN", "--out", "exported.safetensors"]);
    assert_code(&finish(&mut export), 0);
    for saved in [model(folder.path()), folder.path().join("exported.safetensors")] {
        let tensors = model::load(&saved).unwrap();
        let mask = &tensors.iter().find(|(name, _)| name.ends_with("mask")).unwrap().1;
        assert_eq!(mask.isinf().sum(tch::Kind::Int64).int64_value(&[]), 28, "above the diagonal");
    }
}
