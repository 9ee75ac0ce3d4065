//! Ranks that die, hang or are interrupted end the job on all others, in time, with the reason.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use super::small::SMALL;
use crate::program::*;
use crate::support::{eventually, regression, runs_by_default, times};
use nix::sys::signal::Signal;

/// The design's limit is 10 s; the job says 2 s of silence, the rest is for a busy machine.
const NOTICED: Duration = Duration::from_secs(10);

const PARAMETER_SERVER: &str = include_str!("../../../jobs/digits_ps.toml");

/// The same model as replicas on all ranks.
fn replicas() -> String {
    let changes = [
        ("server = 1\n", ""),
        ("place = \"server\"", "place = \"trainer\""),
        ("consistency = \"async\"", ""),
    ];
    changes.iter().fold(PARAMETER_SERVER.to_owned(), |job, (from, to)| {
        assert!(job.contains(from), "{from}");
        job.replace(from, to)
    })
}

fn replicas_averaged(way: &str) -> String {
    format!("{}\n[replicas]\n{way}\n", replicas())
}

/// Four ranks of the job, each a process, that would train for hours; so many of them are trainers.
fn start_world(folder: &Path, job: &str, trainers: usize) -> Vec<Child> {
    std::fs::write(folder.join("job.toml"), job).expect("a job");
    let port = free_port().to_string();
    let rank = |rank: &str| {
        let mut command = pstrain(folder);
        command.args(["run", "job.toml", "--rank", rank, "--master-port", &port, "--run-dir", "RUN"]);
        let settings = ["train.epochs=100000", "cluster.lost_after_ms=2000", "log.every=1"];
        let small = job.contains("name = \"digits_ps\"").then_some(SMALL);
        command.args(settings.into_iter().chain(small).flat_map(|setting| ["--set", setting]));
        start(&mut command)
    };
    let world = ["0", "1", "2", "3"].map(rank).into();
    wait_for_steps(folder, trainers);
    world
}

/// Training is under way once so many trainers have logged some steps.
fn wait_for_steps(folder: &Path, trainers: usize) {
    wait_for_metrics(folder, |metrics| {
        let under_way = |rank: &u32| metrics.matches(&format!("\"rank\":{rank},")).count() > 20;
        (0..4).filter(under_way).count() >= trainers
    });
}

/// Sends `what` to `victim`; the other ranks end in time with `code`. Returns what they said.
fn others_after(victim: usize, what: Signal, code: i32) -> Vec<String> {
    others_of(PARAMETER_SERVER, victim, what, code)
}

fn others_of(job: &str, victim: usize, what: Signal, code: i32) -> Vec<String> {
    others_of_trainers(3, job, victim, what, code)
}

fn others_of_trainers(trainers: usize, job: &str, victim: usize, what: Signal, code: i32) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = start_world(folder.path(), job, trainers);
    let victim = world.remove(victim);
    send_signal(&victim, what);
    let sent = Instant::now();
    let said = world
        .into_iter()
        .map(|rank| {
            let output = wait(rank);
            assert_code(&output, code);
            stderr(&output)
        })
        .collect();
    let took = sent.elapsed();
    send_signal(&victim, Signal::SIGKILL);
    wait(victim);
    assert!(took < NOTICED, "the others ended after {took:?}");
    said
}

#[test]
fn a_killed_trainer_ends_the_job_with_its_name_and_what_it_did() {
    for said in others_after(2, Signal::SIGKILL, 3) {
        assert!(said.contains("rank 2 (`trainer2`) was lost while training, step"), "{said}");
    }
}

#[test]
fn a_killed_server_ends_the_job() {
    for said in others_after(0, Signal::SIGKILL, 3) {
        assert!(said.contains("rank 0 (`server0`) was lost while serving modules"), "{said}");
    }
}

/// Whether it is the coordinator or not.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_killed_server_of_pulled_parameters_ends_the_job() {
    let pulled = PARAMETER_SERVER.replace("place = \"server\"", "place = \"server\"\nrun = \"caller\"");
    for said in others_of(&pulled, 0, Signal::SIGKILL, 3) {
        assert!(said.contains("rank 0 (`server0`) was lost while serving modules"), "{said}");
    }
    let behind = pulled.replace("server = 1\ntrainer = \"rest\"", "trainer = 3\nserver = 1");
    for said in others_of(&behind, 3, Signal::SIGKILL, 3) {
        assert!(said.contains("rank 3 (`server3`) was lost while serving modules"), "{said}");
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_rank_that_hangs_is_found_by_its_silence() {
    for said in others_after(3, Signal::SIGSTOP, 3) {
        assert!(said.contains("rank 3 (`trainer3`) was lost"), "{said}");
        assert!(said.contains("nothing came from it for 2."), "{said}");
    }
}

/// Two stages of two replicas: whoever dies leaves one neighbour in a collective and one that waits for micro-batches.
#[test]
fn a_killed_rank_of_a_pipeline_ends_the_job() {
    let pipeline = include_str!("../../../jobs/pipeline.toml");
    let victims = [(0, "front0", "serving modules"), (3, "back3", "training, step")];
    for &(victim, name, was) in &victims[..times(1, victims.len())] {
        for said in others_of_trainers(2, pipeline, victim, Signal::SIGKILL, 3) {
            let lost = format!("rank {victim} (`{name}`) was lost while {was}");
            assert!(said.contains(&lost), "{lost}: {said}");
        }
    }
}

#[test]
fn a_killed_server_of_rows_ends_the_job() {
    let recommender = include_str!("../../../jobs/recommender.toml").replace("every = 100 ", "every = 1 ");
    for said in others_of_trainers(2, &recommender, 2, Signal::SIGKILL, 3) {
        assert!(said.contains("rank 2 (`server2`) was lost while serving modules"), "{said}");
    }
}

/// However their gradients become an average.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_killed_replica_ends_the_job_and_leaves_nobody_in_a_collective() {
    let powersgd = "average = \"ddp\"\nhook = \"powersgd\"\npowersgd_start = 2";
    let ways = ["average = \"ddp\"", "average = \"all_reduce\"", "average = \"ring\"", powersgd];
    for (way, victim) in ways.into_iter().zip([2, 3, 1, 2]).filter(|_| runs_by_default()) {
        for said in others_of(&replicas_averaged(way), victim, Signal::SIGKILL, 3) {
            assert!(
                said.contains(&format!("rank {victim} (`trainer{victim}`) was lost while training, step")),
                "{said}"
            );
        }
    }
}

/// Runs the ranks of `job.toml`, each with its data where `root` says. All but the last look at theirs and join; then `change` is
/// called, and the last one comes. Their exit codes, and what they said.
fn run_and_change_data(
    folder: &Path,
    size: u32,
    settings: &[&str],
    root: impl Fn(u32) -> Option<&'static str>,
    change: impl FnOnce(),
) -> Vec<(Option<i32>, String)> {
    let port = free_port().to_string();
    let said = |rank: u32| std::fs::read_to_string(folder.join(format!("errors{rank}"))).unwrap_or_default();
    let run = |rank: u32| {
        let mut command = pstrain(folder);
        command.args(["run", "job.toml", "--rank", &rank.to_string(), "--master-port", &port]);
        command.args(["--run-dir", "RUN"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        if let Some(root) = root(rank) {
            command.args(["--set", &format!("data.root={root}")]);
        }
        let errors = std::fs::File::create(folder.join(format!("errors{rank}"))).expect("a file");
        command.stderr(errors).spawn().expect("pstrain starts")
    };
    let last = size - 1;
    let mut ranks: Vec<Child> = (0..last).map(run).collect();
    let only_one = format!("waiting for trainer{last}\n");
    eventually(&only_one, || said(0).contains(&only_one));
    change();
    ranks.push(run(last));
    let codes: Vec<_> = ranks.into_iter().map(|rank| wait(rank).status.code()).collect();
    codes.into_iter().zip(0..).map(|(code, rank)| (code, said(rank))).collect()
}

#[test]
fn a_rank_that_lives_and_does_not_move_ends_the_job_with_what_it_stands_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = "place = \"server\"";
    regression(folder.path(), place, "1,2\n2,4\n3,6\n", &[("world_size = 2", "world_size = 3")]);
    let own = folder.path().join("own");
    std::fs::create_dir(&own).expect("a folder");
    std::fs::copy(folder.path().join("rows.csv"), own.join("rows.csv")).expect("a file");
    let settings = ["plugins.open_time_ms=60000", "cluster.stalled_after_ms=4000"];
    let pipe = || {
        std::fs::remove_file(own.join("rows.csv")).expect("a file");
        nix::unistd::mkfifo(&own.join("rows.csv"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    };
    let ended = run_and_change_data(folder.path(), 3, &settings, |rank| (rank == 1).then_some("own"), pipe);
    for (code, said) in ended {
        assert_eq!(code, Some(3), "{said}");
        assert!(
            said.contains(
                " stands still while opening the data with plug-in `csv`: no sign of progress for "
            ),
            "{said}"
        );
        assert!(
            said.contains("(`cluster.stalled_after_ms` is 4000): it is at work of its own; rank 0 "),
            "{said}"
        );
    }
}

/// In a collective nobody looks at heartbeats: the mesh does, and ends the group.
#[test]
fn a_replica_that_hangs_is_found_by_its_silence() {
    let ways = ["average = \"ddp\"", "average = \"ddp\"\nhook = \"powersgd\"\npowersgd_start = 2"];
    for way in ways.into_iter().filter(|_| runs_by_default()) {
        for said in others_of(&replicas_averaged(way), 1, Signal::SIGSTOP, 3) {
            assert!(said.contains("rank 1 (`trainer1`) was lost"), "{said}");
            assert!(said.contains("nothing came from it for 2."), "{said}");
        }
    }
}

/// The others wait for it while they make their group.
#[test]
fn a_replica_that_ends_before_the_group_is_there_ends_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("job.toml"), replicas()).expect("a job");
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/digits");
    let own = folder.path().join("own");
    std::fs::create_dir(&own).expect("a folder");
    let files = || {
        let all = std::fs::read_dir(&digits).expect("a folder").map(|file| file.expect("a file").file_name());
        all.filter(|file| file.to_string_lossy().contains("ubyte"))
    };
    for file in files() {
        std::fs::copy(digits.join(&file), own.join(&file)).expect("a file");
    }
    let mut began = Instant::now();
    let spoil = || {
        files().for_each(|file| std::fs::write(own.join(file), "broken").expect("a file"));
        began = Instant::now();
    };
    let ended = run_and_change_data(folder.path(), 4, &[], |rank| (rank == 2).then_some("own"), spoil);
    assert!(began.elapsed() < NOTICED + NOTICED, "they ended after {:?}", began.elapsed());
    for ((code, said), rank) in ended.into_iter().zip(0..) {
        assert_eq!(code, Some(if rank == 2 { 2 } else { 1 }), "{said}");
        assert!(said.contains("the training data"), "{said}");
    }
}

#[test]
fn an_interrupted_rank_ends_all_ranks_in_order() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let others = others_after(1, signal, 130);
        assert!(others.iter().all(|said| said.contains("error: interrupted")), "{others:?}");
        assert!(others[0].ends_with("what the run recorded is in `RUN`\n"), "rank 0: {}", others[0]);
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn an_interrupted_spawn_leaves_no_rank_behind() {
    for what in [Signal::SIGINT, Signal::SIGTERM] {
        let folder = tempfile::tempdir().expect("a folder");
        let launcher = start(&mut spawn(folder.path(), None, &["train.epochs=100000"]));
        wait_for_steps(folder.path(), 3);
        let ranks = ranks_of(&launcher);
        assert_eq!(ranks.len(), 4);
        send_signal(&launcher, what);
        let output = wait(launcher);
        assert_code(&output, 130);
        assert!(stderr(&output).ends_with("what the run recorded is in `RUN`\n"), "{}", stderr(&output));
        for rank in ranks {
            assert!(!Path::new(&format!("/proc/{rank}")).exists(), "process {rank} still runs");
        }
    }
}
