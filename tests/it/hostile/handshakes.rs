//! Handshakes that somebody has changed on the way, or made up from those of others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::proxy::{Side, Then, between};
use crate::program::{assert_code, free_port, pstrain, start, wait};
use crate::support::{
    config, echo, eventually, join_later, listener, message, one, peak_kib, shut_down, times, within,
};
use pstrain::rpc::{JoinError, Methods, Token, Transport, Transports};
use pstrain::topology::Rank;

/// Longer than a connection may be without proof, by far.
const BOUND: Duration = Duration::from_secs(10);

/// That attack at the same time.
const THREADS: usize = 8;

/// What rank 1 says first, to a rank 0 that is somebody else's.
fn hello(token: &Token) -> Vec<u8> {
    let (socket, address) = listener();
    let mut rank0 = config(0, 2, address);
    (rank0.listen, rank0.token) = (Some(socket), Some(token.clone()));
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let proxy = between(
        address,
        Arc::new(move |side, before, bytes: &mut Vec<u8>| {
            if (side, before) == (Side::Connector, 0) {
                heard.lock().expect("no panic").extend_from_slice(bytes);
            }
            Then::Goes
        }),
    );
    let mut rank1 = config(1, 2, proxy);
    (rank1.token, rank1.transports) = (Some(token.clone()), Transports::only(Transport::Inline));
    let meshes = [join_later(rank0, echo()), join_later(rank1, echo())];
    shut_down(meshes.map(|mesh| within(mesh).expect("joins")).into());
    let said = said.lock().expect("no panic");
    let len = 4 + u32::from_le_bytes(*said.first_chunk().expect("a length")) as usize;
    said[..len].to_vec()
}

/// One of the ways in which a message goes wrong.
fn mutate(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..bytes.len().max(1)).min(bytes.len().saturating_sub(1));
        match random.random_range(0..8) {
            _ if bytes.is_empty() => bytes.push(0),
            0 | 1 => bytes[at] ^= 1 << random.random_range(0..8),
            2 => bytes[at] = random.random(),
            // A number of the framing, or a pointer.
            3 => {
                let word = at / 8 * 8;
                let value: u32 =
                    if random.random() { u32::MAX >> random.random_range(0..32) } else { random.random() };
                let end = (word + 4).min(bytes.len());
                bytes[word..end].copy_from_slice(&value.to_le_bytes()[..end - word]);
            }
            4 => bytes.truncate(at),
            5 => {
                let mut more = vec![0; random.random_range(1..300)];
                random.fill_bytes(&mut more);
                bytes.splice(at..at, more);
            }
            6 => {
                let repeated = bytes[at..].to_vec();
                bytes.extend(repeated);
            }
            _ => bytes[..4].copy_from_slice(&random.random_range(0..16_384_u32).to_le_bytes()[..4]),
        }
        if bytes.len() < 4 {
            bytes.resize(4, 0);
        }
    }
}

/// So many attacks, each by its number, some of them at the same time. How long the longest took.
fn side_by_side(count: usize, attack: impl Fn(usize) + Sync) -> Duration {
    let next = AtomicUsize::new(0);
    let longest = Mutex::new(Duration::ZERO);
    let attacks = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let began = Instant::now();
            attack(number);
            let mut longest = longest.lock().expect("no panic");
            *longest = began.elapsed().max(*longest);
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(attacks))));
    longest.into_inner().expect("no panic")
}

/// Connects, says `bytes`, and waits for the end.
fn attack(address: SocketAddr, bytes: &[u8], says_no_more: bool) {
    let Ok(mut stranger) = TcpStream::connect(address) else { return };
    stranger.set_read_timeout(Some(BOUND)).expect("a timeout");
    let _ = stranger.write_all(bytes);
    if says_no_more {
        let _ = stranger.shutdown(std::net::Shutdown::Write);
    }
    let mut heard = Vec::new();
    if let Err(error) = stranger.read_to_end(&mut heard) {
        let ended = error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(ended, "it was not sent away within {BOUND:?}: {bytes:02x?}");
    }
    assert!(heard.len() < 1024, "{} bytes for somebody who has proven nothing", heard.len());
}

/// So many strangers, each with something else made of `template`. How long the longest took.
fn mutated_handshakes(address: SocketAddr, template: &[u8], count: usize) -> Duration {
    side_by_side(count, |number| {
        let mut bytes = template.to_vec();
        // Some are whole, and the proof is that of another connection.
        if !number.is_multiple_of(16) {
            mutate(&mut bytes, &mut ChaCha8Rng::seed_from_u64(number as u64));
        }
        // Few wait until they are sent away: that takes two seconds each.
        attack(address, &bytes, number % 64 != 5);
    })
}

#[test]
fn no_mutated_handshake_holds_rank_0_up() {
    let (token, count) = (Token::random(), times(400, 16_000));
    let template = hello(&token);
    let (socket, address) = listener();
    let mut rank0 = config(0, 2, address);
    (rank0.listen, rank0.token) = (Some(socket), Some(token.clone()));
    rank0.join_timeout = Duration::from_secs(3600);
    let rank0 = join_later(rank0, echo());
    let longest = mutated_handshakes(address, &template, count);
    println!("{count} mutated handshakes; the longest took {longest:?}");
    let mut rank1 = config(1, 2, address);
    rank1.token = Some(token);
    let rank1 = within(join_later(rank1, echo())).expect("let in");
    let rank0 = within(rank0).expect("complete");
    assert_eq!(one(rank0.call(Rank(1), "echo", message([5.into()]))).into_int(), Ok(5));
    shut_down(vec![rank0, rank1]);
}

/// The rank is a process of its own, so that its memory is seen.
#[test]
fn mutated_handshakes_take_little_of_a_ranks_memory() {
    const MOST_MIB: u64 = 32;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/digits_ps.toml")).unwrap();
    let words = Token::suggestion();
    let token = Token::new(words.clone()).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let rank = |number: &str| {
        let mut command = pstrain(folder.path());
        command.args(["run", "job.toml", "--rank", number, "--world-size", "2", "--run-dir", "RUN"]);
        command.args(["--master-port", &address.port().to_string(), "--set", "train.steps=2"]);
        command.args(["--set", "cluster.join_timeout_ms=600000"]);
        start(command.env("PSTRAIN_TOKEN", &words))
    };
    let rank0 = rank("0");
    eventually("rank 0 listens", || TcpStream::connect(address).is_ok());
    let template = hello(&token);
    // What it takes once for all of them.
    mutated_handshakes(address, &template, THREADS);
    let peak = || peak_kib(rank0.id()).expect("it waits for rank 1") >> 10;
    let (before, count) = (peak(), times(400, 4_000));
    mutated_handshakes(address, &template, count);
    let grown = peak() - before;
    println!("{count} mutated handshakes; the memory of rank 0 grew by {grown} MiB");
    assert!(grown < MOST_MIB, "memory grew by {grown} MiB");
    for rank in [rank("1"), rank0] {
        assert_code(&wait(rank), 0);
    }
}

/// A rank that comes to somebody who answers with what a rank 0 once said, changed.
#[test]
fn no_mutated_answer_holds_a_rank_up() {
    let (token, count) = (Token::random(), times(48, 4_000));
    let answers = answers(&token);
    let longest = side_by_side(count, |number| {
        let mut bytes = answers.clone();
        mutate(&mut bytes, &mut ChaCha8Rng::seed_from_u64(number as u64));
        let error = joins_somebody_who_says(bytes, &token);
        assert!(!error.to_string().chars().any(|c| c.is_control() && c != '\n'), "{error:?}");
    });
    println!("{count} mutated answers; the longest took {longest:?}");
}

/// A challenge and an answer.
fn answers(token: &Token) -> Vec<u8> {
    let (socket, address) = listener();
    let mut rank0 = config(0, 3, address);
    (rank0.listen, rank0.token, rank0.join_timeout) =
        (Some(socket), Some(token.clone()), Duration::from_millis(700));
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let proxy = between(
        address,
        Arc::new(move |side, _, bytes: &mut Vec<u8>| {
            if side == Side::Acceptor {
                heard.lock().expect("no panic").extend_from_slice(bytes);
            }
            Then::Goes
        }),
    );
    let mut rank1 = config(1, 3, proxy);
    (rank1.token, rank1.transports) = (Some(token.clone()), Transports::only(Transport::Inline));
    for rank in [join_later(rank0, Methods::new()), join_later(rank1, Methods::new())] {
        within(rank).map(drop).expect_err("nobody else comes");
    }
    said.lock().expect("no panic").clone()
}

fn joins_somebody_who_says(bytes: Vec<u8>, token: &Token) -> JoinError {
    let somebody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = somebody.local_addr().expect("bound");
    thread::spawn(move || {
        if let Ok((mut rank, _)) = somebody.accept() {
            let _ = rank.write_all(&bytes);
            let _ = rank.shutdown(std::net::Shutdown::Write);
            let _ = rank.set_read_timeout(Some(BOUND));
            let _ = rank.read_to_end(&mut Vec::new());
        }
    });
    let mut rank1 = config(1, 3, address);
    (rank1.token, rank1.join_timeout) = (Some(token.clone()), Duration::from_millis(1));
    within(join_later(rank1, Methods::new())).map(drop).expect_err("it is not rank 0")
}
