//! Forked ranks and their parent. This program is started once more for each launch, with the case's name in the
//! environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::unistd::{Pid, getpid};
use pstrain::runner::launch::{Forked, Grace, LocalRank, bind_master, fork_ranks};
use pstrain::runner::progress::{Board, ColorChoice, Look, Mode, Reporter};

/// The variable that names the case.
pub const CASE: &str = "PSTRAIN_TEST_LAUNCH";
/// No test waits longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time that the failing launches below give to ranks that stay.
const GRACE: Duration = Duration::from_secs(1);
/// With this variable they are given [`PATIENCE`] and longer.
const LONG_GRACE: &str = "PSTRAIN_TEST_LAUNCH_LONG_GRACE";

pub const TESTS: &[(&str, fn())] = tests![
    lines_of_all_ranks_are_merged_whole_and_with_their_names,
    a_single_rank_has_no_prefix,
    the_launch_ends_with_the_worst_exit_code,
    a_panic_is_a_failed_job,
    a_killed_rank_is_lost_and_stragglers_are_killed_after_the_grace,
    one_ctrl_c_lets_the_ranks_end_by_themselves,
    signals_of_one_press_are_one_and_the_ranks_end_by_themselves,
    a_second_ctrl_c_kills,
    a_rank_that_ignores_ctrl_c_is_killed_after_the_grace,
    ranks_die_with_their_parent,
    rank_zero_inherits_the_listener,
    progress_is_plain_lines_without_a_terminal,
    a_process_left_behind_does_not_hold_the_launch,
];

// What is launched

pub fn launch(case: &str) -> ExitCode {
    let names: &[&str] = match case {
        "single" => &["trainer0"],
        "codes" => &["server0", "trainer1", "trainer2"],
        _ => &["server0", "trainer1"],
    };
    let listen = (case == "listener").then(|| bind_master("127.0.0.1", 0).expect("a free port"));
    let address = listen.as_ref().map(|listen| listen.local_addr().expect("bound"));
    let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
    match fork_ranks(names.clone(), listen).expect("fork") {
        Forked::Parent(supervisor) => {
            let look = Look::detect(ColorChoice::Auto);
            assert_eq!(look.mode, Mode::Plain);
            let board = Board::new(names, look);
            let grace = if std::env::var_os(LONG_GRACE).is_some() { 2 * PATIENCE } else { GRACE };
            ExitCode::from(supervisor.supervise(&board, Grace::to_end(grace)).expect("supervise"))
        }
        Forked::Rank(rank) => ExitCode::from(be_rank(case, rank, address)),
    }
}

fn be_rank(case: &str, local: LocalRank, address: Option<std::net::SocketAddr>) -> u8 {
    let rank = local.rank.0;
    match case {
        "lines" => {
            for line in 0..300 {
                // In pieces, as a careless program writes them.
                eprint!("line {line} ");
                eprint!("of rank {rank}");
                eprintln!();
                println!("result {line} of {rank}");
            }
            eprint!("no end");
            0
        }
        "single" => {
            eprintln!("alone");
            0
        }
        "codes" => [0, 3, 1][rank as usize],
        "panic" => {
            assert_ne!(rank, 1, "boom");
            0
        }
        "killed" if rank == 1 => {
            raise(Signal::SIGKILL).expect("raise");
            0
        }
        // The default: SIGINT ends the rank.
        "interrupt" => stay(),
        "deaf" | "killed" | "orphans" => {
            let mut set = SigSet::empty();
            set.add(Signal::SIGINT);
            set.thread_block().expect("block");
            stay()
        }
        "orderly" => end_in_order(),
        "listener" => {
            match local.listen {
                Some(listen) => {
                    let mut text = String::new();
                    listen.accept().expect("accept").0.read_to_string(&mut text).expect("read");
                    println!("rank 0 got {text}");
                }
                None => {
                    let mut stream = TcpStream::connect(address.expect("an address")).expect("connect");
                    stream.write_all(b"hello").expect("write");
                }
            }
            0
        }
        "progress" => {
            let mut reporter = Reporter::to_parent(local.progress);
            reporter.doing("waiting for 1 rank");
            reporter.done(format!("{} steps", 100 * rank));
            0
        }
        "daemon" => {
            if rank == 0 {
                leave_a_process_behind();
            }
            0
        }
        other => panic!("no case {other}"),
    }
}

/// One of a group of its own, with the rank's stdout.
#[expect(clippy::zombie_processes, reason = "that it outlives the rank is the point")]
fn leave_a_process_behind() {
    use std::os::unix::process::CommandExt;
    let left = Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep");
    println!("pid {}", left.id());
}

/// The file whose name the environment gives in this variable lets the ranks of the case `orderly` end.
const MAY_END: &str = "PSTRAIN_TEST_LAUNCH_MAY_END";

/// Once it is interrupted and the test says that it may.
fn end_in_order() -> u8 {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.thread_block().expect("block");
    println!("pid {}", getpid());
    set.wait().expect("a signal");
    let may_end = std::env::var_os(MAY_END).map(std::path::PathBuf::from).expect("a file");
    let start = Instant::now();
    while !may_end.exists() && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    println!("ended in order");
    130
}

fn stay() -> u8 {
    println!("pid {}", getpid());
    // Until a signal.
    let (_kept, nothing) = std::sync::mpsc::channel::<()>();
    let _ = nothing.recv_timeout(2 * PATIENCE);
    0
}

// The tests

fn start(case: &str) -> Child {
    start_with(case, &[])
}

fn start_with(case: &str, env: &[(&str, &std::ffi::OsStr)]) -> Child {
    // A shell's background job ignores SIGINT, and hands that down to all that it starts.
    Command::new("env")
        .arg("--default-signal=INT")
        .arg(std::env::current_exe().expect("a path"))
        .env(CASE, case)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start")
}

/// Bounded: a launch that hangs is killed, and its ranks with it.
fn finish(child: Child) -> Output {
    let pid = Pid::from_raw(child.id() as i32);
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if told.recv_timeout(PATIENCE).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    let output = child.wait_with_output().expect("output");
    drop(tell);
    watchdog.join().expect("watchdog");
    output
}

fn run(case: &str) -> (Option<i32>, String, String) {
    let output = finish(start(case));
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Starts a launch and waits until both of its ranks stay.
fn start_staying(case: &str) -> (Child, Vec<Pid>) {
    let (child, _, pids) = start_staying_with(case, &[]);
    (child, pids)
}

/// Also gives what comes from the ranks' stdout.
fn start_staying_with(
    case: &str,
    env: &[(&str, &std::ffi::OsStr)],
) -> (Child, BufReader<std::process::ChildStdout>, Vec<Pid>) {
    let mut child = start_with(case, env);
    let mut pids = Vec::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    while pids.len() < 2 {
        let mut line = String::new();
        assert_ne!(stdout.read_line(&mut line).expect("read"), 0, "the launch ended early");
        pids.push(pid_of(&line).expect("a pid"));
    }
    (child, stdout, pids)
}

fn pid_of(line: &str) -> Option<Pid> {
    line.trim().strip_prefix("pid ")?.parse().ok().map(Pid::from_raw)
}

/// Gone, or a zombie that waits for an init process.
fn is_gone(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim().is_empty() || rest.trim().starts_with('Z'))
}

fn wait_until_gone(pids: &[Pid]) {
    let start = Instant::now();
    while !pids.iter().all(|&pid| is_gone(pid)) {
        assert!(start.elapsed() < PATIENCE, "still there: {pids:?}");
        std::thread::yield_now();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).expect("kill");
}

fn lines_of_all_ranks_are_merged_whole_and_with_their_names() {
    let (code, stdout, stderr) = run("lines");
    assert_eq!(code, Some(0));
    for (rank, name) in ["server0", "trainer1"].into_iter().enumerate() {
        let of_rank: Vec<&str> =
            stderr.lines().filter(|line| line.starts_with(&format!("[{name}] "))).collect();
        let mut expected: Vec<String> =
            (0..300).map(|line| format!("[{name}] line {line} of rank {rank}")).collect();
        expected.push(format!("[{name}] no end"));
        assert_eq!(of_rank, expected);
        let results = stdout.lines().filter(|line| line.ends_with(&format!("of {rank}")));
        assert!(results.eq((0..300).map(|line| format!("result {line} of {rank}"))));
    }
    assert_eq!((stderr.lines().count(), stdout.lines().count()), (602, 600));
}

fn a_single_rank_has_no_prefix() {
    assert_eq!(run("single"), (Some(0), String::new(), "alone\n".into()));
}

fn the_launch_ends_with_the_worst_exit_code() {
    assert_eq!(run("codes").0, Some(1));
}

fn a_panic_is_a_failed_job() {
    let (code, _, stderr) = run("panic");
    assert_eq!(code, Some(1));
    assert!(stderr.contains("boom"), "{stderr}");
}

fn a_killed_rank_is_lost_and_stragglers_are_killed_after_the_grace() {
    let (code, stdout, stderr) = run("killed");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("error: trainer1 (rank 1) was killed by SIGKILL\n  hint:"), "{stderr}");
    let straggler = "error: server0: still running 1 s after trainer1 was killed by SIGKILL; killed";
    assert!(stderr.contains(straggler), "{stderr}");
    wait_until_gone(&[pid_of(&stdout).expect("a pid")]);
}

fn one_ctrl_c_lets_the_ranks_end_by_themselves() {
    let (child, pids) = start_staying("interrupt");
    signal(&child, Signal::SIGINT);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(130));
    assert!(pids.iter().all(|&pid| is_gone(pid)), "reaped before the launch ends");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "interrupted: the ranks are ending; once more kills them\n"
    );
}

/// `timeout` passes on what it gets, and so what one press of Ctrl-C gives comes two or three times.
fn signals_of_one_press_are_one_and_the_ranks_end_by_themselves() {
    let folder = tempfile::tempdir().expect("a folder");
    let may_end = folder.path().join("may-end");
    let (mut child, mut stdout, _) = start_staying_with("orderly", &[(MAY_END, may_end.as_os_str())]);
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    signal(&child, Signal::SIGINT);
    // Signals do not queue: wait until the first is seen.
    stderr.read_line(&mut String::new()).expect("read");
    signal(&child, Signal::SIGTERM);
    signal(&child, Signal::SIGINT);
    std::fs::write(&may_end, b"").expect("write");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("read");
    assert_eq!(finish(child).status.code(), Some(130));
    assert_eq!(rest, "ended in order\nended in order\n");
}

fn a_second_ctrl_c_kills() {
    // Of ranks that would be left alone for longer than the test waits.
    let (mut child, _, pids) = start_staying_with("deaf", &[(LONG_GRACE, "1".as_ref())]);
    signal(&child, Signal::SIGINT);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "still there");
        signal(&child, Signal::SIGTERM);
        std::thread::yield_now();
    };
    assert_eq!(status.code(), Some(130));
    assert!(pids.iter().all(|&pid| is_gone(pid)));
}

fn a_rank_that_ignores_ctrl_c_is_killed_after_the_grace() {
    let (child, pids) = start_staying("deaf");
    signal(&child, Signal::SIGINT);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("server0, trainer1: still running 1 s after the interrupt; killed"), "{stderr}");
    assert!(pids.iter().all(|&pid| is_gone(pid)));
}

fn ranks_die_with_their_parent() {
    let (child, pids) = start_staying("orphans");
    signal(&child, Signal::SIGKILL);
    finish(child);
    wait_until_gone(&pids);
}

fn rank_zero_inherits_the_listener() {
    let (code, stdout, stderr) = run("listener");
    assert_eq!((code, stdout.as_str()), (Some(0), "rank 0 got hello\n"), "{stderr}");
}

fn progress_is_plain_lines_without_a_terminal() {
    let (code, stdout, stderr) = run("progress");
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    let mut lines: Vec<&str> = stderr.lines().collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "server0   0 steps",
            "server0   waiting for 1 rank",
            "trainer1  100 steps",
            "trainer1  waiting for 1 rank"
        ]
    );
}

fn a_process_left_behind_does_not_hold_the_launch() {
    let began = Instant::now();
    let (code, stdout, _) = run("daemon");
    assert_eq!(code, Some(0));
    assert!(began.elapsed() < Duration::from_secs(20));
    let _ = kill(pid_of(&stdout).expect("a pid"), Signal::SIGKILL);
}
