//! How contexts end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pstrain::autograd::{Discover, Gradients, Release, Run};
use pstrain::rpc::{Call, CallError, CallErrorKind, ContextId, Message};
use pstrain::topology::Rank;

use super::world::{Apply, Values, World, call_of_values, input, loss, on, start, wait_until};

call_of_values!(Keep = "keep");

static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Counts how many of it there are.
struct Kept;

impl Kept {
    fn new() -> Kept {
        KEPT.fetch_add(1, Ordering::SeqCst);
        Kept
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn dropping_a_context_ends_it_on_every_rank_that_it_touched_and_what_hangs_on_it() {
    let world = World::start(4, |autograd, methods| {
        autograd.serve(methods, async |scope, keep: Keep| {
            let state = scope.state.clone().expect("called in a context");
            let (a, b) = (state.get_or_insert_with(Kept::new), state.get_or_insert_with(Kept::new));
            assert!(Arc::ptr_eq(&a, &b));
            if scope.mesh.rank().0 < 3 {
                scope.call(Rank(scope.mesh.rank().0 + 1), keep).await?;
            }
            Ok::<_, CallError>(Values(Vec::new()))
        });
    });
    let context = world.root().context();
    // Rank 0 knows rank 1 only, which knows rank 2, which knows rank 3.
    world.root().call(Rank(1), Keep(Vec::new()), Some(&context)).wait().expect("served");
    let open: Vec<usize> = world.ranks.iter().map(|node| node.autograd.open_contexts()).collect();
    assert_eq!((open, KEPT.load(Ordering::SeqCst)), (vec![1; 4], 3));
    drop(context);
    world.wait_until_no_context_is_open();
    // A rank drops what hangs on a context after it has taken it off its list.
    wait_until(|| KEPT.load(Ordering::SeqCst) == 0, || "what hung on the context is still there".into());
}

#[test]
fn a_context_of_a_rank_that_does_not_exist_is_refused() {
    let world = World::start(2, |_, _| {});
    let methods = [Apply::NAME, Run::NAME, Discover::NAME, Gradients::NAME, Release::NAME];
    for (method, rank) in methods.into_iter().zip([2, 3, u32::MAX, 2, 3]) {
        let context = Some(ContextId { rank: Rank(rank), number: 1 });
        let message = Message { values: vec!["same".into()], context };
        let error = world.ranks[0].mesh.call(Rank(1), method, message).wait().expect_err("refused");
        assert_eq!(error.kind, CallErrorKind::BadValue, "{error}");
        let says = format!("autograd context {rank}.1: there is no rank {rank} in a world of 2");
        assert_eq!(error.message, says);
    }
    assert_eq!(world.ranks[1].autograd.open_contexts(), 0);
}

#[test]
fn the_contexts_of_a_dead_trainer_are_dropped() {
    let world = World::start(3, |_, _| {});
    let (a, b) = (world.ranks[0].autograd.context(), world.ranks[2].autograd.context());
    on(&world.ranks[0].autograd, &a, 1, "dense", &[&input()]);
    let y = on(&world.ranks[2].autograd, &b, 1, "dense", &[&input()]);
    let server = &world.ranks[1].autograd;
    assert_eq!(server.open_contexts(), 2);
    server.drop_contexts_of(Rank(2));
    assert_eq!(server.open_contexts(), 1);
    let late = start(&world.ranks[2].autograd, &b, 1, "dense", &[&input()]).wait().expect_err("dropped");
    assert!(late.to_string().contains("has ended"), "{late}");
    let late = world.ranks[2].autograd.backward(&b, &[loss(&y[0])], false).wait().expect_err("dropped");
    assert!(late.to_string().contains("autograd context 2.1 has ended"), "{late}");
}

#[test]
fn a_thousand_steps_leave_nothing_behind() {
    let world = World::start(2, |_, _| {});
    for _ in 0..1_500 {
        let context = world.root().context();
        let y = on(world.root(), &context, 1, "dense", &[&input()]);
        world.root().backward(&context, &[loss(&y[0])], false).wait().expect("no rank fails");
    }
    world.wait_until_no_context_is_open();
}
