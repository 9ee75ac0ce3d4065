//! What a caller is told, and what becomes of the context.

use std::time::{Duration, Instant};

use pstrain::rpc::{CallErrorKind, Value};
use pstrain::topology::Rank;
use tch::Tensor;

use super::world::{Apply, World, input, loss, on, parameter, start, tensors};

fn world(size: u32) -> World {
    World::start(size, |_, _| {})
}

#[test]
fn an_error_in_a_remote_backward_names_the_rank_and_fails_the_context_everywhere() {
    let world = world(4);
    let context = world.root().context();
    // Rank 3 takes no part in the backward, but it belongs to the context.
    let aside = on(world.root(), &context, 3, "dense", &[&input()]);
    let y = &on(world.root(), &context, 1, "via 2 broken", &[&input()])[0];
    let error = world.root().backward(&context, &[loss(y)], false).wait().expect_err("rank 2 fails");
    let text = error.to_string();
    assert!(text.contains("rank 2") && text.contains("inplace operation"), "{text}");
    assert!(!text.contains("frame #"), "a backtrace got through: {text}");
    for rank in 1..4 {
        let error = start(world.root(), &context, rank, "dense", &[&input()]).wait().expect_err("failed");
        assert!(error.to_string().contains("inplace operation"), "rank {rank}: {error}");
        // On the rank itself, not only here. Nobody waits for the news, so it may take a moment.
        let deadline = Instant::now() + Duration::from_secs(10);
        let error = loop {
            match world.root().gradients(&context, Rank(rank)).wait() {
                Err(error) => break error.to_string(),
                Ok(_) => assert!(Instant::now() < deadline, "rank {rank} was not told"),
            }
        };
        assert!(error.contains("rank 2") && error.contains("inplace operation"), "rank {rank}: {error}");
    }
    let error = world.root().backward(&context, &[loss(&aside[0])], false).wait().expect_err("failed");
    assert!(error.to_string().contains("has failed"), "{error}");
    drop(context);
    world.wait_until_no_context_is_open();
    // The next step is a new beginning.
    let context = world.root().context();
    let y = &on(world.root(), &context, 2, "dense", &[&input()])[0];
    world.root().backward(&context, &[loss(y)], false).wait().expect("a fresh context");
}

#[test]
fn a_second_backward_over_a_freed_graph_is_an_error_that_says_so() {
    let world = world(2);
    let context = world.root().context();
    let y = &on(world.root(), &context, 1, "dense", &[&input()])[0];
    let root = loss(y);
    world.root().backward(&context, &[root.shallow_clone()], false).wait().expect("the first");
    let before = world.gradients(&context);
    let error = world.root().backward(&context, &[root], false).wait().expect_err("the second");
    assert!(error.message.contains("retain_graph = true"), "{error}");
    // Found out before anything happened: what is there stays usable.
    assert_eq!(world.gradients(&context), before);
}

#[test]
fn roots_that_cannot_be_differentiated_are_refused() {
    let world = world(1);
    let context = world.root().context();
    let x = parameter(Some(context.state()), "0.x");
    let refused = |roots: &[Tensor]| {
        let backward = world.root().backward(&context, roots, false);
        assert_eq!(backward.number(), None);
        backward.wait().expect_err("refused").message
    };
    assert!(refused(&[]).contains("needs a root"));
    assert!(refused(&[&x * 2.0]).contains("root 0 has shape [4, 4]"));
    assert!(refused(&[loss(&x), loss(&input())]).contains("root 1 does not require grad"));
    world.root().backward(&context, &[loss(&x)], false).wait().expect("the context is as it was");
}

#[test]
fn a_plain_backward_over_a_remote_result_is_an_error() {
    let world = world(2);
    let context = world.root().context();
    let y = &on(world.root(), &context, 1, "dense", &[&input()])[0];
    let error = loss(y).f_backward().expect_err("its gradient would be lost");
    assert!(error.to_string().contains("received from another rank"), "{error}");
}

#[test]
fn without_a_context_nothing_is_recorded() {
    let world = world(2);
    let x = parameter(None, "0.x").set_requires_grad(true);
    let y = world.root().call(Rank(1), Apply(vec!["dense".into(), x.into()]), None).wait().expect("served");
    assert!(!tensors(y).expect("a tensor")[0].requires_grad());
    world.ranks.iter().for_each(|node| assert_eq!(node.autograd.open_contexts(), 0));
}

#[test]
fn a_failed_call_leaves_the_context_usable() {
    let world = world(2);
    let context = world.root().context();
    let error =
        start(world.root(), &context, 1, "no such thing", &[&input()]).wait().expect_err("no such function");
    assert_eq!(error.kind, CallErrorKind::Remote);
    assert!(world.root().call(Rank(9), Apply(vec![Value::Nil]), Some(&context)).wait().is_err());
    let y = &on(world.root(), &context, 1, "dense", &[&input()])[0];
    world.root().backward(&context, &[loss(y)], false).wait().expect("usable");
}
