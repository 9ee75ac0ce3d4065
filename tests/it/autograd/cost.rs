//! Messages: a step must not wait for more of them than it has to.

use pstrain::autograd::Context;
use pstrain::rpc::{CallError, Value};
use pstrain::topology::Rank;
use tch::Tensor;

use crate::support::tensor_of;

use super::world::{
    Leaves, Values, World, assert_close, call_of_values, dense, input, loss, on, parameter, tensors,
};

call_of_values!(Step = "step");

/// Calls from each rank to each rank.
fn calls(world: &World) -> Vec<Vec<u64>> {
    world.ranks.iter().map(|node| node.mesh.calls_sent()).collect()
}

fn calls_since(world: &World, before: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let difference = |(now, before): (Vec<u64>, &Vec<u64>)| {
        now.iter().zip(before).map(|(now, before)| now - before).collect()
    };
    calls(world).into_iter().zip(before).map(difference).collect()
}

#[test]
fn a_step_on_a_parameter_server_is_a_forward_a_backward_and_a_release() {
    let world = World::start(2, |_, _| {});
    let before = calls(&world);
    let context = world.root().context();
    let y = on(world.root(), &context, 1, "dense", &[&input()]);
    assert_eq!(calls_since(&world, &before), [[0, 1], [0, 0]]);
    world.root().backward(&context, &[loss(&y[0])], false).wait().expect("no rank fails");
    assert_eq!(calls_since(&world, &before), [[0, 2], [0, 0]]);
    drop(context);
    assert_eq!(calls_since(&world, &before), [[0, 3], [0, 0]]);
}

#[test]
fn a_backward_over_a_chain_is_one_call_for_each_edge() {
    let world = World::start(4, |_, _| {});
    let context = world.root().context();
    let a = &on(world.root(), &context, 1, "dense", &[&input()])[0];
    let b = &on(world.root(), &context, 2, "dense", &[a])[0];
    let c = &on(world.root(), &context, 3, "dense", &[b])[0];
    let before = calls(&world);
    world.root().backward(&context, &[loss(c)], false).wait().expect("no rank fails");
    assert_eq!(calls_since(&world, &before), [[0, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]);
}

#[test]
fn gradients_for_one_rank_travel_together_with_news_of_unused_ones() {
    let world = World::start(2, |_, _| {});
    let context = world.root().context();
    let x = parameter(Some(context.state()), "0.x");
    let used = on(world.root(), &context, 1, "same", &[&x, &x, &x]);
    let before = calls(&world);
    // Rank 1 need not ask what becomes of the third: it was told that nothing does.
    world.root().backward(&context, &[loss(&(&used[0] * &used[1]))], false).wait().expect("no rank fails");
    assert_eq!(calls_since(&world, &before), [[0, 1], [1, 0]]);
}

/// `step`: waits until this rank's gradients are there, and returns them in order of their names.
fn world_with_steps(size: u32) -> World {
    World::start(size, |autograd, methods| {
        autograd.serve(methods, async |scope, Step(mut values)| {
            let state = scope.state.clone().expect("called in a context");
            let last = values.remove(0).into_int()? as u64;
            scope.autograd.settled(&state, last).await?;
            let gradients = state.take_gradients().into_iter();
            Ok::<_, CallError>(Values(
                gradients.flat_map(|(name, g)| [Value::from(name), g.into()]).collect(),
            ))
        });
    })
}

/// Sends `step` to these ranks right behind the backward, and only then waits for all.
fn backward_and_step(world: &World, context: &Context, root: Tensor, ranks: &[u32]) -> Vec<(String, Tensor)> {
    let backward = world.root().backward(context, &[root], false);
    let number = Value::Int(backward.number().expect("begun") as i64);
    let step = |rank: &u32| {
        let Value::Int(number) = &number else { unreachable!() };
        world.root().call(Rank(*rank), Step(vec![Value::Int(*number)]), Some(context))
    };
    let steps: Vec<_> = ranks.iter().map(step).collect();
    backward.wait().expect("no rank fails");
    let mut gradients = Vec::new();
    for step in steps {
        let mut values = step.wait().expect("no rank fails").0.into_iter();
        while let (Some(name), Some(gradient)) = (values.next(), values.next()) {
            gradients.push((name.into_text().expect("a name"), tensor_of(gradient).expect("a gradient")));
        }
    }
    gradients
}

#[test]
fn a_step_sent_right_behind_the_backward_finds_the_gradients() {
    let world = world_with_steps(2);
    for _ in 0..50 {
        let context = world.root().context();
        let y = on(world.root(), &context, 1, "dense", &[&input()]);
        let gradients = backward_and_step(&world, &context, loss(&y[0]), &[1]);
        let leaves = Leaves::default();
        loss(&dense(|name| leaves.get(name), 1, &input())).backward();
        assert_close(&gradients.into_iter().collect(), &leaves.gradients(), "stepped");
    }
}

#[test]
fn a_step_waits_for_gradients_that_come_by_other_ranks() {
    let world = world_with_steps(4);
    for _ in 0..20 {
        let context = world.root().context();
        let y = &on(world.root(), &context, 1, "via 2 via 3 dense", &[&input()])[0];
        // Also a result that nobody uses: rank 3 must not wait for its gradient.
        let _ = on(world.root(), &context, 3, "dense", &[y]);
        let gradients = backward_and_step(&world, &context, loss(y), &[3, 2, 1]);
        let leaves = Leaves::default();
        let p = |name: &str| leaves.get(name);
        loss(&dense(p, 1, &dense(p, 2, &dense(p, 3, &dense(p, 2, &dense(p, 1, &input())))))).backward();
        assert_close(&gradients.into_iter().collect(), &leaves.gradients(), "stepped");
    }
}

#[test]
fn a_step_fails_with_the_backward_it_waits_for() {
    let world = world_with_steps(3);
    let context = world.root().context();
    let x = &on(world.root(), &context, 2, "dense", &[&input()])[0];
    let y = on(world.root(), &context, 1, "broken", &[x]);
    let backward = world.root().backward(&context, &[loss(&y[0])], false);
    let number = backward.number().expect("begun") as i64;
    // Rank 2's gradient would come by rank 1, whose backward fails.
    let step = world.root().call(Rank(2), Step(vec![number.into()]), Some(&context));
    assert!(backward.wait().is_err());
    let error = step.wait().map(|values| tensors(values).map(drop)).expect_err("there are no gradients");
    assert!(error.to_string().contains("inplace operation"), "{error}");
}
