//! Ports of a job that trains: where they are, and what strangers who connect to them get.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::program::*;
use crate::support::{later, within};

/// To one port, of whom each second one talks.
const STRANGERS: usize = 500;

/// Where the ranks meet: no address that a machine's name stands for, so that nobody listens there by chance.
const MASTER: &str = "127.0.0.2";
/// As Linux's `/proc/net/tcp` writes it, and the one from which it is reached.
const MASTER_THERE: &str = "0200007F";
const LOOPBACK_THERE: &str = "0100007F";

/// The state of a socket that listens, in Linux's `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// Replicas on the images of digits, for some seconds.
fn replicas() -> String {
    include_str!("../../../jobs/digits_ps.toml")
        .replace("server = 1\n", "")
        .replace("place = \"server\"", "place = \"trainer\"")
        .replace("consistency = \"async\"", "")
}

/// The processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.strip_prefix("PPid:").is_some_and(|of| of.trim() == parent.to_string()))
    };
    pids.filter(is_child).collect()
}

/// The descriptors of a process, as what they stand for.
fn descriptors(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.map(|link| link.display().to_string()).collect()
}

/// Where a process listens by TCP, each as the system writes it: the address's bytes backwards, and the port.
fn listens_at(pid: u32) -> Vec<(String, u16)> {
    let own: HashSet<String> = descriptors(pid).into_iter().collect();
    let table = |name| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let tables = table("tcp") + &table("tcp6");
    let sockets = tables.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = sockets.filter(|socket| {
        socket.len() > 9 && socket[3] == LISTENS && own.contains(&format!("socket:[{}]", socket[9]))
    });
    let at = |socket: Vec<&str>| {
        let (address, port) = socket[1].split_once(':').unwrap();
        (address.to_owned(), u16::from_str_radix(port, 16).unwrap())
    };
    own.map(at).collect()
}

/// Somebody who connects to a port so many times and says nothing, or something that nobody there understands, until their
/// standard input ends.
fn strangers(address: &str, port: u16) -> Child {
    const CONNECT: &str = "for i in $(seq $1); do exec {fd}<>/dev/tcp/$0 || exit 1; \
                           [ $((i % 2)) = 0 ] || printf hello >&$fd; done; echo held; read _";
    let at = if address == MASTER_THERE { MASTER } else { "127.0.0.1" };
    let mut shell = Command::new("bash");
    shell.args(["-c", CONNECT, &format!("{at}/{port}"), &STRANGERS.to_string()]);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = shell.stdout.take().unwrap();
    let said = within(later(move || BufReader::new(stdout).lines().next()));
    assert_eq!(said.expect("a word").unwrap(), "held");
    shell
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn connections_to_every_port_of_replicas_take_no_descriptor_of_theirs() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), replicas()).unwrap();
    let settings = ["cluster.world_size=2", "train.epochs=12", "log.every=1"];
    let mut spawn = spawn(folder.path(), Some("job.toml"), &settings);
    let run = start(spawn.args(["--master-addr", MASTER]));
    wait_for_metrics(folder.path(), |metrics| metrics.lines().count() > 10);
    let ranks = children(run.id());
    let ports: Vec<_> = ranks.iter().map(|&rank| listens_at(rank)).collect();
    let counts = || ranks.iter().map(|&rank| descriptors(rank).len()).collect::<Vec<_>>();
    let before = counts();
    // Gloo's: the mesh listens no more, and the group's store has no port.
    assert_eq!(ports.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1], "{ports:?}");
    let mut interfaces: Vec<&str> = ports.iter().flatten().map(|(address, _)| address.as_str()).collect();
    interfaces.sort_unstable();
    assert_eq!(interfaces, [LOOPBACK_THERE, MASTER_THERE], "where the mesh is: {ports:?}");
    let strangers: Vec<Child> =
        ports.iter().flatten().map(|(address, port)| strangers(address, *port)).collect();
    let after = counts();
    assert!(
        before.iter().zip(&after).all(|(before, after)| after < &(before + STRANGERS / 10)),
        "{before:?} {after:?}"
    );
    let output = wait(run);
    assert_code(&output, 0);
    for mut stranger in strangers {
        drop(stranger.stdin.take());
        stranger.wait().unwrap();
    }
}
