//! The shipped jobs whose data are here or made up: their models are judged again as their runs judged them, and become the same when
//! ranks are lost. Of those whose data are MNIST's the images are made up.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::judging::evaluated;
use super::small::last_step;
use crate::program::*;
use crate::support::times;

/// A job in `jobs/`.
struct Shipped {
    name: &'static str,
    /// What makes it small, or has it find its files.
    settings: &'static [&'static str],
    /// Whether its trainers have to be told to take their steps in rounds.
    is_async: bool,
    /// Enough for a rank to be lost on the way.
    steps: u64,
}

const FEW_CLICKS: &[&str] = &["data.train.samples=5000", "data.test.samples=500"];
const REPOSITORY: &[&str] = &[concat!("data.root=\"", env!("CARGO_MANIFEST_DIR"), "\"")];
const SCRIPT: &[&str] =
    &[concat!("modules.net.torchscript=\"", env!("CARGO_MANIFEST_DIR"), "/jobs/digits_net.pt\"")];

const TABLES: &[&str] = &[concat!("data.root=\"", env!("CARGO_MANIFEST_DIR"), "/jobs/data\"")];
/// In the job's folder: what the built-in job has come to after some steps.
const STARTED: &[&str] = &["modules.net.weights=\"start.safetensors\""];

/// The first of them by default, all by `make test-all`.
const JOBS: [Shipped; 17] = [
    Shipped { name: "digits_ps", settings: &[], is_async: true, steps: 200 },
    Shipped { name: "two_tower", settings: FEW_CLICKS, is_async: false, steps: 200 },
    Shipped { name: "wide_deep", settings: FEW_CLICKS, is_async: true, steps: 200 },
    Shipped { name: "dlrm", settings: FEW_CLICKS, is_async: true, steps: 200 },
    Shipped { name: "ddp_mnist", settings: &[], is_async: false, steps: 60 },
    Shipped { name: "mnist_pull_push", settings: &[], is_async: true, steps: 60 },
    Shipped { name: "pipeline", settings: &[], is_async: false, steps: 200 },
    Shipped { name: "torchscript", settings: SCRIPT, is_async: true, steps: 200 },
    Shipped { name: "recommender", settings: FEW_CLICKS, is_async: true, steps: 200 },
    Shipped { name: "dist_sgd", settings: &[], is_async: false, steps: 60 },
    Shipped { name: "ring_allreduce", settings: &[], is_async: false, steps: 60 },
    Shipped { name: "mnist_ps", settings: &[], is_async: true, steps: 60 },
    Shipped { name: "char_lm", settings: REPOSITORY, is_async: false, steps: 30 },
    Shipped { name: "images", settings: &[], is_async: false, steps: 30 },
    Shipped { name: "regression", settings: TABLES, is_async: false, steps: 100 },
    Shipped { name: "finetune", settings: STARTED, is_async: true, steps: 60 },
    Shipped { name: "ddp_rpc", settings: &[], is_async: true, steps: 60 },
];
/// So many of them have test data and no test of their own for what they come to.
const JUDGED: usize = 14;

/// The path of a file in `jobs/`.
pub fn shipped(name: &str) -> String {
    format!("{}/jobs/{name}", env!("CARGO_MANIFEST_DIR"))
}

impl Shipped {
    fn write(&self, folder: &Path) {
        let job = fs::read_to_string(shipped(&format!("{}.toml", self.name))).unwrap();
        let job = if job.contains("data/mnist") { made_up(&job, 400) } else { job };
        fs::write(folder.join("job.toml"), job).unwrap();
        if self.settings == STARTED {
            let started = tempfile::tempdir().unwrap();
            assert_code(
                &finish(&mut spawn(started.path(), None, &["train.steps=5", "train.consistency=bsp"])),
                0,
            );
            fs::copy(model(started.path()), folder.join("start.safetensors")).unwrap();
        }
    }

    /// Trains it to the end in rounds, with checkpoints, where the bits are the same from run to run.
    fn in_rounds(&self, folder: &Path, more: &[&str]) -> std::process::Command {
        self.write(folder);
        let steps = format!("train.steps={}", self.steps);
        let own = [steps.as_str(), "train.epochs=1000", "checkpoint.every_steps=5", "log.every=1"];
        let rounds: &[&str] = if self.is_async { &["train.consistency=bsp"] } else { &[] };
        spawn_with(folder, Some("job.toml"), &[self.settings, &own, rounds].concat(), more)
    }
}

#[test]
fn eval_repeats_the_last_validation_of_every_shipped_job() {
    for job in &JOBS[..times(3, JUDGED)] {
        let folder = tempfile::tempdir().unwrap();
        job.write(folder.path());
        let settings = [&["train.steps=3"], job.settings].concat();
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        let last = summary(folder.path())["eval"].clone();
        assert_eq!(evaluated(folder.path(), &[]), last, "{}", job.name);
        let record = records(folder.path(), "eval").pop().unwrap();
        for (key, value) in last.as_object().unwrap() {
            assert_eq!(&record[key], value, "{}: {key}", job.name);
        }
    }
}

/// Any rank, behind any step of the first half.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn every_shipped_job_comes_to_the_same_model_when_a_rank_is_killed() {
    let mut random = ChaCha8Rng::seed_from_u64(19);
    for job in &JOBS[..times(1, JOBS.len())] {
        let [whole, killed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        assert_code(&finish(&mut job.in_rounds(whole.path(), &["--run-dir", "RUN"])), 0);
        let launcher = start(&mut job.in_rounds(killed.path(), &["--run-dir", "RUN", "--restarts", "3"]));
        let step = random.random_range(1..job.steps / 2);
        wait_for_metrics(killed.path(), |metrics| last_step(metrics) >= step);
        let ranks = ranks_of(&launcher);
        // Running statistics are the first trainer's: those that replicas save without it are others (docs/checkpoints.md).
        let rank = random.random_range(usize::from(job.name == "images")..ranks.len());
        kill(ranks[rank], Signal::SIGKILL).unwrap();
        let output = wait(launcher);
        assert_code(&output, 0);
        let told = format!("{}, rank {rank} behind step {step}: {}", job.name, stderr(&output));
        assert!(told.contains("attempt 2 of 4"), "{told}");
        assert!(fs::read(model(whole.path())).unwrap() == fs::read(model(killed.path())).unwrap(), "{told}");
    }
}
