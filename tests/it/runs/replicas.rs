//! Data-parallel jobs, end to end: real processes, replicas that agree.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};

use crate::program::*;
use crate::support::{runs_by_default, times};
use pstrain::job::{self, JobText, Override, Sources, Training};
use pstrain::model;
use pstrain::plugin::Host;
use pstrain::runner::loader::Schedule;
use pstrain::runner::one_process::OneProcess;
use pstrain::runner::samples::Split;
use tch::Tensor;

const DIST_SGD: &str = include_str!("../../../jobs/dist_sgd.toml");
const DDP_MNIST: &str = include_str!("../../../jobs/ddp_mnist.toml");
const RING: &str = include_str!("../../../jobs/ring_allreduce.toml");

/// Without dropout a step is a function of parameters and samples alone.
const PLAIN: [&str; 2] = ["modules.net.layers[4].p=0.0", "modules.net.layers[10].p=0.0"];

fn plain(job: &str) -> &'static [&'static str] {
    if job.contains("[modules.net]") { &PLAIN } else { &[] }
}

fn folder_with(job: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job).unwrap();
    folder
}

/// Spawns `job` with so many ranks and returns the trained tensors.
fn train(job: &str, ranks: u32, settings: &[&str]) -> Vec<(String, Tensor)> {
    let folder = folder_with(job);
    let size = format!("cluster.world_size={ranks}");
    let settings: Vec<&str> =
        plain(job).iter().copied().chain([size.as_str()]).chain(settings.iter().copied()).collect();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    model::load(&model(folder.path())).unwrap()
}

/// What one process without any group makes of the same job with all trainers' batches in each step.
fn one_process(text: &str, ranks: u32, steps: u64, settings: &[&str]) -> Vec<(String, Tensor)> {
    let size = format!("cluster.world_size={ranks}");
    let overrides: Vec<Override> = plain(text)
        .iter()
        .chain([&size.as_str()])
        .chain(settings)
        .map(|setting| Override::set(setting).unwrap())
        .collect();
    let file = JobText { name: "job.toml", text };
    let job = job::load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap().job;
    let training: &Training = job.training().unwrap();
    let trainers = training.train.trainers.ranks.len() as u32;
    let host = Host::new(None).unwrap();
    let mut split = Split::open(&host, training, Path::new(".")).unwrap();
    let mut one = OneProcess::new(training, &host, &[tch::Device::Cpu]).unwrap();
    let schedules: Vec<Schedule> = (0..trainers)
        .map(|trainer| Schedule::for_training(training, split.samples(), trainer).unwrap())
        .collect();
    let mut batches: Vec<_> = schedules.iter().map(Schedule::batches).collect();
    for _ in 0..steps {
        let indices: Vec<u64> =
            batches.iter_mut().flat_map(|batches| batches.next().unwrap().indices).collect();
        one.step(&split.batch(&indices).unwrap(), 0).unwrap();
    }
    one.parameters()
}

#[track_caller]
fn assert_near(trained: &[(String, Tensor)], expected: &[(String, Tensor)], bound: f64) {
    assert!(!expected.is_empty());
    for (name, expected) in expected {
        let (_, tensor) = trained.iter().find(|(found, _)| found == name).expect("PyTorch's names");
        let difference = (tensor - expected).abs().max().double_value(&[]);
        assert!(difference <= bound, "{name}: {difference}");
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn any_number_of_ranks_follows_one_process_with_the_same_global_batch() {
    // The tutorial's own rate: five times as large, 50 steps let what is rounded in one step grow beyond the bound.
    let (job, steps) = (made_up(DIST_SGD, 4000), ["train.steps=50", "optimizer.lr=0.01"]);
    let expected = one_process(&job, 1, 50, &steps);
    for ranks in [1, 2, 4] {
        assert_near(&train(&job, ranks, &steps), &expected, 1e-5);
    }
}

#[test]
fn every_way_of_averaging_gives_the_same_steps() {
    let (job, steps) = (made_up(DIST_SGD, 4000), "train.steps=10");
    let expected = one_process(&job, 4, 10, &[steps]);
    for average in ["replicas.average=ddp", "replicas.average=ring"] {
        assert_near(&train(&job, 4, &[steps, average]), &expected, 1e-5);
    }
}

#[test]
fn a_learning_rate_that_grows_with_the_trainers_is_that_of_one_process_too() {
    let job = made_up(DIST_SGD, 4000);
    let settings = ["train.steps=10", "optimizer.lr=0.005", "train.scale_lr=true"];
    assert_near(&train(&job, 2, &settings), &one_process(&job, 2, 10, &settings), 1e-5);
}

#[test]
fn accumulated_batches_make_the_step_of_one_large_batch() {
    let (job, steps) = (made_up(DIST_SGD, 4000), "train.steps=10");
    let expected = one_process(&job, 2, 10, &[steps]);
    for average in ["replicas.average=ddp", "replicas.average=all_reduce"] {
        let settings = [steps, average, "train.global_batch_size=32", "train.accumulate=4"];
        assert_near(&train(&job, 2, &settings), &expected, 1e-5);
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_last_batch_that_differs_in_size_counts_by_its_samples() {
    // 4,003 samples in batches of 500 for each of two ranks: the fifth step has 2 and 1 of them.
    let job = made_up(DIST_SGD, 4003);
    let settings = ["train.global_batch_size=1000", "train.epochs=1"];
    let expected = one_process(&job, 2, 5, &settings);
    for average in ["replicas.average=ddp", "replicas.average=all_reduce"] {
        assert_near(&train(&job, 2, &[settings[0], settings[1], average]), &expected, 1e-5);
    }
}

#[test]
fn the_ring_job_compares_itself_with_the_built_in_all_reduce() {
    let folder = folder_with(&made_up(RING, 4000));
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &["train.steps=10"]));
    assert_code(&output, 0);
    let said = stderr(&output);
    let (_, rest) = said.split_once("largest difference ").expect(&said);
    let difference: f64 = rest.split(',').next().unwrap().parse().unwrap();
    assert!(difference < 1e-5, "{said}");
}

#[track_caller]
fn assert_learns(settings: &[&str]) {
    let folder = folder_with(&made_up(DDP_MNIST, 4000));
    let settings: Vec<&str> = settings.iter().copied().chain(["train.epochs=2"]).collect();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let accuracy = summary(folder.path())["eval"]["accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.95, "{settings:?}: {accuracy}");
}

#[test]
fn hooks_that_send_fewer_bytes_train_as_well() {
    let powersgd = ["replicas.hook=powersgd", "replicas.powersgd_rank=2", "replicas.powersgd_start=4"];
    let hooks = [&["replicas.hook=fp16"][..], &["replicas.hook=bf16"], &powersgd];
    for hook in &hooks[..times(1, hooks.len())] {
        assert_learns(&[&[NORMALISED], *hook].concat());
    }
}

#[test]
fn a_bucket_view_and_unused_parameters_change_nothing() {
    let (job, steps) = (made_up(DIST_SGD, 4000), "train.steps=10");
    let expected = one_process(&job, 2, 10, &[steps]);
    for more in ["replicas.gradient_as_bucket_view=false", "replicas.find_unused_parameters=true"] {
        let settings = [steps, "replicas.average=ddp", "replicas.bucket_cap_mb=0.01", more];
        assert_near(&train(&job, 2, &settings), &expected, 1e-5);
    }
}

/// What a setting that changes the numbers on the way leaves of the same steps.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn hooks_change_the_numbers_by_what_they_leave_out() {
    let (job, steps, ddp) = (made_up(DIST_SGD, 1000), "train.steps=8", "replicas.average=ddp");
    let plain = train(&job, 2, &[steps, ddp]);
    for hook in ["fp16", "bf16", "powersgd"] {
        let hook = format!("replicas.hook={hook}");
        let settings = [steps, ddp, &hook, "replicas.powersgd_rank=1", "replicas.powersgd_start=2"];
        let settings = if hook.ends_with("powersgd") { &settings[..] } else { &settings[..3] };
        let trained = train(&job, 2, settings);
        let furthest = plain
            .iter()
            .zip(&trained)
            .map(|((_, plain), (_, trained))| (plain - trained).abs().max().double_value(&[]))
            .fold(0.0, f64::max);
        assert!(furthest > 1e-7 && furthest < 0.1, "{hook}: {furthest}");
    }
}

const NORMALISED: &str = r#"modules.net.layers=[ { type = "conv2d", in_channels = 1, out_channels = 4, kernel_size = 5 },
        { type = "batch_norm2d", num_features = 4 }, "relu", { type = "max_pool2d", kernel_size = 4 }, "flatten",
        { type = "linear", in_features = 144, out_features = 10 }, { type = "log_softmax", dim = 1 } ]"#;

/// Running statistics are those of the first replica, on all.
#[test]
fn replicas_with_batch_normalisation_train() {
    assert_learns(&[NORMALISED]);
}

/// In the last step of an epoch one rank has more batches than the other.
#[test]
fn ranks_with_different_numbers_of_batches_in_a_step_share_their_running_statistics() {
    let job = made_up(DDP_MNIST, 400).replace("partition = \"split\"", "fractions = [0.7, 0.3]");
    let (before, replicas) = job.split_once("[replicas]").expect("a section");
    let (_, after) = replicas.split_once("[data]").expect("a section");
    let job = format!("{before}[data]{after}");
    for average in ["ddp", "all_reduce", "ring"] {
        let folder = folder_with(&job);
        let average = format!("replicas.average={average}");
        let settings = [NORMALISED, &average, "train.accumulate=4", "train.batch_size=16"];
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    }
}

#[test]
fn ranks_meet_in_a_file() {
    let folder = folder_with(&made_up(DIST_SGD, 400));
    let init = format!("cluster.init=file://{}", folder.path().join("meet").display());
    let settings = [init.as_str(), "train.steps=3", "train.global_batch_size=96"];
    let ranks: Vec<_> = ["2", "0", "1"]
        .iter()
        .map(|rank| {
            let mut command = pstrain(folder.path());
            command.args(["run", "job.toml", "--rank", rank, "--world-size", "3", "--run-dir", "RUN"]);
            for setting in settings {
                command.args(["--set", setting]);
            }
            start(&mut command)
        })
        .collect();
    for rank in ranks {
        assert_code(&wait(rank), 0);
    }
    assert_eq!(summary(folder.path())["trainers"], 3);
    assert!(!folder.path().join("meet").exists(), "the last to leave deletes the file");
}

#[test]
fn fractions_give_each_rank_its_part_for_good() {
    let job = made_up(DIST_SGD, 4000).replace("partition = \"split\"", "fractions = [0.7, 0.3]");
    let settings = ["train.steps=5"];
    assert_near(&train(&job, 2, &settings), &one_process(&job, 2, 5, &settings), 1e-5);
}

/// What lies between the replicas is another rank's: a backward comes to them one after the other.
#[test]
fn replicas_before_and_behind_a_remote_module_train() {
    let modules = r#"
[modules.a]
place = "trainer"
input = [1, 28, 28]
layers = [ "flatten", { type = "linear", in_features = 784, out_features = 32 }, "relu" ]
[modules.b]
place = "server"
layers = [ { type = "linear", in_features = 32, out_features = 32 }, "relu" ]
[modules.c]
place = "trainer"
layers = [ { type = "linear", in_features = 32, out_features = 10 }, { type = "log_softmax", dim = 1 } ]
"#;
    let job = made_up(DDP_MNIST, 4000);
    let (before, rest) = job.split_once("# Placed on the role").expect("a comment");
    let (_, after) = rest.split_once("[replicas]").expect("a section");
    let job = format!("{before}{modules}[replicas]{after}")
        .replace("trainer = \"rest\"", "trainer = 2\nserver = 1")
        .replace("[train]", "[train]\nforward = [\"a\", \"b\", \"c\"]\nconsistency = \"bsp\"");
    let steps = ["train.steps=20"];
    assert_near(&train(&job, 3, &steps), &one_process(&job, 3, 20, &steps), 1e-5);
}

/// CP-4: nothing is saved while training goes on, and all but the step under way is there when a rank is gone, whichever it is.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn replicas_save_what_is_left_when_a_rank_is_killed() {
    let job = made_up(DIST_SGD, 2000);
    let rare = "checkpoint.every_steps=100000";
    // How they average, what else they have, and whom they lose. Running statistics are the first one's, as long as there is that.
    // One is mostly in validations, where others are in steps.
    let cases = [
        ("ddp", "eval.every_steps=1", 2),
        ("ddp", NORMALISED, 2),
        ("all_reduce", "optimizer.momentum=0.9", 0),
        ("ring", "ema={decay=0.9}", 1),
    ];
    for (average, more, lost) in cases.into_iter().filter(|_| runs_by_default()) {
        let average = format!("replicas.average={average}");
        let plateau = "optimizer.schedule={type=\"plateau\", metric=\"loss\", patience=1}";
        let batch = "train.global_batch_size=96";
        let settings =
            ["train.steps=80", batch, "eval.every_steps=9", "log.every=1", plateau, rare, &average, more];
        let undisturbed = folder_with(&job);
        let of = |folder: &Path, more: &[&str]| {
            let settings = [&settings[..], &["cluster.world_size=3"]].concat();
            spawn_with(folder, Some("job.toml"), &settings, &[&["--run-dir", "RUN"], more].concat())
        };
        assert_code(&finish(&mut of(undisturbed.path(), &[])), 0);

        let folder = folder_with(&job);
        let launcher = start(&mut of(folder.path(), &[]));
        wait_for_metrics(folder.path(), |lines| lines.contains("\"kind\":\"step\",\"step\":30,"));
        kill(ranks_of(&launcher)[lost], Signal::SIGKILL).unwrap();
        let output = wait(launcher);
        assert_code(&output, 3);
        let said = stderr(&output);
        let (_, step) = said.split_once("what was left is saved: a checkpoint of step ").expect(&said);
        let step: u64 = step.split_whitespace().next().unwrap().parse().unwrap();
        assert!((30..80).contains(&step), "{step}");
        assert!(
            said.contains(&format!("its last checkpoint is `RUN/checkpoints/step-{step:010}`")),
            "{said}"
        );
        assert_code(&finish(pstrain(folder.path()).args(["checkpoint", "verify", "RUN"])), 0);

        assert_code(&finish(&mut of(folder.path(), &["--resume", "RUN"])), 0);
        let [whole, gone_on] = [&undisturbed, &folder].map(|folder| fs::read(model(folder.path())).unwrap());
        assert!(whole == gone_on, "{average}, {more}, rank {lost}, step {step}");
        let figures = |folder: &Path| {
            let judged = records(folder, "eval").into_iter().map(|record| record["loss"].clone());
            judged.collect::<Vec<_>>()
        };
        // What validations have decided is known to whoever saves.
        assert_eq!(figures(undisturbed.path()).last(), figures(folder.path()).last(), "{average}");
        // Nor is one left out, or there twice, where the first trainer goes on.
        if lost != 0 {
            assert_eq!(figures(undisturbed.path()), figures(folder.path()), "{average}, {more}, step {step}");
        }
    }
}
