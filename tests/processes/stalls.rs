//! Ranks that stand still on purpose, each a process of its own: this program once more, told by its environment which of them it is.
//! `doctor` is asked who holds the others up, and has to say it in time.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use pstrain::job::{self, Job, JobText, Sources};
use pstrain::parallel::Groups;
use pstrain::recorder::{Begins, Kind, RECORDER};
use pstrain::rpc::{Mesh, Message, Methods, Value};
use pstrain::runner::flight::{FlightWriter, Flights, SharedWriter};
use pstrain::topology::Rank;
use tch::{Device, Tensor};

use crate::support::{config, listener, message, times, values};

/// The variable that makes this program a rank: `STALL STEP RANK FOLDER`, and of others than rank 0 where that listens.
pub const STALLED: &str = "PSTRAIN_TEST_STALLED";

/// Needs root, for a disk of its own.
pub const FULL: &str = "a_full_disk_is_named";

pub const TESTS: &[(&str, fn())] = tests![
    a_handler_that_deadlocks_is_named_in_time,
    a_rank_that_does_not_come_to_a_collective_is_named_in_time,
    a_full_disk_is_named,
];

const WORLD_SIZE: u32 = 3;

/// For the doctor's answer: its own time, and twice as much for a busy machine.
const IN_TIME: Duration = Duration::from_secs(6);
const LIMIT: Duration = Duration::from_secs(60);

fn job_text() -> String {
    include_str!("../../jobs/digits_ps.toml").replace("world_size = 4", "world_size = 3")
}

fn job() -> Job {
    let text = job_text();
    let file = JobText { name: "job.toml", text: &text };
    job::load(&Sources { file, env: Vec::new(), overrides: &[] }).expect("a job").job
}

// ---- the ranks

/// One server and two trainers.
pub fn be_rank(told: &str) {
    let words: Vec<&str> = told.split(' ').collect();
    let [stall, step, rank, folder, at @ ..] = &words[..] else { panic!("{told}") };
    let (step, rank): (u64, u32) = (step.parse().expect("a step"), rank.parse().expect("a rank"));
    let writer = write_when_asked();
    let mut methods = Methods::new();
    let (listens, address) = if let [at] = at {
        (None, at.parse().expect("an address"))
    } else {
        let (socket, own) = listener();
        println!("{own}");
        Flights::open(Path::new(folder)).register(&mut methods);
        (Some(socket), own)
    };
    let deadlocks = (*stall == "handler").then_some(step);
    methods.add("compute", move |incoming| {
        let [at] = values(incoming.message);
        if matches!((at, deadlocks), (Value::Int(at), Some(step)) if at as u64 == step) {
            deadlock();
        }
        Box::pin(std::future::ready(Ok(Message::default())))
    });
    Groups::register(&mut methods);
    let mut config = config(rank, WORLD_SIZE, address);
    config.listen = listens;
    let mesh = Mesh::join(config, methods).expect("joins");
    let role = if rank == 0 { "server" } else { "trainer" };
    assert!(writer.set(FlightWriter::register(&mesh, role).expect("registers")).is_ok());
    match rank {
        0 => drop(mesh.barrier("trained").wait()),
        _ if *stall == "collective" => average(&mesh, rank, step),
        _ => call(&mesh),
    }
}

/// As ranks do.
fn write_when_asked() -> SharedWriter {
    let mut asked = SigSet::empty();
    asked.add(Signal::SIGUSR1);
    asked.thread_block().expect("blocks");
    let writer: SharedWriter = Arc::new(OnceLock::new());
    let writes = writer.clone();
    thread::spawn(move || {
        while asked.wait().is_ok() {
            writes.get().inspect(|writer| writer.asked());
        }
    });
    writer
}

fn deadlock() {
    let mutex = Mutex::new(());
    let _held = mutex.lock();
    let _never = mutex.lock();
}

fn data_of(step: u64) {
    let begins = Begins { what: "batch".into(), number: Some(step), ..Begins::default() };
    RECORDER.during(Kind::Batch, begins, || Ok::<_, ()>(())).expect("nothing fails");
}

/// A trainer that has the server compute, step by step.
fn call(mesh: &Mesh) {
    for step in 1.. {
        data_of(step);
        if mesh.call(Rank(0), "compute", message([Value::Int(step as i64)])).wait().is_err() {
            return;
        }
    }
}

/// A trainer that averages with the other one, step by step; rank 1 does so until `stops`.
fn average(mesh: &Mesh, rank: u32, stops: u64) {
    let groups = Groups::new(&job().cluster, Device::Cpu);
    let group = groups.join(mesh, "trainers", &[Rank(1), Rank(2)]).expect("a group");
    let mut tensor = Tensor::from_slice(&[1.0_f32]);
    for step in 1.. {
        data_of(step);
        if (rank, step) == (1, stops) {
            loop {
                thread::park();
            }
        }
        let averaged = || group.all_reduce(&mut tensor, c10d::ReduceOp::Sum);
        if RECORDER.collective("trainers", "all_reduce", averaged).is_err() {
            return;
        }
    }
}

// ---- who asks

struct World {
    folder: tempfile::TempDir,
    ranks: Vec<Child>,
}

impl World {
    fn start(stall: &str, step: u64) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("job.toml"), job_text()).expect("a job");
        let mut world = World { folder, ranks: Vec::new() };
        let mut first = world.rank(stall, step, 0, "");
        let mut address = String::new();
        let said = first.stdout.take().expect("it is piped");
        BufReader::new(said).read_line(&mut address).expect("an address");
        world.ranks.push(first);
        for rank in 1..WORLD_SIZE {
            let other = world.rank(stall, step, rank, address.trim());
            world.ranks.push(other);
        }
        world
    }

    fn rank(&self, stall: &str, step: u64, rank: u32, address: &str) -> Child {
        let told = format!("{stall} {step} {rank} {} {address}", self.folder.path().display());
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(STALLED, told.trim_end()).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().expect("starts")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn pstrain() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pstrain"));
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

/// Asks until a rank is named, and returns what was said and how long it took to say it.
fn doctor(run: &Path) -> (String, Duration) {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let output = pstrain().arg("doctor").arg(run).output().expect("starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() == Some(1) {
            return (said, asked.elapsed());
        }
        assert!(begun.elapsed() < LIMIT, "{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Stalls at several steps; of each is named who and what.
fn is_named(stall: &str, wanted: impl Fn(u64) -> String) {
    let mut longest = Duration::ZERO;
    for nth in 0..times(1, 20) as u64 {
        let step = 20 + 37 * nth;
        let world = World::start(stall, step);
        let (said, took) = doctor(world.folder.path());
        assert!(said.contains(&wanted(step)), "{said}");
        assert!(took < IN_TIME, "{took:?}");
        longest = longest.max(took);
    }
    println!("{stall}: the longest answer took {longest:?}");
}

fn a_handler_that_deadlocks_is_named_in_time() {
    is_named("handler", |_| "because of rank 0 (`server0`): it computes `compute` of rank".into());
}

fn a_rank_that_does_not_come_to_a_collective_is_named_in_time() {
    is_named("collective", |step| {
        format!(
            "because of rank 1 (`trainer1`): it has not come to `all_reduce`, the {step}. collective of group `trainers`"
        )
    });
}

/// A disk that has room for a run's first lines, filled while it trains.
fn a_full_disk_is_named() {
    struct Disk(PathBuf);
    impl Drop for Disk {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Disk(folder.path().join("disk"));
    fs::create_dir(&disk.0).expect("a folder");
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "none"]).arg(&disk.0).status();
    assert!(mounted.expect("mount").success());
    let run = disk.0.join("RUN");
    let mut training = pstrain();
    // Where a run folder takes nothing, what its ranks have recorded goes to the current one.
    training.current_dir(folder.path()).args([
        "spawn",
        "--master-port",
        "0",
        "--set",
        "train.epochs=100000",
        "--set",
        "log.every=1",
        "--run-dir",
    ]);
    let mut training =
        training.arg(&run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let (said, took) = doctor(&run);
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(training.id().cast_signed()), Signal::SIGTERM);
    let _ = training.wait();
    assert!(said.contains("because of rank 0 (`server0`): the disk of the run folder is full"), "{said}");
    assert!(took < IN_TIME, "{took:?}");
}
