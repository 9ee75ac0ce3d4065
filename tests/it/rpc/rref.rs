//! References to objects of other ranks: how long they live, and where they can go.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{error, eventually, message, one, shut_down, values, world};
use pstrain::rpc::{CallError, CallErrorKind, Incoming, Mesh, Message, Methods, RRef, Value};
use pstrain::topology::Rank;
use tokio::runtime::Builder;

struct Counter(Mutex<i64>);

/// The object behind a reference, for a thread that serves nobody.
fn local<T: Any + Send + Sync>(rref: &RRef) -> Result<Arc<T>, CallError> {
    Builder::new_current_thread().build().expect("a runtime").block_on(rref.local())
}

/// A counter that lives where it was made, and a place to keep an RRef.
fn methods() -> Methods {
    let mut methods = Methods::new();
    methods.add("make", async |incoming| {
        let [start] = values(incoming.message);
        let counter = Arc::new(Counter(Mutex::new(start.into_int()?)));
        Ok(message([incoming.mesh.objects().insert(counter).into()]))
    });
    methods.add("add", async |incoming| {
        let [counter, by] = values(incoming.message);
        let counter = counter.into_rref()?.local::<Counter>().await?;
        let mut value = counter.0.lock().expect("unpoisoned");
        *value += by.into_int()?;
        Ok(message([Value::Int(*value)]))
    });
    let kept: Arc<Mutex<Vec<RRef>>> = Arc::default();
    let keep = kept.clone();
    methods.add("keep", move |incoming: Incoming| {
        let kept = keep.clone();
        async move {
            let [rref] = values(incoming.message);
            kept.lock().expect("unpoisoned").push(rref.into_rref()?);
            Ok(Message::default())
        }
    });
    let give = kept.clone();
    methods.add("give back", move |_| {
        let given = give.lock().expect("unpoisoned").pop();
        async move { Ok(message(given.map(Value::from))) }
    });
    methods.add("fail", async |_| Err(CallError::failed("no room")));
    methods.add("never", async |_| std::future::pending().await);
    methods.add("echo", async |incoming| Ok(incoming.message));
    methods
}

fn add(mesh: &Mesh, counter: &RRef, by: i64) -> i64 {
    let call = mesh.call(counter.owner(), "add", message([counter.clone().into(), Value::Int(by)]));
    one(call).into_int().expect("an integer")
}

#[test]
fn an_object_made_by_a_call_lives_until_its_last_holder_lets_go() {
    let meshes = world(2, |_| methods());
    let counter =
        one(meshes[0].call(Rank(1), "make", message([Value::Int(5)]))).into_rref().expect("an RRef");
    assert_eq!(counter.owner(), Rank(1));
    assert_eq!(add(&meshes[0], &counter, 2), 7);
    let clone = counter.clone();
    drop(counter);
    assert_eq!(add(&meshes[0], &clone, 3), 10);
    assert_eq!(meshes[1].objects().len(), 1);
    drop(clone);
    eventually("rank 1 drops the counter", || meshes[1].objects().is_empty());
    shut_down(meshes);
}

#[test]
fn remote_gives_a_reference_at_once_and_the_owner_fills_it() {
    let meshes = world(3, |_| methods());
    for owner in [Rank(0), Rank(1)] {
        let counter = meshes[0].remote(owner, "make", message([Value::Int(1)]));
        assert_eq!(counter.owner(), owner);
        // To the owner, and to another rank that asks the owner for its own reference.
        assert_eq!(add(&meshes[0], &counter, 1), 2);
        meshes[0].filled(&counter).wait().expect("filled");
        meshes[0].call(Rank(2), "keep", message([counter.into()])).wait().expect("kept");
        let kept =
            one(meshes[0].call(Rank(2), "give back", Message::default())).into_rref().expect("an RRef");
        assert_eq!(kept.owner(), owner);
        assert_eq!(add(&meshes[0], &kept, 1), 3);
    }
    for mesh in &meshes {
        eventually("all objects go", || mesh.objects().is_empty());
    }
    shut_down(meshes);
}

#[test]
fn a_reference_passed_on_keeps_the_object_when_its_sender_lets_go_at_once() {
    let meshes = world(3, |_| methods());
    for round in 0..50 {
        let counter =
            one(meshes[0].call(Rank(1), "make", message([Value::Int(round)]))).into_rref().expect("an RRef");
        let keeping = meshes[0].call(Rank(2), "keep", message([counter.into()]));
        keeping.wait().expect("kept");
        let back =
            one(meshes[0].call(Rank(2), "give back", Message::default())).into_rref().expect("an RRef");
        assert_eq!(add(&meshes[0], &back, 1), round + 1);
    }
    eventually("rank 1 drops all counters", || meshes[1].objects().is_empty());
    shut_down(meshes);
}

#[test]
fn a_reference_comes_home_as_the_object_itself() {
    let meshes = world(2, |_| methods());
    let own = meshes[0].objects().insert(Arc::new(Counter(Mutex::new(3))));
    let back = one(meshes[0].call(Rank(1), "echo", message([Value::List(vec![own.clone().into()])])));
    let [back] = back.into_list().expect("a list").try_into().expect("one");
    let back: RRef = Value::into_rref(back).expect("an RRef");
    assert_eq!(back.owner(), Rank(0));
    let counter = local::<Counter>(&back).expect("local");
    assert_eq!(*counter.0.lock().expect("unpoisoned"), 3);
    assert_eq!(local::<String>(&back).map(|_| ()).map_err(|error| error.kind), Err(CallErrorKind::BadValue));
    drop((own, back));
    eventually("it goes", || meshes[0].objects().is_empty());
    shut_down(meshes);
}

#[test]
fn a_reference_is_of_no_use_on_a_rank_that_does_not_own_it() {
    let meshes = world(2, |_| methods());
    let counter = meshes[0].remote(Rank(1), "make", message([Value::Int(1)]));
    let error = local::<Counter>(&counter).map(|_| ()).expect_err("elsewhere");
    assert!(error.message.starts_with("the object lives on rank 1"), "{error}");
    drop(counter);
    eventually("it goes", || meshes[1].objects().is_empty());
    shut_down(meshes);
}

#[test]
fn what_goes_wrong_with_remote_shows_where_the_reference_is_used() {
    let meshes = world(2, |_| methods());
    for owner in [Rank(0), Rank(1)] {
        let failed = meshes[0].remote(owner, "fail", Message::default());
        assert_eq!(error(meshes[0].filled(&failed)).message, format!("`fail` on rank {owner}: no room"));
        let unknown = meshes[0].remote(owner, "nonsense", Message::default());
        assert!(error(meshes[0].filled(&unknown)).message.contains("no such method"));
        let used = error(meshes[0].call(owner, "add", message([failed.into(), Value::Int(1)])));
        assert!(used.message.contains("no room"), "{used}");
    }
    let nowhere = meshes[0].remote(Rank(9), "make", message([Value::Int(1)]));
    assert!(error(meshes[0].filled(&nowhere)).message.contains("no such rank"));
    assert!(
        error(meshes[0].call(Rank(1), "keep", message([nowhere.into()]))).message.contains("no such rank")
    );
    for mesh in &meshes {
        eventually("all objects go", || mesh.objects().is_empty());
    }
    shut_down(meshes);
}

#[test]
fn a_plain_message_can_be_kept_by_remote() {
    let meshes = world(2, |_| methods());
    let kept = meshes[1].remote(Rank(1), "echo", message([Value::Int(4), Value::Int(5)]));
    let kept = local::<Mutex<Message>>(&kept).expect("filled");
    assert_eq!(kept.lock().expect("unpoisoned").values.len(), 2);
    shut_down(meshes);
}

#[test]
fn an_object_that_is_never_filled_fails_at_the_deadline() {
    let meshes = crate::support::world_with(
        2,
        |_| methods(),
        |config| config.rpc_timeout = Duration::from_millis(200),
    );
    for owner in [Rank(0), Rank(1)] {
        let never = meshes[0].remote(owner, "never", Message::default());
        let error = error(meshes[0].filled(&never));
        assert!(error.message.contains("no answer within 200ms"), "{error}");
    }
    shut_down(meshes);
}

#[test]
fn the_references_of_a_lost_rank_are_dropped() {
    let mut meshes = world(2, |_| methods());
    let counter = meshes[1].remote(Rank(0), "make", message([Value::Int(1)]));
    meshes[1].filled(&counter).wait().expect("filled");
    assert_eq!(meshes[0].objects().len(), 1);
    drop(meshes.pop());
    eventually("rank 0 drops the counter", || meshes[0].objects().is_empty());
    drop(counter);
}
