//! Connections of ranks that somebody changes when they have met.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::proxy::{Side, Then, between};
use crate::support::{config, echo, is_alone, join_later, listener, message, peak_kib, times};
use pstrain::rpc::{MeshConfig, Transport, Transports, Value};
use pstrain::topology::Rank;
use tch::{Kind, Tensor};

const LOST_AFTER: Duration = Duration::from_secs(2);
const CALLS: usize = 20;

/// A session ends by then, however it was changed.
const BOUND: Duration = Duration::from_secs(45);

const THREADS: usize = 4;

/// How tensors travel, in turns: the ways there are between two ranks in one process.
const WAYS: [Transport; 2] = [Transport::Inline, Transport::Bulk];

/// RPC threads that have panicked in this process.
fn panics() -> usize {
    static ONCE: Once = Once::new();
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if thread::current().name() == Some("rpc") {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            before(panic);
        }));
    });
    PANICS.load(Ordering::Relaxed)
}

/// What becomes of the byte at `at` of what `side` says.
struct Change {
    side: Side,
    at: usize,
    kind: u32,
    seed: u64,
    done: AtomicBool,
}

impl Change {
    fn new(seed: u64) -> Change {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        Change {
            side: if random.random() { Side::Connector } else { Side::Acceptor },
            // Behind the handshake, most of it among the calls.
            at: 800 + (random.random::<f64>().powi(2) * 200_000.0) as usize,
            kind: random.random_range(0..6),
            seed,
            done: AtomicBool::new(false),
        }
    }

    fn apply(&self, side: Side, before: usize, bytes: &mut Vec<u8>) -> Then {
        let end = before + bytes.len();
        if side != self.side || end <= self.at || self.done.swap(true, Ordering::Relaxed) {
            return Then::Goes;
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ 0xfeed);
        let at = self.at.saturating_sub(before);
        match self.kind {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => {
                let word = at / 8 * 8;
                let end = (word + 8).min(bytes.len());
                random.fill_bytes(&mut bytes[word..end]);
            }
            2 => {
                let mut more = vec![0; random.random_range(1..5000)];
                random.fill_bytes(&mut more);
                bytes.splice(at..at, more);
            }
            3 => drop(bytes.drain(at..)),
            4 => {
                bytes.truncate(at);
                return Then::Ends;
            }
            _ => {
                bytes.truncate(at);
                return Then::Stalls;
            }
        }
        Then::Goes
    }
}

/// Two ranks that call each other over a connection that is changed. How long it took, and how tensors would travel.
fn session(seed: u64) -> (Duration, Option<Transport>) {
    let began = Instant::now();
    let (socket, address) = listener();
    let change = Change::new(seed);
    let proxy = between(
        address,
        Arc::new(move |side, before, bytes: &mut Vec<u8>| change.apply(side, before, bytes)),
    );
    let adjust = |mut config: MeshConfig| {
        (config.heartbeat, config.lost_after) = (Duration::from_millis(100), LOST_AFTER);
        config.rpc_timeout = Duration::from_secs(5);
        config.join_timeout = Duration::from_secs(5);
        config.transports = Transports::only(WAYS[seed as usize % WAYS.len()]);
        config.max_payload_bytes = 8 << 20;
        config
    };
    let mut rank0 = adjust(config(0, 2, address));
    rank0.listen = Some(socket);
    let joins = [join_later(rank0, echo()), join_later(adjust(config(1, 2, proxy)), echo())];
    let left = || BOUND.saturating_sub(began.elapsed());
    let meshes = joins.map(|join| {
        join.recv_timeout(left()).unwrap_or_else(|_| panic!("seed {seed}: it never joins or fails"))
    });
    let meshes: Vec<_> = meshes.into_iter().flatten().collect();
    let way = meshes.first().map(|mesh| mesh.transport_to(Rank(1 - mesh.rank().0)));
    let ends: Vec<_> = meshes
        .into_iter()
        .map(|mesh| {
            crate::support::later(move || {
                let other = Rank(1 - mesh.rank().0);
                for number in 0..CALLS {
                    let tensor =
                        Tensor::zeros([1 + 40_000 * (number as i64 % 2)], (Kind::Float, tch::Device::Cpu));
                    let values: [Value; 2] = [(number as i64).into(), tensor.into()];
                    if mesh.call(other, "echo", message(values)).wait().is_err() {
                        break;
                    }
                }
                // Whoever is done first ends the session, be it with the other's calls.
                mesh.abort("done");
            })
        })
        .collect();
    for end in ends {
        end.recv_timeout(left()).unwrap_or_else(|_| panic!("seed {seed}: a session does not end"));
    }
    (began.elapsed(), way)
}

#[test]
fn no_mutated_session_hangs_or_brings_a_rank_down() {
    const MOST_MIB: u64 = 512;
    if !is_alone("hostile::sessions::no_mutated_session_hangs_or_brings_a_rank_down") {
        return;
    }
    let (count, before) = (times(24, 1000), panics());
    let peak = || peak_kib("self").expect("it runs") >> 10;
    let peak_before = peak();
    let (next, worst) = (AtomicUsize::new(0), Mutex::new((Duration::ZERO, 0)));
    let by_way = WAYS.map(|way| (way, AtomicUsize::new(0)));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let (took, way) = session(number as u64);
                    if let Some((_, sessions)) = by_way.iter().find(|(of, _)| Some(*of) == way) {
                        sessions.fetch_add(1, Ordering::Relaxed);
                    }
                    let mut worst = worst.lock().expect("no panic");
                    *worst = (took, number).max(*worst);
                }
            });
        }
    });
    let (worst, grown) = (worst.into_inner().expect("no panic"), peak() - peak_before);
    println!(
        "{count} mutated sessions, {by_way:?}; the longest (took, seed): {worst:?}; memory grew by {grown} MiB"
    );
    // Some are changed before they have agreed on it.
    assert!(by_way.iter().all(|(_, sessions)| sessions.load(Ordering::Relaxed) > count / 4), "{by_way:?}");
    assert!(grown < MOST_MIB, "memory grew by {grown} MiB");
    assert_eq!(panics(), before, "an RPC thread panicked");
}
