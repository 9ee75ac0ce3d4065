//! Worlds of several ranks in one process, over real loopback sockets. Every wait is bounded.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::panic::Location;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use pstrain::rpc::{CallError, JoinError, LostRank, Mesh, MeshConfig, Message, Methods, Pending, Value};
use pstrain::topology::{Rank, WorldSize};
use tch::Tensor;

/// Far more than anything here takes, even on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn config(rank: u32, world_size: u32, master: SocketAddr) -> MeshConfig {
    let mut config = MeshConfig::new(Rank(rank), WorldSize(world_size), master.to_string());
    config.name = format!("tester{rank}");
    config.role = "tester".into();
    config.join_timeout = Duration::from_secs(30);
    config.rpc_timeout = Duration::from_secs(30);
    config
}

/// A socket for rank 0, and its address.
pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// All ranks of a world; `adjust` changes a rank's configuration, `methods` gives it its methods.
pub fn world_with(
    size: u32,
    methods: impl Fn(u32) -> Methods,
    adjust: impl Fn(&mut MeshConfig),
) -> Vec<Mesh> {
    let (socket, address) = listener();
    let mut socket = Some(socket);
    let joins: Vec<_> = (0..size)
        .map(|rank| {
            let mut config = config(rank, size, address);
            config.listen = socket.take();
            adjust(&mut config);
            join_later(config, methods(rank))
        })
        .collect();
    joins.into_iter().map(|join| within(join).expect("joins")).collect()
}

pub fn world(size: u32, methods: impl Fn(u32) -> Methods) -> Vec<Mesh> {
    world_with(size, methods, |_| ())
}

pub fn join_later(config: MeshConfig, methods: Methods) -> mpsc::Receiver<Result<Mesh, JoinError>> {
    later(move || Mesh::join(config, methods))
}

/// The most memory that a process has had so far, in KiB; `self` is this one. None: it is over.
pub fn peak_kib(process: impl std::fmt::Display) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Names the test that is run alone.
const ALONE: &str = "TEST_ALONE";

/// Has the test of this path, which asks, run in a process of its own, where memory is its own. Whether this is that process.
#[track_caller]
pub fn is_alone(test: &str) -> bool {
    const LIMIT: Duration = Duration::from_secs(1800);
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]).env(ALONE, test).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    let ended = later(move || child.wait_with_output().expect("a child"));
    let Ok(output) = ended.recv_timeout(LIMIT) else {
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        panic!("no end within {LIMIT:?}");
    };
    let [said, told] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    println!("{said}{told}");
    assert!(output.status.success() && said.contains("1 passed"), "{test} failed alone: {}", output.status);
    false
}

/// How often to try what only counts over many repetitions: `part`, and `all` where the whole is asked for.
pub fn times(part: usize, all: usize) -> usize {
    if std::env::var_os("TEST_ALL").is_some() { all } else { part }
}

/// Whether the next of a test's many cases, which take seconds each, is one of those that run by default: the first, and each
/// tenth, which are others in another test. Asked once for each case, on the test's thread, in one place of the test.
#[track_caller]
pub fn runs_by_default() -> bool {
    // Tests may have one thread, one after the other.
    thread_local!(static ASKED: RefCell<BTreeMap<Location<'static>, usize>> = const { RefCell::new(BTreeMap::new()) });
    let nth = ASKED.with_borrow_mut(|asked| {
        let next = asked.entry(*Location::caller()).or_default();
        *next += 1;
        *next - 1
    });
    let of_ten = thread::current().name().map_or(0, |test| test.len() % 10);
    nth == 0 || nth % 10 == of_ten || times(0, 1) == 1
}

/// Runs `work` on a thread of its own.
pub fn later<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    wait
}

#[track_caller]
pub fn within<T>(wait: mpsc::Receiver<T>) -> T {
    wait.recv_timeout(LIMIT).expect("in time")
}

/// All ranks shut down in order.
#[track_caller]
pub fn shut_down(meshes: Vec<Mesh>) {
    let all: Vec<_> = meshes.into_iter().map(|mesh| later(move || mesh.shutdown())).collect();
    for one in all {
        within(one).expect("in order");
    }
}

/// How the mesh ends, which is soon, and not in order.
#[track_caller]
pub fn lost(mesh: &Mesh) -> LostRank {
    eventually("the mesh ends", || mesh.lost().now().is_some());
    mesh.lost().now().expect("it has ended")
}

/// Looks again and again until `holds`, a thousand times a second: others need the processor.
#[track_caller]
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// `echo` returns what it gets.
pub fn echo() -> Methods {
    let mut methods = Methods::new();
    methods.add("echo", async |incoming| Ok(incoming.message));
    methods
}

pub fn message(values: impl IntoIterator<Item = Value>) -> Message {
    Message::new(values.into_iter().collect())
}

/// The one value of an answer.
#[track_caller]
pub fn one(pending: Pending) -> Value {
    let [value] = values(pending.wait().expect("an answer"));
    value
}

/// The values of a message that has `N` of them.
#[track_caller]
pub fn values<const N: usize>(message: Message) -> [Value; N] {
    let wrong = |values: Vec<Value>| panic!("{} values came where {N} are expected", values.len());
    message.values.try_into().unwrap_or_else(wrong)
}

/// The tensor that a value is, without what it brings along.
pub fn tensor_of(value: Value) -> Result<Tensor, CallError> {
    Ok(value.into_sent()?.tensor)
}

#[track_caller]
pub fn error(pending: Pending) -> CallError {
    pending.wait().expect_err("an error")
}

/// A job that learns `y` from `x` of each of the `rows`: one server or none, as `place` says, one trainer, one sample a step.
/// Each of `changes` stands in the place of some text of the job.
pub fn regression(folder: &Path, place: &str, rows: &str, changes: &[(&str, &str)]) {
    const JOB: &str = r#"
[cluster]
world_size = 2
[roles]
server = 1
trainer = "rest"
[modules.net]
place = "server"
input = [1]
layers = [{ type = "linear", in_features = 1, out_features = 1 }]
[data]
root = "."
plugin = "csv"
shuffle = false
[data.train]
file = "rows.csv"
target = ["y"]
[loss]
plugin = "mse"
[optimizer]
type = "sgd"
lr = 0.01
[train]
batch_size = 1
"#;
    let roles = if place.contains("trainer") { "" } else { "server = 1\n" };
    let own = [("server = 1\n", roles), ("place = \"server\"", place)];
    let job = own.iter().chain(changes).fold(JOB.to_owned(), |job, (from, to)| {
        assert!(job.contains(from), "{from}");
        job.replace(from, to)
    });
    fs::write(folder.join("job.toml"), job).expect("a folder");
    fs::write(folder.join("rows.csv"), format!("x,y\n{rows}")).expect("a folder");
}
