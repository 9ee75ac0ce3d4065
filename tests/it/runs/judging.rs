//! Validation by all trainers, what its figures decide, and what is done with the model of a run afterwards. Real processes.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::shipped_jobs::shipped;
use super::small::SMALL;
use crate::program::*;
use crate::support::runs_by_default;

/// Three trainers of the built-in digits.
const FOUR: [&str; 2] = ["cluster.world_size=4", "train.epochs=3"];

/// Whose parts of the data are of different sizes.
fn train_unevenly(folder: &Path, settings: &[&str]) -> Output {
    let job = include_str!("../../../jobs/digits_ps.toml");
    let partition = job.lines().find(|line| line.starts_with("partition =")).unwrap();
    std::fs::write(folder.join("job.toml"), job.replace(partition, "fractions = [0.5, 0.3, 0.1]")).unwrap();
    let all: Vec<&str> = FOUR.iter().chain(settings).copied().collect();
    finish(&mut spawn(folder, Some("job.toml"), &all))
}

fn train(folder: &Path, settings: &[&str]) -> Output {
    finish(&mut spawn(folder, None, &[&FOUR[..], &[SMALL], settings].concat()))
}

/// `pstrain eval` or another, of the run of `folder`. What it records in a folder for temporary files is gone at its end; the
/// built-in data set stays there.
fn use_model(folder: &Path, args: &[&str]) -> Output {
    let (name, options) = args.split_first().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let mut command = pstrain(folder);
    command.arg(name).arg("RUN").args(["--master-port", "0"]).args(options).env("TMPDIR", temporary.path());
    let output = finish(&mut command);
    let data_set = format!("pstrain-{}", nix::unistd::getuid());
    let left: Vec<String> = names_in(temporary.path()).into_iter().filter(|name| *name != data_set).collect();
    assert_eq!(left, [""; 0], "{args:?}");
    output
}

pub fn evaluated(folder: &Path, options: &[&str]) -> Value {
    let args: Vec<&str> = ["eval", "--json"].iter().chain(options).copied().collect();
    let output = use_model(folder, &args);
    assert_code(&output, 0);
    serde_json::from_str(&stdout(&output)).unwrap()
}

const METRICS: &str = "eval.metrics=[{type=\"f1\", average=\"macro\"}, {type=\"top_k\", k=3}, \"perplexity\", \"confusion_matrix\"]";

/// With running statistics, which trainers and hosts have of their own.
const NORM: &str = "modules.net.layers=[{type=\"conv2d\", in_channels=1, out_channels=8, kernel_size=3, padding=1}, \
                    {type=\"batch_norm2d\", num_features=8}, \"relu\", \"flatten\", \
                    {type=\"linear\", in_features=512, out_features=10}]";

/// How a model is placed is what it is judged with, again.
#[test]
fn eval_repeats_the_last_validation_of_every_placement() {
    let replicas = ["modules.net.place=\"trainer\"", "roles={trainer=\"rest\"}"];
    let caller = ["modules.net.run=\"caller\""];
    let hosts = ["roles={server=2, trainer=\"rest\"}"];
    for placement in [&[][..], &replicas, &caller, &hosts].into_iter().filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        let settings: Vec<&str> = placement
            .iter()
            .copied()
            .chain([NORM, METRICS, "eval.every_steps=20", "train.consistency=\"bsp\""])
            .collect();
        assert_code(&train(folder.path(), &settings), 0);
        let last = summary(folder.path())["eval"].clone();
        assert_eq!(evaluated(folder.path(), &[]), last, "{placement:?}");
        let records = records(folder.path(), "eval");
        assert_eq!(records.last().unwrap()["loss"], last["loss"], "{placement:?}");
        assert!(records.len() > 1, "{placement:?}: {}", records.len());
        // Alone, other threads share the sums.
        let alone = evaluated(folder.path(), &["--one-rank"]);
        let near = |key: &str| {
            let (alone, last) = (alone[key].as_f64().unwrap(), last[key].as_f64().unwrap());
            assert!((alone - last).abs() < 1e-6, "{placement:?}, {key}: {alone} and {last}");
        };
        ["loss", "accuracy", "f1_macro", "top_3", "perplexity"].into_iter().for_each(near);
        assert_eq!(alone["confusion_matrix"], last["confusion_matrix"]);
        let [told, alone] = [("told", None), ("alone", Some("--one-rank"))].map(|(name, option)| {
            let file = format!("{name}.safetensors");
            let args: Vec<&str> = ["predict", "--out", &file].into_iter().chain(option).collect();
            assert_code(&use_model(folder.path(), &args), 0);
            let tensors = pstrain::model::load(&folder.path().join(file)).unwrap();
            let [(_, outputs)] = &tensors[..] else { panic!("{placement:?}: {tensors:?}") };
            outputs.shallow_clone()
        });
        assert_eq!(told.size(), [297, 10], "{placement:?}");
        let off = (&told - &alone).abs().max().double_value(&[]);
        assert!(off < 1e-6 * told.abs().max().double_value(&[]).max(1.0), "{placement:?}: {off}");
    }
}

/// Averages of the weights: judged in their place, kept where a figure of theirs decides, and used afterwards.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn eval_repeats_the_figures_of_averages_in_their_placement() {
    let replicas = ["modules.net.place=\"trainer\"", "roles={trainer=\"rest\"}"];
    let caller = ["modules.net.run=\"caller\""];
    for placement in [&[][..], &replicas, &caller].into_iter().filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        let averages = [
            NORM,
            "ema.decay=0.9",
            "eval.best=\"ema.accuracy\"",
            "eval.every_steps=20",
            "train.consistency=\"bsp\"",
        ];
        let settings: Vec<&str> = placement.iter().copied().chain(averages).collect();
        assert_code(&train(folder.path(), &settings), 0);
        let last = summary(folder.path())["eval"].clone();
        let again = evaluated(folder.path(), &["--ema"]);
        assert_ne!(last["loss"], last["ema.loss"], "{placement:?}");
        for key in ["loss", "accuracy"] {
            assert_eq!(again[key], last[format!("ema.{key}")], "{placement:?}, {key}");
            assert_eq!(evaluated(folder.path(), &[])[key], last[key], "{placement:?}, {key}");
        }
        let best = evaluated(folder.path(), &["--best"]);
        let records = records(folder.path(), "eval");
        let kept = records.iter().rfind(|record| record["best"] == true).unwrap();
        assert_eq!(best["loss"], kept["ema.loss"], "{placement:?}");
    }
}

/// The figures do not depend on who has computed them: of two runs of one trainer and of three that learn nothing.
#[test]
fn three_trainers_find_what_one_finds() {
    let figures = |world: &str| {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            [world, "optimizer.lr=1e-30", "train.epochs=1", "train.steps=1", METRICS, "eval.batch_size=7"];
        assert_code(&train(folder.path(), &settings), 0);
        summary(folder.path())["eval"].clone()
    };
    let (one, three) = (figures("cluster.world_size=2"), figures("cluster.world_size=4"));
    assert_eq!(one["confusion_matrix"], three["confusion_matrix"]);
    for key in ["samples", "targets", "accuracy", "f1_macro", "top_3"] {
        assert_eq!(one[key], three[key], "{key}");
    }
    let far = |key: &str| (one[key].as_f64().unwrap() - three[key].as_f64().unwrap()).abs();
    assert!(far("loss") < 1e-6 && far("perplexity") < 1e-5, "{one} and {three}");
}

#[test]
fn the_best_model_is_kept_beside_the_last() {
    let folder = tempfile::tempdir().unwrap();
    // Worse with each epoch: the first is the best.
    let settings = ["eval.every_epochs=1", "eval.best={metric=\"loss\", mode=\"max\"}"];
    assert_code(&train(folder.path(), &settings), 0);
    let (told, records) = (summary(folder.path()), records(folder.path(), "eval"));
    let best: Vec<bool> = records.iter().map(|record| record["best"] == true).collect();
    assert_eq!(best, [true, false, false]);
    assert_eq!(told["best"]["loss"], records[0]["loss"]);
    assert_eq!(told["best"]["epoch"], 1);
    assert_eq!(evaluated(folder.path(), &["--best"])["loss"], records[0]["loss"]);
    assert_eq!(evaluated(folder.path(), &[])["loss"], records[2]["loss"]);
}

#[test]
fn training_ends_early_for_all_trainers() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["eval.every_steps=10", "eval.stop={patience=2, min_delta=100.0}"];
    let output = train_unevenly(folder.path(), &settings);
    assert_code(&output, 0);
    // The first figure is better than none, the two behind it are not by so much.
    assert_eq!(records(folder.path(), "eval").len(), 3);
    // One of the trainers has 15 steps in all.
    let told = summary(folder.path());
    assert_eq!(told["steps"], 30 + 30 + 15);
    let stopped = &told["stopped"];
    assert_eq!(
        (&stopped["step"], &stopped["metric"], &stopped["validations"]),
        (&30.into(), &"loss".into(), &2.into())
    );
    assert_eq!(stopped["best"], records(folder.path(), "eval")[0]["loss"]);
    let table = stdout(&output);
    assert!(
        table.contains("\nstopped   after step 30 of epoch ")
            && table.contains(" for 2 validations (eval.stop)\n"),
        "{table}"
    );
    // The last step of each is logged, though it was to be another.
    for (rank, last) in [(1, 30), (2, 30), (3, 15)] {
        let steps = records(folder.path(), "step");
        let logged =
            steps.iter().filter(|step| step["rank"] == rank).map(|step| step["step"].as_u64().unwrap());
        assert_eq!(logged.max(), Some(last), "rank {rank}");
    }
    assert_eq!(evaluated(folder.path(), &[]), summary(folder.path())["eval"]);
}

/// Those with less data wait for the others where these are judged.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn trainers_with_less_data_take_part_in_every_validation() {
    for (consistency, every, expected) in [
        ("async", "eval.every_steps=10", 8),
        ("ssp", "eval.every_steps=10", 8),
        ("async", "eval.every_epochs=1", 3),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let consistency = format!("train.consistency=\"{consistency}\"");
        let staleness: &[&str] = if consistency.contains("ssp") { &["train.staleness=3"] } else { &[] };
        let settings = [consistency.as_str(), every];
        let settings: Vec<&str> = settings.iter().chain(staleness).copied().collect();
        assert_code(&train_unevenly(folder.path(), &settings), 0);
        let found = records(folder.path(), "eval").len();
        assert_eq!(found, expected, "{settings:?}");
    }
}

/// Those who may not go ahead of the others would wait for one that waits for them.
#[test]
fn epochs_of_different_lengths_are_no_place_to_meet_for_trainers_that_keep_together() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.consistency=\"ssp\"", "train.staleness=3", "eval.every_epochs=1"];
    let output = train_unevenly(folder.path(), &settings);
    assert_code(&output, 2);
    // Each trainer finds it out, so their lines may stand between one another.
    let told = stderr(&output);
    let lines: Vec<(&str, &str)> = told.lines().filter_map(|line| line.split_once("] ")).collect();
    let (first, _) = lines.iter().find(|(_, said)| said.contains("error")).unwrap();
    let said: Vec<&str> = lines
        .iter()
        .filter(|(rank, said)| rank == first && (said.contains("error") || said.contains("hint")))
        .map(|(_, said)| *said)
        .take(2)
        .collect();
    insta::assert_snapshot!(said.join("\n"), @r#"
    error: `eval.every_epochs`: the trainers' epochs have from 5 to 24 steps, and under ssp with staleness 3 those with fewer would wait in the validation for those with more, which wait for them
      hint: write eval.every_steps, which all of them come to together
    "#);
}

#[test]
fn a_plateau_lowers_the_rate_of_all_trainers() {
    let folder = tempfile::tempdir().unwrap();
    let plateau = "optimizer.schedule={type=\"plateau\", patience=0, threshold=1000.0, threshold_mode=\"abs\", gamma=0.5}";
    assert_code(&train(folder.path(), &[plateau, "eval.every_epochs=1", "log.every=1"]), 0);
    let steps = records(folder.path(), "step");
    for rank in 1..=3 {
        let of_rank = steps.iter().filter(|step| step["rank"] == rank);
        let mut rates: Vec<f64> = of_rank.map(|step| step["lr"].as_f64().unwrap()).collect();
        rates.dedup();
        // The first validation is better than none; the second, behind which the last epoch comes, is not.
        assert_eq!(rates.len(), 2, "rank {rank}: {rates:?}");
        assert!((rates[1] / rates[0] - 0.5).abs() < 1e-12, "{rates:?}");
    }
}

/// A table that was not there in training: a third of the rows, the other way round.
#[test]
fn other_data_are_judged_and_predicted_row_by_row() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data.root={:?}", shipped("data"));
    let trained = [data.as_str(), "train.epochs=2"];
    assert_code(&finish(&mut spawn(folder.path(), Some(&shipped("regression.toml")), &trained)), 0);
    let predict = |file: &str, options: &[&str]| {
        let args = [&["predict", "--out", file, "--field", "rent", "--field", "district"], options].concat();
        assert_code(&use_model(folder.path(), &args), 0);
        let rows = std::fs::read_to_string(folder.path().join(file)).unwrap();
        rows.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let all = predict("all.csv", &[]);
    let text = std::fs::read_to_string(shipped("data/rents_test.csv")).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let some: Vec<&str> = [head].into_iter().chain(rows.lines().rev().step_by(3)).collect();
    std::fs::write(folder.path().join("some.csv"), some.join("\n") + "\n").unwrap();
    let root = format!("data.root={:?}", folder.path());
    let other = ["--set", root.as_str(), "--set", "data.test.file=\"some.csv\""];
    let told = predict("some_told.csv", &other);
    let wanted: Vec<String> = all.iter().rev().step_by(3).cloned().collect();
    assert_eq!(told.len(), wanted.len());
    let numbers = |row: &str| row.split(',').map(|cell| cell.parse::<f64>().unwrap()).collect::<Vec<_>>();
    let squares: Vec<f64> = told
        .iter()
        .zip(&wanted)
        .map(|(told, wanted)| {
            let (told, wanted) = (numbers(told), numbers(wanted));
            assert!(told.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{told:?}, {wanted:?}");
            (told[0] - told[2]).powi(2)
        })
        .collect();
    let rmse = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
    let judged = evaluated(folder.path(), &other);
    assert!((judged["rmse"].as_f64().unwrap() - rmse).abs() < 1e-6, "{rmse} and {judged}");
    assert_eq!(judged["samples"], told.len());
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn predictions_are_the_same_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&train(folder.path(), &["train.steps=3"]), 0);
    let predict = |file: &str, options: &[&str]| {
        let args: Vec<&str> = ["predict", "--out", file].iter().chain(options).copied().collect();
        assert_code(&use_model(folder.path(), &args), 0);
        std::fs::read(folder.path().join(file)).unwrap()
    };
    let csv = String::from_utf8(predict("p.csv", &["--field", "labels"])).unwrap();
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((head.len(), head[0], head[1], head[10]), (11, "labels", "net_0", "net_9"));
    let rows: Vec<Vec<f32>> =
        lines.map(|line| line.split(',').map(|number| number.parse().unwrap()).collect()).collect();
    assert_eq!(rows.len(), 297);
    let right = rows.iter().filter(|row| {
        let best = (1..11).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        best - 1 == row[0] as usize
    });
    let accuracy = summary(folder.path())["eval"]["accuracy"].as_f64().unwrap();
    assert_eq!(right.count(), (accuracy * 297.0).round() as usize);
    let json = String::from_utf8(predict("p.jsonl", &["--field", "labels"])).unwrap();
    for (line, row) in json.lines().zip(&rows) {
        let line: Value = serde_json::from_str(line).unwrap();
        let of_net = line["net"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32);
        assert_eq!(line["labels"].as_f64().unwrap() as f32, row[0]);
        assert!(of_net.eq(row[1..].iter().copied()));
    }
    let npy = predict("p.npy", &[]);
    let numbers =
        npy[npy.len() - 297 * 40..].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    assert!(numbers.eq(rows.iter().flat_map(|row| row[1..].iter().copied())));
    let tensors = predict("p.safetensors", &["--field", "labels"]);
    assert!(!tensors.is_empty());
    let tensors = pstrain::model::load(&folder.path().join("p.safetensors")).unwrap();
    let shapes: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.size())).collect();
    assert!(
        shapes.contains(&("labels", vec![297])) && shapes.contains(&("net", vec![297, 10])),
        "{shapes:?}"
    );
}

/// What a run went by in training decides nothing when its model is used.
#[test]
fn eval_measures_other_figures_than_those_that_have_decided() {
    let folder = tempfile::tempdir().unwrap();
    let decides = "eval={ every_epochs = 1, metrics = [{ type = \"f1\", average = \"macro\", name = \"mine\" }], \
                   best = { metric = \"mine\", mode = \"max\" }, stop = { metric = \"mine\", mode = \"max\" } }";
    let plateau = "optimizer.schedule={ type = \"plateau\", metric = \"mine\", mode = \"max\" }";
    assert_code(&train(folder.path(), &[decides, plateau, "train.epochs=1"]), 0);
    let other = evaluated(folder.path(), &["--set", "eval.metrics=[{ type = \"top_k\", k = 3 }]"]);
    assert_eq!(other["loss"], summary(folder.path())["eval"]["loss"]);
    assert!(other["top_3"].is_f64() && other["mine"].is_null(), "{other}");
    for drop in ["eval.best=mine", "eval.every_epochs=0"] {
        assert_eq!(evaluated(folder.path(), &["--set", drop])["loss"], other["loss"], "{drop}");
    }
}

#[test]
fn mistakes_with_a_run_are_told() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&train(folder.path(), &["train.steps=3"]), 0);
    let told = |args: &[&str]| {
        let output = use_model(folder.path(), args);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output)
            .lines()
            .filter(|line| line.contains("error") || line.contains("hint"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    insta::assert_snapshot!(told(&["eval", "--best"]), @r"
    error: `RUN/model-best.safetensors` is not there
      hint: a job with eval.best keeps it; without --best the last model is taken
    ");
    insta::assert_snapshot!(told(&["predict", "--out", "p.txt"]), @r"
    error: `p.txt` says no format by its ending
      hint: name a file that ends in .csv, .jsonl, .npy or .safetensors
    ");
    insta::assert_snapshot!(told(&["predict", "--out", "p.csv", "--field", "label"]), @r#"
    [trainer1] error: the test data: `--field label` = "label" is not a field of the data
    [trainer1]   hint: the fields are `images`, `labels`
    "#);
    insta::assert_snapshot!(told(&["eval", "--one-rank", "--set", "eval.metrics=[\"auc\"]"]), @r#"
    error: metric `auc`: takes one score for each target of 0 and 1 (one shape, sizes of 1 aside), or scores of two classes, and a sample has the output [10] and the target [] of int64
      hint: for more classes there are accuracy, top_k, and f1 with average = "macro"
    "#);
    insta::assert_snapshot!(told(&["eval", "--set", "optimizer.type=\"sdg\""]), @r#"
    error: job `RUN/job.toml`: `optimizer.type` = "sdg" is not one of sgd, adam, adamw, adagrad, adadelta, adamax, rmsprop, rprop, nadam, radam or lion
      hint: did you mean "sgd"?
    "#);
    std::fs::write(folder.path().join("p.csv"), "").unwrap();
    insta::assert_snapshot!(told(&["predict", "--out", "p.csv"]), @r"
    error: `p.csv` is there already
      hint: --overwrite writes it anew
    ");
    std::fs::remove_file(folder.path().join("RUN/job.toml")).unwrap();
    insta::assert_snapshot!(told(&["eval"]), @r"
    error: `RUN` is not a run folder: it has no job.toml
      hint: `pstrain spawn` says at its end which folder a run has, for example runs/NAME-TIME
    ");
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn the_rents_of_the_shipped_table_are_learnt_and_judged_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data.root={:?}", shipped("data"));
    let settings = [data.as_str(), "train.epochs=12"];
    assert_code(&finish(&mut spawn(folder.path(), Some(&shipped("regression.toml")), &settings)), 0);
    let told = summary(folder.path());
    let (best, last) = (&told["best"], &told["eval"]);
    assert!(best["r2"].as_f64().unwrap() > 0.9, "{best}");
    assert!(best["rmse"].as_f64() <= last["rmse"].as_f64(), "{told}");
    assert_eq!(evaluated(folder.path(), &[]), *last);
    assert_eq!(evaluated(folder.path(), &["--best"])["rmse"], best["rmse"]);
    let args = ["predict", "--best", "--one-rank", "--out", "p.csv", "--field", "rent"];
    assert_code(&use_model(folder.path(), &args), 0);
    let rows = std::fs::read_to_string(folder.path().join("p.csv")).unwrap();
    let squares: Vec<f64> = rows
        .lines()
        .skip(1)
        .map(|row| {
            let (rent, said) = row.split_once(',').unwrap();
            (rent.parse::<f64>().unwrap() - said.parse::<f64>().unwrap()).powi(2)
        })
        .collect();
    let rmse = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
    assert!((rmse - best["rmse"].as_f64().unwrap()).abs() < 1e-6, "{rmse} and {best}");
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn finetuning_leaves_what_is_frozen_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&finish(&mut spawn(folder.path(), None, &["train.steps=10"])), 0);
    let start = folder.path().join("start.safetensors");
    std::fs::copy(model(folder.path()), &start).unwrap();
    let weights = format!("modules.net.weights={start:?}");
    let settings = [weights.as_str(), "train.steps=12"];
    assert_code(&finish(&mut spawn(folder.path(), Some(&shipped("finetune.toml")), &settings)), 0);
    let (before, after) =
        (pstrain::model::load(&start).unwrap(), pstrain::model::load(&model(folder.path())).unwrap());
    assert_eq!(before.len(), after.len());
    assert_eq!(evaluated(folder.path(), &[]), summary(folder.path())["eval"]);
    for (name, value) in &before {
        let (_, now) = after.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!(value.equal(now), name.starts_with("conv"), "{name}");
    }
}

/// A plug-in that measures what `mae` does.
fn own_metric(rest: &str) -> String {
    let file = format!("{}/plugins/dist/testing_metric.wasm", env!("CARGO_MANIFEST_DIR"));
    format!("{{plugin={file:?}, name=\"own\"{rest}}}")
}

const LINE: &str = r#"
name = "line"
roles = { server = 1, trainer = "rest" }
[modules.net]
place = "server"
input = [4]
layers = [{ type = "linear", in_features = 4, out_features = 1 }]
[data]
plugin = "synthetic"
train = { kind = "regression", samples = 200, shape = [4] }
test = { kind = "regression", samples = 97, shape = [4] }
[loss]
plugin = "mse"
[optimizer]
type = "sgd"
lr = 0.05
[train]
epochs = 3
batch_size = 16
"#;

fn train_line(folder: &Path, settings: &[&str]) -> Output {
    std::fs::write(folder.join("job.toml"), LINE).unwrap();
    let all: Vec<&str> = ["eval.batch_size=7"].iter().chain(settings).copied().collect();
    finish(&mut spawn(folder, Some("job.toml"), &all))
}

#[test]
fn a_metric_of_ones_own_is_the_built_in_one_for_one_trainer_and_for_three() {
    for world in ["cluster.world_size=2", "cluster.world_size=4"] {
        let folder = tempfile::tempdir().unwrap();
        let metrics = format!("eval.metrics=[\"mae\", {}]", own_metric(""));
        assert_code(&train_line(folder.path(), &[world, &metrics]), 0);
        let last = summary(folder.path())["eval"].clone();
        let (own, built_in) = (last["own"].as_f64().unwrap(), last["mae"].as_f64().unwrap());
        assert!((own - built_in).abs() < 1e-12, "{world}: {own} and {built_in}");
        assert_eq!(evaluated(folder.path(), &[])["own"], last["own"], "{world}");
    }
}

#[test]
fn what_a_metric_of_ones_own_tells_decides() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = format!("eval.metrics=[{}]", own_metric(", params={several=true}, mode=\"min\""));
    let settings = [
        "cluster.world_size=4",
        "eval.every_epochs=1",
        metrics.as_str(),
        "eval.best=own.largest",
        "eval.stop={metric=\"own.mean\", patience=1, min_delta=100.0}",
    ];
    assert_code(&train_line(folder.path(), &settings), 0);
    let (told, records) = (summary(folder.path()), records(folder.path(), "eval"));
    // No figure is better by so much, so the second validation is the last.
    assert_eq!(records.len(), 2);
    let largest = |record: &Value| record["own.largest"].as_f64().unwrap();
    let best = largest(&records[0]).min(largest(&records[1]));
    assert_eq!(largest(&told["best"]), best, "{told}");
    assert_eq!(largest(&evaluated(folder.path(), &["--best"])), best);
}

#[test]
fn a_figure_that_is_no_number_is_null_and_never_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = format!("eval.metrics=[{}]", own_metric(", params={sin=\"nan\"}, mode=\"max\""));
    let plateau = "optimizer.schedule={type=\"plateau\", metric=\"own\", patience=0, gamma=0.5}";
    let settings = [
        "cluster.world_size=2",
        "eval.every_epochs=1",
        metrics.as_str(),
        "eval.best=own",
        plateau,
        "log.every=1",
    ];
    assert_code(&train_line(folder.path(), &settings), 0);
    let rates: Vec<f64> =
        records(folder.path(), "step").iter().map(|step| step["lr"].as_f64().unwrap()).collect();
    assert_eq!((rates[0], *rates.last().unwrap()), (0.05, 0.0125));
    assert!(records(folder.path(), "eval").iter().all(|record| record["own"].is_null()));
    assert!(!folder.path().join("RUN/model-best.safetensors").exists());
}

#[test]
fn a_metric_that_cannot_merge_ends_the_run_with_its_name_and_whose_state_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = format!("eval.metrics=[{}]", own_metric(", params={sin=\"merge-panics\"}"));
    let output = train_line(folder.path(), &["cluster.world_size=3", &metrics]);
    assert_code(&output, 1);
    let said = stderr(&output);
    let file = "testing_metric.wasm`: `merge` panicked: this was never meant to be merged (";
    assert!(said.contains("what rank 2 has counted of the test data: metric `own`: plug-in `"), "{said}");
    assert!(said.contains(file) && said.contains("src/lib.rs:"), "{said}");
}

#[test]
fn a_figure_that_a_metric_of_ones_own_does_not_tell_is_found_before_the_job_begins() {
    let folder = tempfile::tempdir().unwrap();
    let said = |rest: &str, settings: &[&str]| {
        let metrics = format!("eval.metrics=[{}]", own_metric(&format!(", mode=\"min\"{rest}")));
        let settings: Vec<&str> = ["cluster.world_size=2", "eval.every_epochs=1", &metrics]
            .iter()
            .chain(settings)
            .copied()
            .collect();
        let output = train_line(folder.path(), &settings);
        assert_code(&output, 2);
        stderr(&output).replace(env!("CARGO_MANIFEST_DIR"), "HERE")
    };
    let plateau = "optimizer.schedule={type=\"plateau\", metric=\"own\"}";
    insta::assert_snapshot!(said(", params={several=true}", &["eval.best=own.median", plateau]), @r"
    error: job `job.toml`: `eval.best` goes by `own.median`, which `HERE/plugins/dist/testing_metric.wasm` does not tell
      hint: it tells own.mean, own.largest
    error: job `job.toml`: `optimizer.schedule` goes by `own`, which `HERE/plugins/dist/testing_metric.wasm` does not tell
      hint: it tells own.mean, own.largest
    ");
    insta::assert_snapshot!(said("", &["eval.stop={metric=\"own.mean\"}"]), @r"
    error: job `job.toml`: `eval.stop` goes by `own.mean`, which `HERE/plugins/dist/testing_metric.wasm` does not tell
      hint: it tells own
    ");
}

#[test]
fn a_figure_that_no_validation_has_is_found_before_the_job_begins() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), &["eval.every_epochs=1", "eval.stop={metric=\"mae\"}"]);
    assert_code(&output, 2);
    insta::assert_snapshot!(stderr(&output), @r"
    error: job `digits_ps.toml (built in)`: `eval.stop` goes by `mae`, and validations have no such number
      hint: they have loss, accuracy
    ");
    assert!(!folder.path().join("RUN").exists());
}
