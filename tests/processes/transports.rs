//! Large tensors between two processes, over each transport.
//!
//! Memory of another process is read only of another process, so rank 1 is one: this program once more, told by its
//! environment to be rank 1 (`callee`).

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{self, config, echo, listener, message, one, tensor_of, values};
use pstrain::rpc::{CallErrorKind, Mesh, Message, Methods, Transport, Transports, Value};
use pstrain::topology::Rank;
use tch::{Device, Kind, Tensor};

/// The variable that makes this program rank 1, with the transport and the address of rank 0.
pub const CALLEE: &str = "PSTRAIN_TEST_CALLEE";
const ALL: [Transport; 4] = [Transport::Cma, Transport::Shm, Transport::Bulk, Transport::Inline];

pub const TESTS: &[(&str, fn())] = tests![
    tensors_of_all_sizes_go_there_and_come_back_as_they_were,
    a_view_and_many_tensors_of_one_message_keep_their_places,
    many_calls_at_once_get_their_own_tensors,
    the_sender_keeps_its_bytes_until_they_have_been_read_though_it_has_given_up_the_call,
    what_is_lent_stays_until_it_has_been_read_though_its_deadline_has_passed,
    neither_side_keeps_what_has_travelled,
    a_peer_that_dies_while_tensors_are_on_their_way_is_lost,
    two_that_have_no_fast_transport_in_common_send_inline,
    a_rank_does_not_read_its_own_memory_for_a_peer,
];

/// Rank 1, when this program was started to be it.
pub fn callee(told: &str) {
    let (transport, master) = told.split_once(' ').expect("a transport and an address");
    let mut config = config(1, 2, master.parse().expect("an address"));
    config.transports = transports(transport);
    // A slot for what a caller leaves here.
    let left: Arc<Mutex<Option<Tensor>>> = Arc::default();
    let mut methods = echo();
    let slot = left.clone();
    methods.add("leave", move |incoming| {
        let slot = slot.clone();
        Box::pin(async move {
            let [came] = values(incoming.message);
            *slot.lock().expect("no panic") = Some(tensor_of(came)?);
            Ok(Message::default())
        })
    });
    methods.add("sum", move |_| {
        let sum =
            left.lock().expect("no panic").as_ref().map(|tensor| tensor.sum(Kind::Double).double_value(&[]));
        Box::pin(async move { Ok(message([Value::Float(sum.unwrap_or(f64::NAN))])) })
    });
    methods.add("stall", |_| {
        // Until a word of the test.
        let _ = std::io::stdin().read(&mut [0]);
        Box::pin(std::future::ready(Ok(Message::default())))
    });
    methods.add("hold", |_| Box::pin(std::future::pending()));
    methods.add("resident", async |_| Ok(message([Value::Int(resident() as i64)])));
    let mesh = Mesh::join(config, methods).expect("joins");
    // Until rank 0 has enough of it.
    mesh.lost().wait(Some(support::LIMIT));
}

fn transports(name: &str) -> Transports {
    let (_, transport) = Transport::NAMES.into_iter().find(|(known, _)| *known == name).expect("a transport");
    Transports::only(transport)
}

/// Two processes. The other is killed with this.
struct Pair {
    mesh: Mesh,
    other: Child,
}

impl Pair {
    fn by(transport: Transport) -> Pair {
        Pair::of(transport, transport)
    }

    fn of(own: Transport, others: Transport) -> Pair {
        let (socket, address): (_, SocketAddr) = listener();
        let other = Command::new(std::env::current_exe().expect("this program"))
            .env(CALLEE, format!("{others} {address}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let mut config = config(0, 2, address);
        config.listen = Some(socket);
        config.transports = Transports::only(own);
        Pair { mesh: Mesh::join(config, Methods::new()).expect("joins"), other }
    }

    fn call(&self, method: &'static str, values: impl IntoIterator<Item = Value>) -> pstrain::rpc::Pending {
        self.mesh.call(Rank(1), method, message(values))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.other.kill();
        let _ = self.other.wait();
    }
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).expect("a number").parse().expect("a number");
    pages * 4096
}

fn counted(kind: Kind, elements: i64) -> Tensor {
    Tensor::arange(elements, (Kind::Int64, Device::Cpu)).remainder(251).to_kind(kind)
}

fn tensors_of_all_sizes_go_there_and_come_back_as_they_were() {
    for transport in ALL {
        let pair = Pair::by(transport);
        assert_eq!(pair.mesh.transport_to(Rank(1)), transport);
        // Around the limits of what a message carries, of a piece and of a page, and one that fills no word.
        for elements in [0, 1, 8_191, 8_193, 65_537, 262_144, 262_145, 1_310_721, 5_000_011] {
            for kind in [Kind::Float, Kind::Uint8, Kind::BFloat16] {
                let sent = counted(kind, elements);
                let back =
                    tensor_of(one(pair.call("echo", [sent.shallow_clone().into()]))).expect("a tensor");
                assert!(back.kind() == kind && back == sent, "{elements} of {kind:?} by {transport}");
            }
        }
    }
}

fn a_view_and_many_tensors_of_one_message_keep_their_places() {
    for transport in ALL {
        let pair = Pair::by(transport);
        let transposed = counted(Kind::Float, 600_000).reshape([600, 1000]).tr();
        let sent: Vec<Tensor> =
            (0..30).map(|n| counted(Kind::Int64, n * 7_001)).chain([transposed]).collect();
        let values = sent.iter().map(|tensor| tensor.shallow_clone().into());
        let texts = (0..30).map(|n| Value::Text("é".repeat(n * 9_000)));
        let back = pair.call("echo", values.chain(texts)).wait().expect("an answer").values;
        let mut back = back.into_iter();
        for (came, sent) in back.by_ref().take(sent.len()).zip(&sent) {
            assert!(tensor_of(came).expect("a tensor") == *sent, "{transport}");
        }
        for (n, came) in back.enumerate() {
            assert_eq!(came.into_text().expect("a text").len(), n * 18_000, "{transport}");
        }
    }
}

fn many_calls_at_once_get_their_own_tensors() {
    for transport in ALL {
        let pair = Pair::by(transport);
        let calls: Vec<_> = (0..60)
            .map(|n| {
                (n, pair.call("echo", [Tensor::full([300_000 + n], n, (Kind::Float, Device::Cpu)).into()]))
            })
            .collect();
        for (n, call) in calls {
            let back = tensor_of(one(call)).expect("a tensor");
            assert_eq!(
                (back.numel() as i64, back.max().double_value(&[])),
                (300_000 + n, n as f64),
                "{transport}"
            );
        }
    }
}

fn the_sender_keeps_its_bytes_until_they_have_been_read_though_it_has_given_up_the_call() {
    for transport in ALL {
        let pair = Pair::by(transport);
        for n in 1..20 {
            let tensor = Tensor::full([1_000_000], n, (Kind::Float, Device::Cpu));
            drop(pair.call("leave", [tensor.into()]));
            // What would come instead.
            let _other = Tensor::full([1_000_000], -1, (Kind::Float, Device::Cpu));
            let sum = one(pair.call("sum", [])).into_float().expect("a number");
            // The first may still be on its way when the second is answered: then what was there before.
            let whole = (sum / 1e6).fract() == 0.0 && sum / 1e6 <= n as f64;
            assert!(sum.is_nan() || whole, "{transport}: {sum} after {n}");
        }
    }
}

fn what_is_lent_stays_until_it_has_been_read_though_its_deadline_has_passed() {
    let mut pair = Pair::by(Transport::Cma);
    let full = |value| Tensor::full([1_000_000], value, (Kind::Float, Device::Cpu));
    // The thread that serves rank 0 does nothing else meanwhile.
    let stall = pair.call("stall", []);
    let limit = Duration::from_millis(100);
    let late = pair.mesh.call_within(Rank(1), "leave", message([full(7).into()]), limit);
    assert_eq!(late.wait().expect_err("it is not served yet").kind, CallErrorKind::Timeout);
    // What would come instead.
    let _others: Vec<_> = (0..10).map(|_| full(-1)).collect();
    pair.other.stdin.as_mut().expect("piped").write_all(b"!").expect("it reads");
    stall.wait().expect("an answer");
    let mut sums = (0..1000).map(|_| one(pair.call("sum", [])).into_float().expect("a number"));
    assert_eq!(sums.find(|sum| !sum.is_nan()), Some(7e6));
}

fn neither_side_keeps_what_has_travelled() {
    for transport in ALL {
        let pair = Pair::by(transport);
        let there = || one(pair.call("resident", [])).into_int().expect("a number") as usize;
        let send = || {
            let tensor = Tensor::ones([8 << 20], (Kind::Uint8, Device::Cpu));
            one(pair.call("echo", [tensor.into()]));
        };
        (0..10).for_each(|_| send());
        let (here_before, there_before) = (resident(), there());
        (0..60).for_each(|_| send());
        let grown = (resident().saturating_sub(here_before), there().saturating_sub(there_before));
        // Half a gigabyte has gone there, and come back; other tests run beside this one.
        assert!(grown.1 < 100 << 20, "{transport}: {grown:?}");
    }
}

fn a_peer_that_dies_while_tensors_are_on_their_way_is_lost() {
    for transport in ALL {
        let mut pair = Pair::by(transport);
        let tensor = Tensor::ones([64 << 20], (Kind::Uint8, Device::Cpu));
        let held = pair.call("hold", [tensor.shallow_clone().into()]);
        let calls: Vec<_> = (0..4).map(|_| pair.call("echo", [tensor.shallow_clone().into()])).collect();
        one(pair.call("resident", []));
        pair.other.kill().expect("it was there");
        assert_eq!(held.wait().expect_err("nobody answers").kind, CallErrorKind::Lost, "{transport}");
        for call in calls {
            if let Err(error) = call.wait() {
                assert_eq!(error.kind, CallErrorKind::Lost, "{transport}: {error}");
            }
        }
        assert_eq!(support::lost(&pair.mesh).rank, Rank(1), "{transport}");
    }
}

fn two_that_have_no_fast_transport_in_common_send_inline() {
    let pair = Pair::of(Transport::Cma, Transport::Bulk);
    assert_eq!(pair.mesh.transport_to(Rank(1)), Transport::Inline);
    let sent = counted(Kind::Float, 300_000);
    assert!(tensor_of(one(pair.call("echo", [sent.shallow_clone().into()]))).expect("a tensor") == sent);
}

fn a_rank_does_not_read_its_own_memory_for_a_peer() {
    // Both ranks in one process: the peer's claim to be this very process is not believed.
    let meshes = support::world(2, |_| echo());
    assert_eq!(meshes[0].transport_to(Rank(1)), Transport::Bulk);
    support::shut_down(meshes);
}
