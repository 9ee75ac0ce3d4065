//! A rank of the job that asks without end: it takes a bounded part of another one's memory, and is named.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use capnp::message::Builder;
use capnp::serialize::write_message_to_words;
use capnp_rpc::rpc_capnp::message as rpc_message;

use super::proxy::{Side, Then, between};
use crate::support::{LIMIT, config, echo, join_later, listener, lost, message, within};
use pstrain::rpc::{LostRank, MeshConfig, Transport, Transports};
use pstrain::topology::Rank;

/// Beyond those of the rank itself.
const FIRST: u32 = 5000;

fn said(write: impl FnOnce(rpc_message::Builder<'_>)) -> Vec<u8> {
    let mut message = Builder::new_default();
    write(message.init_root());
    write_message_to_words(&message)
}

fn asks(number: u32) -> Vec<u8> {
    said(|to| to.init_bootstrap().set_question_id(number))
}

fn lets_go(number: u32) -> Vec<u8> {
    said(|to| to.init_finish().set_question_id(number))
}

/// Which rank rank 0 has lost when rank 1 has added `flood` to what it says, and why. Of what rank 0 says from then on
/// nothing comes to rank 1; somebody takes it from rank 0, or not.
fn ends_by(flood: Vec<u8>, is_read: bool, adjust: impl Fn(&mut MeshConfig)) -> LostRank {
    let (socket, address) = listener();
    let (may_flood, floods) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let (ends, end) = mpsc::channel::<()>();
    let (armed, end) = (may_flood.clone(), Mutex::new(end));
    let proxy = between(
        address,
        Arc::new(move |side, _, bytes: &mut Vec<u8>| {
            match side {
                // What a rank writes at a time is whole messages.
                Side::Connector if armed.swap(false, Ordering::SeqCst) => {
                    floods.store(true, Ordering::SeqCst);
                    bytes.extend(&flood);
                }
                Side::Acceptor if floods.load(Ordering::SeqCst) => {
                    bytes.clear();
                    if !is_read {
                        let _ = end.lock().expect("no panic").recv();
                        return Then::Ends;
                    }
                }
                _ => {}
            }
            Then::Goes
        }),
    );
    let mut ranks = [config(0, 2, address), config(1, 2, proxy)];
    ranks[0].listen = Some(socket);
    let meshes = ranks.map(|mut rank| {
        rank.transports = Transports::only(Transport::Inline);
        // Nobody hears the heartbeats of rank 0 any more.
        rank.lost_after = LIMIT;
        adjust(&mut rank);
        join_later(rank, echo())
    });
    let [rank0, rank1] = meshes.map(|mesh| within(mesh).expect("joins"));
    may_flood.store(true, Ordering::SeqCst);
    let _answer = rank1.call(Rank(0), "echo", message([5.into()]));
    let lost = lost(&rank0);
    drop(ends);
    lost
}

#[test]
fn a_rank_that_asks_and_lets_go_of_no_answer_is_lost_with_that_reason() {
    let lost = ends_by((FIRST..20_000).flat_map(asks).collect(), true, |_| ());
    assert_eq!(lost.rank, Rank(1));
    assert!(
        lost.why.contains("it has asked 16384 times and let go of no answer (question 16384)"),
        "{}",
        lost.why
    );
}

#[test]
fn a_rank_that_asks_and_reads_no_answer_is_lost_with_that_reason() {
    let flood = (0..300_000).flat_map(|_| [asks(FIRST), lets_go(FIRST)].concat()).collect();
    let lost = ends_by(flood, false, |rank| rank.max_unread_bytes = 1 << 20);
    assert_eq!(lost.rank, Rank(1));
    assert!(lost.why.contains("it does not read: "), "{}", lost.why);
}
