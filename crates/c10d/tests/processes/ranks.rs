//! Ranks that meet over TCP and file stores, train, and are killed.

use std::path::PathBuf;
use std::process::Output;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::small_model::{Batch, Mlp, small_buckets};
use c10d::reducer::{Bucket, CommHook, Hook, PowerSgdOptions, Reducer, ReducerOptions};
use c10d::{Error, Options, ProcessGroup, ReduceOp, Result, Store, TcpOptions};
use tch::{Device, Kind, Tensor};

const LIMIT: Duration = Duration::from_secs(60);

/// The timeout of operations in which a rank is killed. Gloo ends them at once, but for one that was in the middle of a message
/// on the connection that broke: that runs out of time.
const TIMEOUT: Duration = Duration::from_secs(4);

/// A connection that breaks is noticed sooner than that.
const AT_ONCE: Duration = Duration::from_secs(2);

pub const TESTS: &[(&str, fn())] = tests![
    processes_meet_over_a_tcp_store,
    processes_meet_over_a_file,
    checked_processes_meet_too,
    a_process_that_dies_inside_a_backward_is_an_error_of_the_other,
    a_killed_rank_is_named_by_all_others,
    a_rank_that_is_killed_in_the_middle_of_a_message_is_named,
    a_killed_rank_is_named_in_a_checked_group,
    with_a_frozen_rank_a_backward_ends_with_the_group,
    with_a_frozen_rank_a_hook_in_a_group_of_its_own_ends_with_the_group,
    with_a_killed_rank_a_backward_ends_with_the_group,
];

/// What each process does; the rest is in its environment.
pub fn rank(what: &str) {
    let number = |name: &str| env::var(name).unwrap().parse::<u32>().unwrap();
    let (rank, size) = (number("RANK"), number("SIZE"));
    let place = env::var("STORE").unwrap();
    let store = match place.strip_prefix("tcp:") {
        Some(port) => Store::tcp(&TcpOptions {
            // The test holds the server, so that the death of rank 0 takes no store with it.
            is_server: false,
            timeout: LIMIT,
            ..TcpOptions::new("127.0.0.1", port.parse().unwrap(), rank, size)
        }),
        None => Store::file(&place, size),
    }
    .unwrap();
    let checked = env::var("CHECKED").is_ok();
    let timeout = if what.ends_with("until killed") { TIMEOUT } else { LIMIT };
    let options = Options { timeout, join_timeout: Some(LIMIT), checked, ..Options::default() };
    let group = ProcessGroup::new(&store, rank, size, options).unwrap();
    match what {
        "sum" => {
            let mut tensor = Tensor::from_slice(&[i64::from(rank)]);
            group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            assert_eq!(tensor.int64_value(&[0]), i64::from(size * (size - 1) / 2));
            let pair = group.subgroup(&[0, size - 1]).unwrap();
            if let Some(pair) = pair {
                pair.broadcast(&mut tensor, 1).unwrap();
            }
            group.barrier().unwrap();
        }
        "reduce until killed" => {
            until_killed(&group, &store, 1 << 16, |tensor| group.all_reduce(tensor, ReduceOp::Max))
        }
        "broadcast until killed" => {
            until_killed(&group, &store, 1 << 24, |tensor| group.broadcast(tensor, 0))
        }
        "leave" => {
            // All have all their connections before one goes.
            group.barrier().unwrap();
            let hook = Hook::Custom(Box::new(Leaves(1)));
            let error = backward(&group, ReducerOptions { hook, ..small_buckets() }).unwrap_err();
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        }
        "train" => train(&group, &store, Hook::None),
        "train with a hook" => {
            let options = PowerSgdOptions { start_iter: 2, ..PowerSgdOptions::default() };
            train(&group, &store, Hook::PowerSgd(options));
        }
        other => panic!("{other}"),
    }
}

/// The backward of one step.
fn backward(group: &ProcessGroup, options: ReducerOptions) -> Result<()> {
    let model = Mlp::new(1);
    let mut reducer = Reducer::new(&model.parameters, &[], group, options).unwrap();
    reducer.before_forward()?;
    reducer.backward(&model.loss(&Batch::whole(0, 8)))
}

/// Ends the process of this rank in the middle of a backward.
struct Leaves(u32);

impl CommHook for Leaves {
    fn reduce(&mut self, bucket: &Bucket, group: &ProcessGroup) -> Result<Tensor> {
        if group.rank() == self.0 {
            c10d::process::leave(3);
        }
        let mut average = &bucket.buffer / f64::from(group.size());
        group.all_reduce(&mut average, ReduceOp::Sum)?;
        Ok(average)
    }
}

/// Operates until a rank is gone, and says who it was and how long it took to know.
fn until_killed(
    group: &ProcessGroup,
    store: &Store,
    elements: i64,
    operate: impl Fn(&mut Tensor) -> Result<()>,
) {
    let mut tensor = Tensor::ones([elements], (Kind::Float, Device::Cpu));
    store.set(&format!("ready/{}", group.rank()), "").unwrap();
    loop {
        let start = Instant::now();
        if let Err(error) = operate(&mut tensor) {
            let peers = if let Error::PeerLost { peers, .. } = &error { peers.clone() } else { Vec::new() };
            let shown: Vec<String> = peers.iter().map(u32::to_string).collect();
            println!("LOST {} after {} ms: {error}", shown.join(" "), start.elapsed().as_millis());
            return;
        }
    }
}

/// Trains until somebody else says that the group has no future.
fn train(group: &ProcessGroup, store: &Store, hook: Hook) {
    let model = Mlp::new(1);
    let mut reducer =
        Reducer::new(&model.parameters, &[], group, ReducerOptions { hook, ..small_buckets() }).unwrap();
    let (watched, own) = (group.clone(), store.reconnect().unwrap());
    thread::spawn(move || {
        own.wait(&["give up"], LIMIT).unwrap();
        watched.abort();
    });
    for step in 0.. {
        if step == 3 {
            store.set(&format!("ready/{}", group.rank()), "").unwrap();
        }
        let outcome =
            reducer.before_forward().and_then(|()| reducer.backward(&model.loss(&Batch::whole(0, 8))));
        if let Err(error) = outcome {
            println!("ENDED: {error}");
            store.set(&format!("ended/{}", group.rank()), "").unwrap();
            return;
        }
        model.zero_grad();
    }
}

struct Ranks {
    pids: Vec<i32>,
    outputs: Vec<mpsc::Receiver<Output>>,
}

impl Ranks {
    fn start(size: u32, store: &str, what: &str, checked: bool) -> Self {
        let mut ranks = Self { pids: Vec::new(), outputs: Vec::new() };
        for rank in 0..size {
            let mut command = crate::process(what);
            command.env("RANK", rank.to_string()).env("SIZE", size.to_string());
            command.env("STORE", store);
            if checked {
                command.env("CHECKED", "1");
            }
            let child = command.spawn().unwrap();
            ranks.pids.push(i32::try_from(child.id()).unwrap());
            let (ended, end) = mpsc::channel();
            ranks.outputs.push(end);
            thread::spawn(move || {
                let _ = ended.send(child.wait_with_output().unwrap());
            });
        }
        ranks
    }

    fn kill(&self, rank: usize) {
        self.signal(rank, libc::SIGKILL);
    }

    fn signal(&self, rank: usize, signal: i32) {
        // SAFETY: a signal to a child that has not been waited for: its number is still its own.
        unsafe { libc::kill(self.pids[rank], signal) };
    }

    /// Looks again and again: to wait for it would take its end from the thread that does.
    fn wait_until_stopped(&self, rank: usize) {
        let start = Instant::now();
        let stat = || fs::read_to_string(format!("/proc/{}/stat", self.pids[rank])).unwrap();
        while !stat().contains(") T ") {
            assert!(start.elapsed() < LIMIT, "{}", stat());
            thread::yield_now();
        }
    }

    /// What each wrote, once all have ended.
    fn ended(&self) -> Vec<String> {
        let text = |(rank, end): (usize, &mpsc::Receiver<Output>)| {
            let mut hangs = "";
            let output = end.recv_timeout(LIMIT).unwrap_or_else(|_| {
                hangs = "\nHANGS";
                self.kill(rank);
                end.recv_timeout(LIMIT).unwrap()
            });
            let text = [output.stdout, output.stderr].concat();
            format!("{}{}{hangs}", String::from_utf8_lossy(&text), output.status)
        };
        self.outputs.iter().enumerate().map(text).collect()
    }
}

fn server() -> (Store, String) {
    let options = TcpOptions { wait_workers: false, ..TcpOptions::new("127.0.0.1", 0, 0, 1) };
    let store = Store::tcp(&options).unwrap();
    let place = format!("tcp:{}", store.port().unwrap());
    (store, place)
}

fn file(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

fn all_passed(outputs: Vec<String>) {
    for output in outputs {
        assert!(output.ends_with("exit status: 0"), "{output}");
    }
}

fn processes_meet_over_a_tcp_store() {
    let (_server, place) = server();
    all_passed(Ranks::start(3, &place, "sum", false).ended());
}

fn processes_meet_over_a_file() {
    all_passed(Ranks::start(3, file("meet").to_str().unwrap(), "sum", false).ended());
}

fn checked_processes_meet_too() {
    let (_server, place) = server();
    all_passed(Ranks::start(2, &place, "sum", true).ended());
    all_passed(Ranks::start(2, file("checked").to_str().unwrap(), "sum", true).ended());
}

fn a_process_that_dies_inside_a_backward_is_an_error_of_the_other() {
    let (_server, place) = server();
    let outputs = Ranks::start(2, &place, "leave", false).ended();
    assert!(outputs[0].ends_with("exit status: 0"), "{}", outputs[0]);
    assert!(outputs[1].ends_with("exit status: 3"), "{}", outputs[1]);
}

/// Rank `victim` of three gets these signals, and the second once the first has stopped it. How many ranks were told at once.
fn a_killed_rank_is_named(what: &str, victim: usize, checked: bool, signals: &[i32]) -> usize {
    let (server, place) = server();
    let ranks = Ranks::start(3, &place, what, checked);
    server.wait(&["ready/0", "ready/1", "ready/2"], LIMIT).unwrap();
    for &signal in signals {
        ranks.signal(victim, signal);
        if signal == libc::SIGSTOP {
            ranks.wait_until_stopped(victim);
        }
    }
    let killed = Instant::now();
    let outputs = ranks.ended();
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?} {outputs:#?}", killed.elapsed());
    let mut at_once = 0;
    for (rank, output) in outputs.iter().enumerate().filter(|(rank, _)| *rank != victim) {
        let told = output.split("LOST ").nth(1).and_then(|rest| rest.split_once(" after "));
        let (named, rest) = told.unwrap_or_else(|| panic!("rank {rank}, rank {victim} killed: {output}"));
        // A rank that was quicker to know, and left, may be among them.
        assert!(named.split(' ').any(|named| named == victim.to_string()), "{output}");
        assert!(output.contains("gone: nothing answers where"), "{output}");
        let after = Duration::from_millis(rest.split(' ').next().unwrap().parse().unwrap());
        assert!(after < Duration::from_secs(5), "{output}");
        at_once += usize::from(after < AT_ONCE);
    }
    at_once
}

/// Every rank, because connections are made from one side: some see the listening address of the dead one, others not.
fn each_rank_is_killed(checked: bool) {
    let killed = |victim| a_killed_rank_is_named("reduce until killed", victim, checked, &[libc::SIGKILL]);
    let at_once: usize = (0..3).map(killed).sum();
    assert!(at_once >= 4, "of six only {at_once} were told at once");
}

fn a_killed_rank_is_named_by_all_others() {
    each_rank_is_killed(false);
}

fn a_rank_that_is_killed_in_the_middle_of_a_message_is_named() {
    // Stopped, it lets the others wait for the rest of what it sends, unless it was between two messages: then they are told
    // at once.
    a_killed_rank_is_named("broadcast until killed", 0, false, &[libc::SIGSTOP, libc::SIGKILL]);
}

fn a_killed_rank_is_named_in_a_checked_group() {
    each_rank_is_killed(true);
}

/// In the middle of their steps rank 1 gets `signal`, and the others are told to give the group up.
fn training_ends(what: &str, signal: i32) {
    let (server, place) = server();
    let ranks = Ranks::start(3, &place, what, false);
    server.wait(&["ready/0", "ready/1", "ready/2"], LIMIT).unwrap();
    ranks.signal(1, signal);
    server.set("give up", "").unwrap();
    let ended = server.wait(&["ended/0", "ended/2"], Duration::from_secs(5));
    ranks.kill(1);
    let outputs = ranks.ended();
    assert!(ended.is_ok(), "{outputs:#?}");
    for rank in [0, 2] {
        assert!(outputs[rank].contains("ENDED: "), "{}", outputs[rank]);
    }
}

/// Its sockets stay open, so that nothing but the abort tells the others.
fn with_a_frozen_rank_a_backward_ends_with_the_group() {
    training_ends("train", libc::SIGSTOP);
}

fn with_a_frozen_rank_a_hook_in_a_group_of_its_own_ends_with_the_group() {
    training_ends("train with a hook", libc::SIGSTOP);
}

fn with_a_killed_rank_a_backward_ends_with_the_group() {
    training_ends("train", libc::SIGKILL);
    training_ends("train with a hook", libc::SIGKILL);
}
