//! What the requests of a peer may take of a rank's memory (RT-2), and that nobody waits for ever for a share of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{echo, error, eventually, message, one, shut_down, tensor_of, values, world_with};
use pstrain::rpc::{CallError, CallErrorKind, Incoming, Mesh, MeshConfig, Message, Methods, Pending, Value};
use pstrain::topology::Rank;
use tch::{Device, Kind, Tensor};
use tokio::sync::watch;

/// What each peer may take: as much as one message of [`full`].
const SHARE: u64 = 1 << 20;

fn small_share(config: &mut MeshConfig) {
    config.max_payload_bytes = SHARE;
    // Nothing here takes long, and what waits for ever shall be told from what is slow.
    config.rpc_timeout = crate::support::LIMIT / 3;
}

/// A tensor that takes the whole share, and is fetched.
fn full() -> Tensor {
    Tensor::ones([SHARE as i64], (Kind::Uint8, Device::Cpu))
}

/// `hold` keeps its message until the gate is open, `open` opens it, `give` answers with as much as a message carries.
#[derive(Clone)]
struct Gate {
    open: Arc<watch::Sender<bool>>,
    held: Arc<AtomicUsize>,
}

impl Gate {
    fn new() -> Gate {
        Gate { open: Arc::new(watch::Sender::new(false)), held: Arc::default() }
    }

    fn methods(&self) -> Methods {
        let mut methods = echo();
        let gate = self.clone();
        methods.add("hold", move |incoming| {
            let (mut open, held) = (gate.open.subscribe(), gate.held.clone());
            async move {
                held.fetch_add(1, Ordering::SeqCst);
                let _ = open.wait_for(|open| *open).await;
                drop(incoming.message);
                Ok(Message::default())
            }
        });
        let gate = self.clone();
        methods.add("open", move |_| {
            gate.open.send_replace(true);
            async { Ok(Message::default()) }
        });
        methods.add("give", async |_| Ok(message([full().into()])));
        methods.add("bounce", bounce);
        methods
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

/// Calls the other rank with as much as it got, until nothing is left to do.
async fn bounce(incoming: Incoming) -> Result<Message, CallError> {
    let Incoming { message: came, mesh, from, .. } = incoming;
    let [left, tensor] = values(came);
    match left.into_int()? {
        0 => Ok(message([tensor])),
        left => mesh.call(from, "bounce", message([Value::Int(left - 1), tensor])).await,
    }
}

/// A world of two in which a request of rank 0 has taken all that rank 1 has for it.
fn with_full_share(adjust: impl Fn(&mut MeshConfig)) -> (Vec<Mesh>, Gate, Pending) {
    let gate = Gate::new();
    let meshes = world_with(2, |_| gate.methods(), adjust);
    let holding = meshes[0].call(Rank(1), "hold", message([full().into()]));
    eventually("the request is served", || gate.held() == 1);
    (meshes, gate, holding)
}

fn open(gate: &Gate) {
    gate.open.send_replace(true);
}

#[test]
fn a_request_is_not_fetched_while_those_before_it_are_served_and_take_all_memory() {
    let (meshes, gate, first) = with_full_share(small_share);
    let second = meshes[0].call(Rank(1), "hold", message([full().into()]));
    // Much longer than fetching it would take; and a small call needs no room.
    for _ in 0..300 {
        one(meshes[0].call(Rank(1), "echo", message([Value::Bytes(vec![1; 1000])])));
    }
    assert_eq!(gate.held(), 1, "RT-2");
    open(&gate);
    for request in [first, second] {
        request.wait().expect("served");
    }
    assert_eq!(gate.held(), 2);
    shut_down(meshes);
}

#[test]
fn a_small_call_on_which_a_large_one_waits_gets_through() {
    let (meshes, _, holding) = with_full_share(small_share);
    meshes[0].call(Rank(1), "open", message([Value::Bytes(vec![1; 200 << 10])])).wait().expect("served");
    holding.wait().expect("served");
    shut_down(meshes);
}

#[test]
fn a_reply_waits_for_no_request() {
    let (meshes, gate, holding) = with_full_share(small_share);
    // RT-4: rank 1 has no more memory for requests of rank 0.
    let given = tensor_of(one(meshes[1].call(Rank(0), "give", Message::default()))).expect("a tensor");
    assert_eq!(given, full());
    open(&gate);
    holding.wait().expect("served");
    shut_down(meshes);
}

#[test]
fn large_calls_nest_though_one_of_them_takes_all_memory() {
    let gate = Gate::new();
    let meshes = world_with(2, |_| gate.methods(), small_share);
    // RT-5: six requests of the same chain, three on each rank, and six replies.
    let sent = message([Value::Int(5), full().into()]);
    assert_eq!(tensor_of(one(meshes[0].call(Rank(1), "bounce", sent))).expect("a tensor"), full());
    shut_down(meshes);
}

#[test]
fn a_request_for_which_there_is_no_memory_ends_at_the_callees_deadline() {
    let (meshes, gate, holding) = with_full_share(|config| {
        small_share(config);
        config.rpc_timeout = Duration::from_secs(2);
    });
    let within = Duration::from_secs(60 * 60);
    let waiting = meshes[0].call_within(Rank(1), "hold", message([full().into()]), within);
    let late = error(waiting);
    assert_eq!(late.kind, CallErrorKind::Timeout);
    assert!(late.message.contains("within 2s"), "{late}");
    assert_eq!(gate.held(), 1);
    open(&gate);
    drop(holding);
    shut_down(meshes);
}

#[test]
fn what_the_handlers_have_let_go_of_can_be_taken_again() {
    let meshes = world_with(2, |_| Gate::new().methods(), small_share);
    for _ in 0..50 {
        let echoed = [(); 2].map(|()| meshes[0].call(Rank(1), "echo", message([full().into()])));
        for pending in echoed {
            assert_eq!(tensor_of(one(pending)).expect("a tensor"), full());
        }
    }
    shut_down(meshes);
}
