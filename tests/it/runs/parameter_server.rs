//! The main job, end to end: real processes, the built-in digits.

use std::fs;

use crate::program::*;
use crate::support::times;
use pstrain::job::{self, JobText, Sources};
use pstrain::plugin::Host;
use pstrain::runner::loader::Schedule;
use pstrain::runner::one_process::OneProcess;
use pstrain::runner::samples::Split;
use pstrain::{model, runner};
use serde_json::Value;

/// A multilayer perceptron without dropout, so that a step is a function of parameters and batch alone.
const PLAIN: &str = r#"
name = "plain"
seed = 7
[roles]
server = 1
trainer = "rest"
[modules.net]
place = "server"
input = [64]
layers = [
  { type = "linear", name = "fc1", in_features = 64, out_features = 32 },
  "relu",
  { type = "linear", name = "fc2", in_features = 32, out_features = 10 },
]
[data]
root = "builtin:digits"
plugin = "idx"
normalize = { scale = 255.0, mean = [0.0], std = [1.0] }
[data.train]
images = "train-images-idx3-ubyte"
labels = "train-labels-idx1-ubyte"
[data.test]
images = "t10k-images-idx3-ubyte"
labels = "t10k-labels-idx1-ubyte"
[loss]
plugin = "cross_entropy"
[optimizer]
type = "sgd"
lr = 0.1
momentum = 0.9
[train]
epochs = 2
batch_size = 8
consistency = "bsp"
"#;

fn folder_with(job: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job).unwrap();
    folder
}

#[test]
fn spawn_in_an_empty_folder_trains_the_built_in_digits() {
    let folder = tempfile::tempdir().unwrap();
    let output = finish(&mut spawn(folder.path(), None, &[]));
    assert_code(&output, 0);
    let summary = summary(folder.path());
    assert!(summary["eval"]["accuracy"].as_f64().unwrap() >= 0.95, "{summary}");
    assert_eq!(summary["eval"]["samples"], 297);
    assert_eq!((&summary["world_size"], &summary["trainers"]), (&4.into(), &3.into()));
    assert!(stdout(&output).contains("accuracy"), "{}", stdout(&output));
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn three_trainers_share_one_model_in_every_consistency() {
    for consistency in &["bsp", "hogwild"][..times(0, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let output = finish(&mut spawn(folder.path(), None, &[&format!("train.consistency={consistency}")]));
        assert_code(&output, 0);
        let accuracy = summary(folder.path())["eval"]["accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.95, "{consistency}: {accuracy}");
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.consistency=ssp", "train.staleness=2"];
    assert_code(&finish(&mut spawn(folder.path(), None, &settings)), 0);
    let accuracy = summary(folder.path())["eval"]["accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.95, "ssp: {accuracy}");
    // While a trainer takes its step, each of the two others goes at most from two steps behind it to three ahead.
    for record in records(folder.path(), "step") {
        let staleness = record["staleness"].as_f64().unwrap();
        assert!(staleness <= 10.0, "{record}");
    }
}

#[test]
fn epochs_and_evaluations_stand_in_the_metrics_beside_the_steps() {
    let folder = folder_with(PLAIN);
    let settings = ["cluster.world_size=3", "train.epochs=2", "eval.every_epochs=1"];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let epochs = records(folder.path(), "epoch");
    let mut of: Vec<_> = epochs.iter().map(|line| (line["epoch"].as_u64(), line["rank"].as_u64())).collect();
    of.sort_unstable();
    assert_eq!(of, [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(epoch, rank)| (Some(epoch), Some(rank))));
    for trainer in [1, 2] {
        let losses: Vec<f64> = epochs
            .iter()
            .filter(|line| line["rank"] == trainer)
            .map(|line| line["loss"].as_f64().unwrap())
            .collect();
        assert!(losses[1] < losses[0], "{losses:?}");
    }
    // On the way, and at the end: that is the summary's.
    let evaluations = records(folder.path(), "eval");
    assert_eq!(evaluations.iter().map(|line| line["epoch"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    let told = summary(folder.path());
    for key in ["loss", "accuracy", "samples", "targets"] {
        assert_eq!(evaluations[1][key], told["eval"][key], "{key}");
    }
    assert_eq!(evaluations[1]["targets"], evaluations[1]["samples"]);
}

#[test]
fn targets_are_counted_by_their_elements_and_a_task_without_an_accuracy_has_none() {
    let folder = folder_with(
        "[roles]\nserver = 1\ntrainer = 2\n[modules.net]\nplace = \"server\"\ninput = [4]\n\
         layers = [{ type = \"linear\", in_features = 4, out_features = 3 }]\n[data]\nplugin = \"synthetic\"\n\
         [data.train]\nkind = \"regression\"\nsamples = 40\nshape = [4]\ntargets = 3\n\
         [data.test]\nkind = \"regression\"\nsamples = 20\nshape = [4]\ntargets = 3\noffset = 40\n\
         [loss]\nplugin = \"mse\"\n[optimizer]\ntype = \"sgd\"\nlr = 0.01\n[train]\nrole = \"trainer\"\n",
    );
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &[])), 0);
    let told = summary(folder.path());
    assert_eq!((&told["eval"]["samples"], &told["eval"]["targets"]), (&20.into(), &60.into()));
    assert!(!told["eval"].as_object().unwrap().contains_key("accuracy"), "{}", told["eval"]);
}

#[test]
fn two_runs_of_bsp_leave_the_same_bits() {
    // Neither masks nor running statistics may depend on how the trainers interleave.
    let noisy = r#"[ { type = "linear", in_features = 64, out_features = 32 },
        { type = "batch_norm1d", num_features = 32 }, "relu", { type = "dropout", p = 0.5 },
        { type = "linear", in_features = 32, out_features = 10 } ]"#;
    let run = || {
        let folder = folder_with(PLAIN);
        let settings = [&format!("modules.net.layers={noisy}"), "train.steps=30"];
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        fs::read(model(folder.path())).unwrap()
    };
    let (first, second) = (run(), run());
    assert!(first == second, "parameters or running statistics differ");
}

/// Each round of batches, one of each of three trainers.
fn follows_one_process(settings: &[&str], train: impl Fn(&mut OneProcess, &mut Split, &[Vec<u64>])) {
    const STEPS: u64 = 30;
    let folder = folder_with(PLAIN);
    let steps = format!("train.steps={STEPS}");
    let settings: Vec<&str> = settings.iter().copied().chain([steps.as_str()]).collect();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let trained = model::load(&model(folder.path())).unwrap();

    let sources =
        Sources { file: JobText { name: "job.toml", text: PLAIN }, env: Vec::new(), overrides: &[] };
    let job = job::load(&sources).unwrap().job;
    let job = job.training().unwrap();
    let root = runner::builtin::unpack("digits").unwrap();
    let host = Host::new(None).unwrap();
    let mut split = Split::open(&host, job, &root).unwrap();
    let mut one = OneProcess::new(job, &host, &[tch::Device::Cpu]).unwrap();
    let schedules: Vec<Schedule> =
        (0..3).map(|trainer| Schedule::for_training(job, split.samples(), trainer).unwrap()).collect();
    let mut batches: Vec<_> = schedules.iter().map(Schedule::batches).collect();
    for _ in 0..STEPS {
        let round: Vec<Vec<u64>> =
            batches.iter_mut().map(|batches| batches.next().unwrap().indices).collect();
        train(&mut one, &mut split, &round);
    }

    let expected = one.parameters();
    assert_eq!(expected.len(), 4);
    for (name, expected) in expected {
        let (_, tensor) = trained.iter().find(|(found, _)| *found == name).expect("PyTorch's names");
        let difference = (tensor - &expected).abs().max().double_value(&[]);
        let change = expected.abs().max().double_value(&[]);
        assert!(difference <= 1e-5 * change.max(1.0), "{settings:?}, {name}: {difference}");
    }
}

#[test]
fn bsp_with_three_trainers_equals_one_process_with_three_times_the_batch() {
    follows_one_process(&[], |one, split, round| {
        one.step(&split.batch(&round.concat()).unwrap(), 0).unwrap();
    });
}

#[test]
fn sequential_trainers_equal_one_process_that_takes_their_batches_in_turn() {
    for run in ["modules.net.run=owner", "modules.net.run=caller"] {
        follows_one_process(&["train.consistency=sequential", run], |one, split, round| {
            for batch in round {
                one.step(&split.batch(batch).unwrap(), 0).unwrap();
            }
        });
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn each_rank_in_a_process_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/digits_ps.toml")).unwrap();
    let port = free_port().to_string();
    let ranks: Vec<_> = ["3", "1", "2", "0"]
        .iter()
        .map(|rank| {
            let mut command = pstrain(folder.path());
            command.args(["run", "job.toml", "--rank", rank, "--master-port", &port, "--run-dir", "RUN"]);
            start(&mut command)
        })
        .collect();
    for rank in ranks {
        assert_code(&wait(rank), 0);
    }
    assert!(summary(folder.path())["eval"]["accuracy"].as_f64().unwrap() >= 0.95);
}

/// The first job that a reader sees must be one that runs.
#[test]
fn the_job_in_the_readme_trains() {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (job, _) = rest.split_once("```").unwrap();
    let folder = folder_with(job);
    let settings = ["cluster.world_size=3", "train.epochs=5"];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    assert_eq!(summary(folder.path())["eval"]["samples"], 297);
}

/// Two trainers have a server evaluate at once. Its activations are as large as their batches, whose size is their own.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn an_evaluation_takes_little_of_a_servers_memory() {
    const MIB: u64 = 1 << 20;
    let peak = |batch: &[&str]| -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let job = made_up(include_str!("../../../jobs/mnist_ps.toml"), 640);
        fs::write(folder.path().join("job.toml"), job.replace("samples = 200", "samples = 3000")).unwrap();
        let settings = ["cluster.world_size=3", "train.steps=5", "log.usage_every_ms=10"];
        let settings = [&settings[..], batch].concat();
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        let of_server = |record: &Value| record["role"] == "server";
        let used = records(folder.path(), "rank").into_iter().filter(of_server);
        used.filter_map(|record| record["resident_bytes"].as_u64())
            .max()
            .expect("the server tells what it uses")
    };
    let usual = peak(&[]);
    assert!(usual < 450 * MIB, "{} MiB", usual / MIB);
    // Memory is looked at now and then: on a busy machine not every run shows that a look sees activations at all.
    let mut large = (0..5).map(|_| peak(&["eval.batch_size=1000"]));
    assert!(
        large.any(|bytes| bytes > usual + 300 * MIB),
        "large batches take no more than {} MiB",
        usual / MIB
    );
}
