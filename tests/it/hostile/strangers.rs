//! Connections of those who do not belong to the job.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::proxy::{Side, Then, between};
use crate::program::{assert_code, pstrain, start, wait};
use crate::support::LIMIT;
use crate::support::{config, echo, join_later, listener, message, one, shut_down, within};
use pstrain::rpc::{JoinError, Mesh, MeshConfig, Methods, Token, Transport, Transports};
use pstrain::topology::{Rank, WorldSize};

/// More than this side waits for at a time, and fewer than a process may have descriptors.
const SILENT: usize = 300;

/// Far less than a minute, and more than a busy machine needs.
const SOON: Duration = Duration::from_secs(20);

type Joining = Receiver<Result<Mesh, JoinError>>;

fn silent_connections(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count)
        .map(|number| {
            TcpStream::connect(to).unwrap_or_else(|error| panic!("connection {number} to {to}: {error}"))
        })
        .collect()
}

fn rank(number: u32, size: u32, master: SocketAddr) -> MeshConfig {
    config(number, size, master)
}

/// A world of `size` whose rank 0 waits.
fn coordinator(size: u32, adjust: impl FnOnce(&mut MeshConfig)) -> (Joining, SocketAddr) {
    let (socket, address) = listener();
    let mut rank0 = rank(0, size, address);
    rank0.listen = Some(socket);
    adjust(&mut rank0);
    (join_later(rank0, echo()), address)
}

/// Rank `number` by TCP, with what it says on the way; where it listens is in it.
fn watched(number: u32, size: u32, master: SocketAddr) -> (Joining, SocketAddr) {
    let (found, finds) = mpsc::channel();
    let said = Mutex::new(Vec::new());
    let proxy = between(
        master,
        Arc::new(move |side, _, bytes: &mut Vec<u8>| {
            if side == Side::Connector {
                let mut said = said.lock().expect("no panic");
                said.extend_from_slice(bytes);
                if let Some(address) = address_in(&said) {
                    let _ = found.send(address);
                }
            }
            Then::Goes
        }),
    );
    let mut member = rank(number, size, proxy);
    member.transports = Transports::only(Transport::Bulk);
    (join_later(member, echo()), within(finds))
}

fn address_in(said: &[u8]) -> Option<SocketAddr> {
    const HOST: &[u8] = b"127.0.0.1:";
    let at = said.windows(HOST.len()).position(|window| window == HOST)?;
    let end = said[at..].iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&said[at..at + end]).ok()?.parse().ok()
}

#[test]
fn silent_connections_to_every_port_hold_no_job_up() {
    let (rank0, address) = coordinator(3, |_| ());
    let at_coordinator = silent_connections(address, SILENT / 2);
    let (rank1, port) = watched(1, 3, address);
    let at_member = silent_connections(port, SILENT / 2);
    let began = Instant::now();
    let rank2 = within(join_later(rank(2, 3, address), echo())).expect("let in");
    let meshes = vec![within(rank0).expect("complete"), within(rank1).expect("complete"), rank2];
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(one(meshes[2].call(Rank(1), "echo", message([5.into()]))).into_int(), Ok(5));
    // They were sent away, and nobody listens any more.
    for mut silent in at_coordinator.into_iter().chain(at_member) {
        silent.set_read_timeout(Some(SOON)).expect("a timeout");
        let mut heard = Vec::new();
        let _ = silent.read_to_end(&mut heard);
    }
    for port in [address, port] {
        assert!(TcpStream::connect(port).is_err(), "{port} is still open");
    }
    shut_down(meshes);
}

/// A port that nobody has, below those of which the system takes one for a connection: who connects to one of these again and
/// again may come to itself.
fn fixed_port() -> u16 {
    let all = 20_000 + std::process::id() as u16 % 8_000..32_000;
    all.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port")
}

/// Its ranks have a token that nobody else knows: not even a process of the same user that is there before all of them.
#[test]
fn who_is_none_of_the_ranks_of_a_spawn_is_not_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let port = fixed_port();
    let (tell, first) = mpsc::channel();
    let over = Instant::now() + LIMIT;
    thread::spawn(move || {
        while Instant::now() < over {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                // It is answered when rank 0 has begun.
                let _ = stream.peek(&mut [0]);
                let _ = tell.send(stream);
                return;
            }
            thread::yield_now();
        }
    });
    let mut spawn = pstrain(folder.path());
    spawn.args(["spawn", "--run-dir", "RUN", "--set", "train.steps=2", "--master-port", &port.to_string()]);
    let spawned = start(&mut spawn);
    let there = first.recv_timeout(LIMIT).expect("the port of rank 0");

    // Not by a connection of its own, which would come behind those of the ranks.
    let (here, address) = listener();
    thread::spawn(move || {
        let (stranger, _) = here.accept().expect("a connection");
        let ways = [(&stranger, &there), (&there, &stranger)];
        for (from, to) in ways.map(|(from, to)| (from.try_clone(), to.try_clone())) {
            let (mut from, mut to) = (from.expect("a socket"), to.expect("a socket"));
            thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
    let join_timeout = Duration::from_secs(5);
    let stranger =
        MeshConfig { transports: Transports::only(Transport::Inline), join_timeout, ..rank(1, 3, address) };
    // Refused, or come too late: it is not told which where the ranks have ended by then.
    within(join_later(stranger, echo())).map(drop).expect_err("it does not know the token");
    assert_code(&wait(spawned), 0);
}

#[test]
fn a_silent_connection_is_sent_away_within_seconds() {
    let (rank0, address) = coordinator(2, |_| ());
    let began = Instant::now();
    let mut silent = TcpStream::connect(address).expect("connects");
    silent.set_read_timeout(Some(SOON)).expect("a timeout");
    let mut heard = Vec::new();
    silent.read_to_end(&mut heard).expect("the end of the connection");
    assert!(!heard.is_empty(), "the challenge");
    // It has two of them for its proof.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let rank1 = within(join_later(rank(1, 2, address), echo())).expect("let in");
    shut_down(vec![within(rank0).expect("complete"), rank1]);
}

#[test]
fn the_first_word_that_does_not_fit_ends_a_connection() {
    let (rank0, address) = coordinator(2, |_| ());
    // A length of 8 KiB and one segment of 8 Mi words; one of a length that no message has; another service's.
    let frames: [&[u8]; 3] =
        [&[0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 128, 0], &[7, 0, 0, 0], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"];
    for bytes in frames {
        let began = Instant::now();
        let mut stranger = TcpStream::connect(address).expect("connects");
        stranger.set_read_timeout(Some(SOON)).expect("a timeout");
        stranger.write_all(bytes).expect("there is room");
        let mut heard = Vec::new();
        let _ = stranger.read_to_end(&mut heard);
        // Not only when its time for a proof is over.
        assert!(began.elapsed() < Duration::from_millis(1900), "{bytes:?}: {:?}", began.elapsed());
    }
    let rank1 = within(join_later(rank(1, 2, address), echo())).expect("let in");
    shut_down(vec![within(rank0).expect("complete"), rank1]);
}

#[test]
fn a_rank_that_dies_while_it_joins_ends_the_others_at_once() {
    let began = Instant::now();
    let (rank0, address) = coordinator(4, |rank0| {
        rank0.lost_after = Duration::from_secs(1);
        rank0.join_timeout = Duration::from_secs(50);
    });
    let mut patient = rank(2, 4, address);
    patient.join_timeout = Duration::from_secs(50);
    let rank2 = join_later(patient, Methods::new());
    // Rank 1 gives up some seconds after it has been let in, and is gone; rank 3 does not come before that.
    let mut hasty = rank(1, 4, address);
    hasty.join_timeout = Duration::from_millis(1);
    let _ = within(join_later(hasty, Methods::new()));
    let error = rank0.recv_timeout(SOON).expect("in time").map(drop).expect_err("rank 1 is gone");
    let told = rank2.recv_timeout(SOON).expect("in time").map(drop).expect_err("rank 1 is gone");
    for text in [error.to_string(), told.to_string()] {
        assert!(text.contains("rank 1") && text.contains("did not come back within 1s"), "{text}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn a_rank_that_dies_when_all_have_come_is_named_by_the_others_at_once() {
    let (rank0, address) = coordinator(3, |_| ());
    let rank2 = join_later(rank(2, 3, address), echo());
    // Of what rank 0 says, the first frame is the challenge, the second its answer; with the third rank 1 is cut off.
    let frames = Mutex::new(Vec::new());
    let proxy = between(
        address,
        Arc::new(move |side, _, bytes: &mut Vec<u8>| {
            let mut said = frames.lock().expect("no panic");
            if side == Side::Acceptor {
                said.extend_from_slice(bytes);
            }
            if frames_in(&said) >= 3 { Then::Ends } else { Then::Goes }
        }),
    );
    let mut cut = rank(1, 3, proxy);
    cut.transports = Transports::only(Transport::Bulk);
    let began = Instant::now();
    let rank1 = join_later(cut, echo());
    for (joining, number) in [(rank0, 0), (rank2, 2)] {
        let error = joining.recv_timeout(SOON).expect("in time").map(drop).expect_err("rank 1 is gone");
        // Rank 1 lives, and tells rank 2 that it has lost rank 0; of which rank 0 hears, perhaps, before it misses rank 1.
        let other = if number == 0 { "gave this one up" } else { "rank 0 " };
        let text = error.to_string();
        assert!(text.contains("rank 1 ") || text.contains(other), "rank {number}: {text}");
    }
    rank1.recv_timeout(SOON).expect("in time").map(drop).expect_err("cut off");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

fn frames_in(mut said: &[u8]) -> usize {
    let mut frames = 0;
    while let Some((len, rest)) = said.split_first_chunk() {
        let Some((_, rest)) = rest.split_at_checked(u32::from_le_bytes(*len) as usize) else { break };
        (frames, said) = (frames + 1, rest);
    }
    frames
}

/// What rank 0 says to rank 1, with another token and another world each, with one byte changed.
fn refused_with_a_change(words: &'static [u8], change: impl FnOnce(&mut MeshConfig)) -> String {
    let (rank0, address) = coordinator(2, |_| ());
    let edit = move |side, _, bytes: &mut Vec<u8>| {
        let found = bytes.windows(words.len()).position(|window| window == words);
        if let (Side::Acceptor, Some(at)) = (side, found) {
            bytes[at + 3] = 0x1b;
        }
        Then::Goes
    };
    let mut other = rank(1, 2, between(address, Arc::new(edit)));
    other.transports = Transports::only(Transport::Bulk);
    change(&mut other);
    let error = within(join_later(other, Methods::new())).map(drop).expect_err("refused").to_string();
    let rank1 = within(join_later(rank(1, 2, address), Methods::new())).expect("let in");
    shut_down(vec![within(rank0).expect("complete"), rank1]);
    error
}

#[test]
fn a_refusal_that_nobody_has_proven_is_told_as_such_and_with_nothing_that_a_terminal_obeys() {
    let token = |other: &mut MeshConfig| other.token = Some(Token::random());
    let error = refused_with_a_change(b"its join token is not", token);
    assert!(
        error.contains("did not prove that it knows the join token; it says: its\\u{1b}join token is not"),
        "{error}"
    );
    // Rank 0 has proven what it says to somebody with the right token: this is not what it said.
    let world = |other: &mut MeshConfig| other.world_size = WorldSize(5);
    let error = refused_with_a_change(b"its world has 5 ranks", world);
    assert!(error.contains("does not know the join token") && !error.contains("world"), "{error}");
}
