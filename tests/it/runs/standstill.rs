//! Runs that stand still, and runs that are slow: what `doctor RUN` and `explain RUN` say of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;

use crate::program::*;
use crate::support::times;

/// The doctor's own time, beside that of a busy machine to start it.
const IN_TIME: Duration = Duration::from_secs(2);

/// A run that would take hours, whose ranks wait for one another as long as it takes. In the order of the ranks: their processes.
struct Run {
    folder: tempfile::TempDir,
    launcher: Child,
    ranks: Vec<Pid>,
}

impl Run {
    fn start(job: Option<&str>, settings: &[&str], trainers: &[u32]) -> Run {
        Run::start_in(tempfile::tempdir().unwrap(), job, settings, trainers)
    }

    fn start_in(folder: tempfile::TempDir, job: Option<&str>, settings: &[&str], trainers: &[u32]) -> Run {
        let patient = ["train.epochs=100000", "cluster.lost_after_ms=120000", "log.every=1"];
        let settings: Vec<&str> = patient.iter().chain(settings).copied().collect();
        let launcher = start(&mut spawn(folder.path(), job, &settings));
        wait_for_metrics(folder.path(), |metrics| {
            let steps = |rank: &u32| {
                let of_rank = format!("\"rank\":{rank},\"loss\"");
                metrics.matches(&of_rank).count() > 30
            };
            trainers.iter().all(steps)
        });
        let ranks = ranks_of(&launcher);
        Run { folder, launcher, ranks }
    }

    fn doctor(&self) -> Output {
        finish(pstrain(self.folder.path()).args(["doctor", "RUN"]))
    }

    /// Asks until the doctor's exit code is that, and returns what it says and how long it took to say it.
    fn doctor_says(&self, code: i32) -> (String, Duration) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let began = Instant::now();
            let output = self.doctor();
            if output.status.code() == Some(code) {
                return (stdout(&output), began.elapsed());
            }
            assert!(Instant::now() < deadline, "{}{}", stdout(&output), stderr(&output));
        }
    }

    fn record(&self, rank: usize) -> Option<Value> {
        let path = self.folder.path().join(format!("RUN/flight/rank{rank}.json"));
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    fn kill(self) {
        for rank in &self.ranks {
            let _ = kill(*rank, Signal::SIGKILL);
        }
        wait(self.launcher);
    }
}

#[test]
fn a_rank_that_is_stopped_is_named_in_time_and_one_that_goes_on_is_not() {
    let run = Run::start(None, &[], &[1, 2, 3]);
    let (said, _) = run.doctor_says(0);
    assert!(said.ends_with("no rank holds the others up, as far as the ranks tell\n"), "{said}");
    let mut longest = Duration::ZERO;
    for (rank, name) in [(2, "trainer2"), (0, "server0")].into_iter().cycle().take(times(2, 49)) {
        kill(run.ranks[rank], Signal::SIGSTOP).unwrap();
        let (said, took) = run.doctor_says(1);
        assert!(
            said.contains(&format!("because of rank {rank} (`{name}`): its process is stopped")),
            "{said}"
        );
        assert!(took < IN_TIME + IN_TIME, "{took:?}");
        longest = longest.max(took);
        kill(run.ranks[rank], Signal::SIGCONT).unwrap();
        run.doctor_says(0);
    }
    println!("the longest answer took {longest:?}");
    run.kill();
}

/// Its data folder gets pipes in the place of pictures, as a network drive that is gone looks to who reads it.
#[test]
fn a_plug_in_that_does_not_come_back_is_named_with_its_rank() {
    let digits = pstrain::runner::builtin::unpack("digit_images").unwrap().join("test");
    for _ in 0..times(1, 10) {
        let folder = tempfile::tempdir().unwrap();
        let pictures = copy(&digits, &folder.path().join("own/train"));
        assert!(pictures.len() > 100, "{}", pictures.len());
        fs::write(folder.path().join("job.toml"), PICTURES).unwrap();
        let run = Run::start_in(folder, Some("job.toml"), &["plugins.time_ms=170000"], &[1]);
        for picture in pictures {
            let pipe = picture.with_extension("pipe");
            mkfifo(&pipe, Mode::S_IRWXU).unwrap();
            fs::rename(pipe, picture).unwrap();
        }
        let (mut said, took) = run.doctor_says(1);
        let wanted = "because of rank 1 (`trainer1`): `batch` of plug-in `images` does not come back";
        assert!(said.contains(wanted), "{said}");
        assert!(took < IN_TIME + IN_TIME, "{took:?}");
        // The trainer has had batches in store, and so waits for less long than the plug-in has been reading.
        let deadline = Instant::now() + LIMIT;
        while !said.contains("waits for the data of step") {
            assert!(Instant::now() < deadline, "{said}");
            said = run.doctor_says(1).0;
        }
        run.kill();
    }
}

const PICTURES: &str = r#"
name = "pictures"
[cluster]
world_size = 2
[roles]
server = 1
trainer = "rest"
[modules.net]
place = "server"
input = [3, 8, 8]
layers = ["flatten", { type = "linear", in_features = 192, out_features = 10 }]
[data]
root = "own"
plugin = "images"
[data.train]
folder = "train"
[loss]
plugin = "cross_entropy"
[optimizer]
type = "sgd"
lr = 0.01
[train]
batch_size = 1
"#;

/// So many copies of each picture: the plug-in keeps those that it has read, and they are to last for long.
const COPIES: usize = 20;

/// The files of a folder of folders, several times.
fn copy(from: &Path, to: &Path) -> Vec<PathBuf> {
    let mut copied = Vec::new();
    for class in fs::read_dir(from).unwrap().map(|class| class.unwrap()) {
        let own = to.join(class.file_name());
        fs::create_dir_all(&own).unwrap();
        for file in fs::read_dir(class.path()).unwrap().map(|file| file.unwrap()) {
            for nth in 0..COPIES {
                let name = file.file_name().into_string().unwrap();
                let copy = own.join(format!("{nth}-{name}"));
                fs::copy(file.path(), &copy).unwrap();
                copied.push(copy);
            }
        }
    }
    copied
}

#[test]
fn a_run_that_is_interrupted_or_fails_leaves_nothing_of_its_processes() {
    let run = Run::start(None, &[], &[1, 2, 3]);
    assert!(run.folder.path().join("RUN/flight/processes.jsonl").is_file());
    let Run { folder, launcher, .. } = run;
    send_signal(&launcher, Signal::SIGINT);
    assert_code(&wait(launcher), 130);
    assert!(!folder.path().join("RUN/flight").exists());
    let output = finish(pstrain(folder.path()).args(["doctor", "RUN"]));
    assert_code(&output, 0);
    assert!(stdout(&output).contains("has ended in order, or before"), "{}", stdout(&output));
}

#[test]
fn replicas_that_wait_for_one_that_is_stopped_tell_of_the_collective() {
    let job = include_str!("../../../jobs/digits_ps.toml");
    let job = job.replace("server = 1\n", "").replace("place = \"server\"", "place = \"trainer\"");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job.replace("consistency = \"async\"", "")).unwrap();
    let settings = ["cluster.world_size=3", "replicas.average=\"all_reduce\""];
    let run = Run::start_in(folder, Some("job.toml"), &settings, &[0, 1, 2]);
    kill(run.ranks[1], Signal::SIGSTOP).unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        let (said, _) = run.doctor_says(1);
        assert!(said.contains("because of rank 1 (`trainer1`): its process is stopped"), "{said}");
        let waits = "in `all_reduce` of group `trainers`";
        if said.matches(waits).count() == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "{said}");
    }
    run.kill();
}

#[test]
fn a_spawn_that_is_asked_has_all_ranks_write_what_they_did() {
    let run = Run::start(None, &[], &[1, 2, 3]);
    assert!((0..4).all(|rank| run.record(rank).is_none()));
    send_signal(&run.launcher, Signal::SIGUSR1);
    crate::support::eventually("all ranks write", || (0..4).all(|rank| run.record(rank).is_some()));
    let trainer = run.record(1).unwrap();
    assert_eq!((&trainer["role"], &trainer["why"]), (&"trainer".into(), &"asked for".into()));
    let some =
        |list: &str, holds: &dyn Fn(&Value) -> bool| trainer[list].as_array().unwrap().iter().any(holds);
    assert!(some("calls", &|call| call["with"] == 0 && call["took_s"].is_f64()), "{trainer}");
    assert!(some("batches", &|batch| batch["number"].as_u64() > Some(1)), "{trainer}");
    assert!(some("plugins", &|call| call["of"] == "cross_entropy" && call["what"] == "compute"), "{trainer}");
    run.kill();
}

#[test]
fn ranks_that_have_lost_another_leave_what_they_did_and_who_it_was() {
    let run = Run::start(None, &[], &[1, 2, 3]);
    kill(run.ranks[2], Signal::SIGKILL).unwrap();
    let Run { folder, launcher, .. } = run;
    assert_code(&wait(launcher), 3);
    let own = folder.path().join("RUN/flight");
    for rank in [0, 1, 3] {
        let text = fs::read(own.join(format!("rank{rank}.json"))).unwrap();
        let record: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(record["lost"]["rank"], 2, "{record}");
    }
    let output = finish(pstrain(folder.path()).args(["doctor", "RUN", "--json"]));
    assert_code(&output, 1);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["under_way"], &told["culprit"]["rank"]), (&false.into(), &2.into()), "{told}");
    assert_eq!(told["culprit"]["cause"]["is"], "lost", "{told}");
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_profiled_run_is_explained_by_role_and_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.epochs=12", "log.profile=true", "cluster.world_size=3"];
    assert_code(&finish(&mut spawn(folder.path(), None, &settings)), 0);
    assert!(!folder.path().join("RUN/flight").exists(), "a run that ends in order leaves none");
    let output = finish(pstrain(folder.path()).args(["explain", "RUN", "--json"]));
    assert_code(&output, 0);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let roles = told["facts"]["roles"].as_array().unwrap();
    let ms = |role: &str, of: &str| {
        let role = roles.iter().find(|found| found["role"] == role).unwrap();
        role["ms"][of].as_f64().unwrap_or(0.0)
    };
    // The model is at the server: it computes, and the trainers wait for it.
    assert!(ms("server", "forward") > 0.0 && ms("server", "backward") > 0.0, "{told}");
    assert!(ms("trainer", "wait") > ms("trainer", "loss") && ms("trainer", "loss") > 0.0, "{told}");
    let steps = told["facts"]["steps"].as_u64().unwrap();
    for trainer in told["traced"]["trainers"].as_array().unwrap() {
        // The last steps of an epoch may be one fewer on one of the two.
        assert!(trainer["steps"].as_u64().unwrap().abs_diff(steps) <= 12, "{trainer} of {steps}");
    }
    let output = finish(pstrain(folder.path()).args(["explain", "RUN"]));
    assert_code(&output, 0);
    let said = stdout(&output);
    assert!(said.contains("\ntrainer (2)") && said.contains("\nserver (1)"), "{said}");
    assert!(said.contains("what limits: ") || said.contains("too short"), "{said}");
}

#[test]
fn what_is_no_run_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["explain", "doctor"] {
        let output = finish(pstrain(folder.path()).args([command, "nowhere"]));
        assert_code(&output, 2);
        let said = stderr(&output);
        assert!(said.starts_with("error: `nowhere` is not a run folder: job.toml: "), "{said}");
        assert!(said.contains("hint: `pstrain runs` lists"), "{said}");
    }
}
