//! Calls between ranks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{echo, error, eventually, later, message, one, shut_down, values, within, world};
use futures::FutureExt;
use pstrain::rpc::{CallError, CallErrorKind, ContextId, Incoming, Message, Methods, Pending, Value};
use pstrain::topology::Rank;
use tch::Tensor;
use tokio::sync::watch;

#[test]
fn every_rank_calls_every_rank_itself_too() {
    let meshes = world(4, |rank| {
        let mut methods = Methods::new();
        methods.add("whoami", move |incoming: Incoming| async move {
            assert_eq!(incoming.mesh.rank(), Rank(rank));
            Ok(message([Value::Int(rank.into()), Value::Int(incoming.from.0.into())]))
        });
        methods
    });
    for caller in &meshes {
        assert_eq!(caller.peers().len(), 4);
        for callee in 0..4 {
            let answer = caller.call(Rank(callee), "whoami", Message::default()).wait().expect("an answer");
            let [who, from] = values(answer);
            assert_eq!(who.into_int(), Ok(callee.into()));
            assert_eq!(from.into_int(), Ok(caller.rank().0.into()));
        }
    }
    shut_down(meshes);
}

#[test]
fn everybody_learns_names_roles_and_addresses() {
    let meshes = world(3, |_| Methods::new());
    for mesh in &meshes {
        for (rank, peer) in mesh.peers().iter().enumerate() {
            assert_eq!(peer.name, format!("tester{rank}"));
            assert_eq!(peer.role, "tester");
            assert!(peer.address.starts_with("127.0.0.1:"), "{}", peer.address);
        }
    }
    shut_down(meshes);
}

#[test]
fn a_context_travels_with_the_call() {
    let meshes = world(2, |_| echo());
    let context = Some(ContextId { rank: Rank(1), number: u64::MAX });
    let sent = Message { values: vec![], context };
    assert_eq!(meshes[0].call(Rank(1), "echo", sent).wait().expect("an answer").context, context);
    shut_down(meshes);
}

#[test]
fn a_rank_is_called_as_often_as_it_takes() {
    let meshes = world(2, |_| echo());
    // More than a peer may have open at a time.
    for _ in 0..320 {
        let calls: Vec<_> =
            (0..64).map(|_| meshes[0].call(Rank(1), "echo", message([Value::Int(1)]))).collect();
        for call in calls {
            call.wait().expect("an answer");
        }
    }
    shut_down(meshes);
}

/// Notes the numbers that it is called with, in their order.
fn noting(noted: &Arc<Mutex<Vec<i64>>>) -> Methods {
    let noted = noted.clone();
    let mut methods = Methods::new();
    methods.add("note", move |incoming: Incoming| {
        let [number] = values(incoming.message);
        noted.lock().expect("nobody panics").push(number.into_int().expect("a number"));
        async { Ok(Message::default()) }
    });
    methods
}

#[test]
fn calls_that_leave_together_wait_for_the_last_and_keep_their_order() {
    let noted = Arc::default();
    let meshes = world(2, |_| noting(&noted));
    let call = |number: i64| meshes[0].call(Rank(1), "note", message([Value::Int(number)]));
    let batch = meshes[0].batch();
    // More than one message takes.
    let calls: Vec<_> = (0..100).map(call).collect();
    // Another thread's call overtakes them.
    let mesh = meshes[0].clone();
    within(later(move || mesh.call(Rank(1), "note", message([Value::Int(-1)])).wait())).expect("an answer");
    assert_eq!(*noted.lock().expect("nobody panics"), [-1], "they are held back");
    drop(batch);
    Pending::wait_all(calls).expect("answers");
    assert_eq!(*noted.lock().expect("nobody panics"), (-1..100).collect::<Vec<_>>());
    shut_down(meshes);
}

#[test]
fn whoever_waits_lets_go_of_what_it_holds_back() {
    let meshes = world(2, |_| echo());
    let _batch = meshes[0].batch();
    let answer = meshes[0].call(Rank(1), "echo", message([Value::Int(7)]));
    assert_eq!(one(answer).into_int(), Ok(7));
    shut_down(meshes);
}

#[test]
fn one_of_several_calls_may_fail_alone() {
    let meshes = world(2, |_| echo());
    let batch = meshes[0].batch();
    let good = meshes[0].call(Rank(1), "echo", message([Value::Int(1)]));
    let bad = meshes[0].call(Rank(1), "nonsense", Message::default());
    let here = meshes[0].call(Rank(0), "echo", message([Value::Int(2)]));
    drop(batch);
    assert_eq!(one(good).into_int(), Ok(1));
    assert_eq!(error(bad).kind, CallErrorKind::NoMethod);
    assert_eq!(one(here).into_int(), Ok(2));
    shut_down(meshes);
}

#[test]
fn what_is_told_comes_before_the_next_call_or_by_itself() {
    let noted = Arc::default();
    let meshes = world(2, |_| noting(&noted));
    let say = |number: i64| message([Value::Int(number)]);
    meshes[0].notify(Rank(1), "note", say(1));
    meshes[0].call(Rank(1), "note", say(2)).wait().expect("an answer");
    assert_eq!(*noted.lock().expect("nobody panics"), [1, 2]);
    meshes[0].notify(Rank(1), "note", say(3));
    eventually("it leaves with a heartbeat", || noted.lock().expect("nobody panics").len() == 3);
    shut_down(meshes);
}

#[test]
fn an_error_names_the_rank_and_the_method() {
    let meshes = world(2, |_| {
        let mut methods = Methods::new();
        methods.add("fail", async |_| Err(CallError::failed("no such row")));
        methods
    });
    let failed = error(meshes[0].call(Rank(1), "fail", Message::default()));
    assert_eq!(failed.to_string(), "`fail` on rank 1: no such row");
    assert_eq!((failed.kind, failed.rank, &*failed.method), (CallErrorKind::Remote, Rank(1), "fail"));
    let unknown = error(meshes[1].call(Rank(0), "nonsense", Message::default()));
    assert_eq!(unknown.kind, CallErrorKind::NoMethod);
    let nobody = error(meshes[1].call(Rank(7), "fail", Message::default()));
    assert_eq!(nobody.to_string(), "`fail` on rank 7: there is no such rank in a world of 2");
    shut_down(meshes);
}

#[test]
fn a_panic_is_the_error_of_its_call_and_of_no_other() {
    let meshes = world(2, |_| {
        let mut methods = echo();
        methods.add("panic", async |_| panic!("the {} is gone", "weight"));
        methods
    });
    for to in [Rank(0), Rank(1)] {
        let panicked = error(meshes[0].call(to, "panic", Message::default()));
        assert_eq!(panicked.kind, CallErrorKind::Panicked);
        assert_eq!(panicked.message, "the method panicked: the weight is gone");
        assert_eq!(one(meshes[0].call(to, "echo", message([Value::Int(7)]))).into_int(), Ok(7));
    }
    shut_down(meshes);
}

/// Calls `down` of the other rank with one less, until nothing is left.
fn nested() -> Methods {
    let mut methods = Methods::new();
    methods.add("down", async |incoming| {
        let Incoming { message: arguments, mesh, .. } = incoming;
        let [left] = values(arguments);
        let left = left.into_int()?;
        if left == 0 {
            return Ok(message([Value::Int(0)]));
        }
        let other = Rank(1 - mesh.rank().0);
        let [depth] = values(mesh.call(other, "down", message([Value::Int(left - 1)])).await?);
        Ok(message([Value::Int(depth.into_int()? + 1)]))
    });
    methods
}

#[test]
fn calls_nest_between_two_ranks_on_one_thread_each() {
    let meshes = world(2, |_| nested());
    assert_eq!(one(meshes[0].call(Rank(1), "down", message([Value::Int(40)]))).into_int(), Ok(40));
    assert_eq!(one(meshes[0].call(Rank(0), "down", message([Value::Int(41)]))).into_int(), Ok(41));
    shut_down(meshes);
}

#[test]
fn a_handler_that_blocks_on_a_call_is_told_not_to() {
    let meshes = world(2, |_| {
        let mut methods = echo();
        methods.add("block", async |incoming| incoming.mesh.call(Rank(0), "echo", Message::default()).wait());
        methods
    });
    let blocked = error(meshes[0].call(Rank(1), "block", Message::default()));
    assert!(blocked.message.contains("must not block"), "{blocked}");
    shut_down(meshes);
}

#[test]
fn many_calls_from_many_threads_all_get_their_own_answer() {
    let meshes = world(3, |_| echo());
    std::thread::scope(|scope| {
        for mesh in &meshes {
            for thread in 0..3 {
                scope.spawn(move || {
                    let all: Vec<_> = (0..100)
                        .map(|n| {
                            mesh.call(Rank(n % 3), "echo", message([Value::Int((thread * 1000 + n).into())]))
                        })
                        .collect();
                    for (n, pending) in all.into_iter().enumerate() {
                        assert_eq!(one(pending).into_int(), Ok(i64::from(thread) * 1000 + n as i64));
                    }
                });
            }
        }
    });
    shut_down(meshes);
}

#[test]
fn a_call_without_an_answer_ends_at_its_deadline() {
    let meshes = world(2, |_| {
        let mut methods = echo();
        methods.add("never", async |_| std::future::pending().await);
        methods
    });
    for to in [Rank(0), Rank(1)] {
        let late = meshes[0].call_within(to, "never", Message::default(), Duration::from_millis(50));
        let late = error(late);
        assert_eq!(late.kind, CallErrorKind::Timeout);
        assert!(late.message.starts_with("no answer within 50ms"), "{late}");
    }
    assert_eq!(one(meshes[0].call(Rank(1), "echo", message([Value::Bool(true)]))).into_bool(), Ok(true));
    shut_down(meshes);
}

#[test]
fn a_call_whose_answer_nobody_wants_runs_all_the_same() {
    let ran = Arc::new(AtomicUsize::new(0));
    let meshes = world(2, |_| {
        let (mut methods, ran) = (Methods::new(), ran.clone());
        methods.add("count", move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            async { Ok(Message::default()) }
        });
        methods
    });
    for to in [Rank(0), Rank(1), Rank(1)] {
        drop(meshes[0].call(to, "count", Message::default()));
    }
    // Shutting down waits for one's own calls.
    shut_down(meshes);
    assert_eq!(ran.load(Ordering::SeqCst), 3);
}

#[test]
fn a_rank_that_is_flooded_with_calls_says_so_and_recovers() {
    let open = Arc::new(watch::Sender::new(false));
    let meshes = world(2, |_| {
        let mut methods = echo();
        let open = open.clone();
        methods.add("hold", move |_| {
            let mut open = open.subscribe();
            async move {
                let _ = open.wait_for(|open| *open).await;
                Ok(Message::default())
            }
        });
        methods
    });
    let mut held: Vec<_> = (0..1030).map(|_| meshes[0].call(Rank(1), "hold", Message::default())).collect();
    for refused in held.split_off(1024) {
        assert_eq!(error(refused).kind, CallErrorKind::Busy);
    }
    open.send_replace(true);
    Pending::wait_all(held).expect("answers");
    assert_eq!(
        one(meshes[0].call(Rank(1), "echo", message([Value::Nil]))).into_list().map_err(|e| e.kind).err(),
        Some(CallErrorKind::BadValue)
    );
    shut_down(meshes);
}

#[test]
fn a_barrier_lets_nobody_go_before_the_last_has_come() {
    let meshes = world(3, |_| Methods::new());
    for round in ["one", "two", "one"] {
        let mut other = meshes[2].barrier("other");
        let (first, second) = (meshes[2].barrier(round), meshes[0].barrier(round));
        meshes[1].barrier(round).wait().expect("open");
        first.wait().expect("open");
        second.wait().expect("open");
        // Rank 0 heard of it before the last of these, and still waits for two.
        assert!((&mut other).now_or_never().is_none());
        let _ = (meshes[0].barrier("other"), meshes[1].barrier("other"));
        other.wait().expect("open");
    }
    shut_down(meshes);
}

#[test]
fn tensors_arrive_as_they_were_sent() {
    let meshes = world(2, |_| echo());
    let tensor = Tensor::arange(24, tch::kind::FLOAT_CPU).reshape([2, 3, 4]);
    let sent = pstrain::rpc::SentTensor { tensor: tensor.shallow_clone(), edge: Some(9) };
    let back = one(meshes[0].call(Rank(1), "echo", message([sent.into()]))).into_sent().expect("a tensor");
    assert_eq!(back.tensor, tensor);
    assert_eq!(back.edge, Some(9));
    shut_down(meshes);
}
