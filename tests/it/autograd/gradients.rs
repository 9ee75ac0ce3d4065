//! Graphs that PyTorch's FAST mode gets wrong or right: here all equal those of one process.

use std::thread;

use pstrain::autograd::Context;
use tch::Tensor;

use super::world::{
    Leaves, ROWS, World, assert_close, dense, input, loss, on, parameter, start, tensors, value,
};

fn world(size: u32) -> World {
    World::start(size, |_, _| {})
}

/// A parameter of the trainer itself.
fn own(context: &Context, name: &str) -> Tensor {
    parameter(Some(context.state()), name)
}

/// Runs `loss` here and compares with `reference` in one process, both over parameters of the same names.
fn check(
    world: &World,
    distributed: impl Fn(&Context) -> Tensor,
    reference: impl Fn(&dyn Fn(&str) -> Tensor) -> Tensor,
    what: &str,
) {
    let context = world.root().context();
    let root = distributed(&context);
    world.root().backward(&context, &[root.shallow_clone()], false).wait().expect("no rank fails");
    let leaves = Leaves::default();
    let expected = reference(&|name| leaves.get(name));
    assert!((root.double_value(&[]) - expected.double_value(&[])).abs() < 1e-12, "{what}: the loss");
    expected.backward();
    assert_close(&world.gradients(&context), &leaves.gradients(), what);
    drop(context);
    world.wait_until_no_context_is_open();
}

#[test]
fn a_server_alone_and_an_input_that_needs_no_gradient() {
    let world = world(2);
    let remote = |c: &Context| loss(&on(world.root(), c, 1, "dense", &[&input()])[0]);
    check(&world, remote, |p| loss(&dense(p, 1, &input())), "server");
}

#[test]
fn a_sparse_gradient_crosses_a_rank_and_equals_one_process() {
    let world = world(2);
    let context = world.root().context();
    let table = own(&context, "table");
    let root = loss(&on(world.root(), &context, 1, "rows", &[&table])[0]);
    world.root().backward(&context, &[root], false).wait().expect("no rank fails");
    let gradients = world.gradients(&context);
    assert!(gradients["table"].is_sparse());
    let leaves = Leaves::default();
    loss(&leaves.get("table").index_select(0, &Tensor::from_slice(&ROWS))).backward();
    let dense = |(name, gradient): (String, Tensor)| (name, gradient.to_dense(None, false));
    let gradients = gradients.into_iter().map(dense).collect();
    assert_close(&gradients, &leaves.gradients(), "rows");
}

#[test]
fn the_trainer_has_parameters_before_and_behind_the_server() {
    let world = world(2);
    let remote = |c: &Context| {
        let x = dense(|name| own(c, name), 0, &input());
        let y = &on(world.root(), c, 1, "dense", &[&x])[0];
        loss(&(dense(|name| own(c, name), 0, y) + &x))
    };
    let reference = |p: &dyn Fn(&str) -> Tensor| {
        let x = dense(p, 0, &input());
        loss(&(dense(p, 0, &dense(p, 1, &x)) + &x))
    };
    check(&world, remote, reference, "both sides");
}

#[test]
fn nested_calls() {
    let world = world(4);
    let remote = |c: &Context| loss(&on(world.root(), c, 1, "via 2 via 3 dense", &[&input()])[0]);
    let reference = |p: &dyn Fn(&str) -> Tensor| {
        let inner = dense(p, 3, &dense(p, 2, &dense(p, 1, &input())));
        loss(&dense(p, 1, &dense(p, 2, &inner)))
    };
    check(&world, remote, reference, "nested");
}

#[test]
fn a_rank_visited_twice_and_the_trainer_itself_on_the_way() {
    let world = world(2);
    let remote = |c: &Context| loss(&on(world.root(), c, 1, "via 0 via 1 via 0 dense", &[&input()])[0]);
    let reference = |p: &dyn Fn(&str) -> Tensor| {
        let down = [1, 0, 1].iter().fold(input(), |x, &rank| dense(p, rank, &x));
        loss(&[0, 1, 0, 1].iter().fold(down, |x, &rank| dense(p, rank, &x)))
    };
    check(&world, remote, reference, "there and back");
}

#[test]
fn a_rank_that_calls_itself() {
    let world = world(2);
    let remote = |c: &Context| {
        let x = &on(world.root(), c, 0, "dense", &[&own(c, "0.x")])[0];
        loss(&on(world.root(), c, 1, "via 1 dense", &[x])[0])
    };
    let reference = |p: &dyn Fn(&str) -> Tensor| {
        let x = dense(p, 0, &p("0.x"));
        loss(&[1, 1, 1].iter().fold(x, |x, &rank| dense(p, rank, &x)))
    };
    check(&world, remote, reference, "itself");
}

#[test]
fn two_outputs_of_which_one_is_unused() {
    let world = world(3);
    // Whichever is unused; and both depend on what rank 1 received, so it must find out that one never gets a gradient.
    for used in [0, 1] {
        let remote = |c: &Context| {
            let x = dense(|name| own(c, name), 0, &input());
            loss(&on(world.root(), c, 1, "both", &[&x])[used])
        };
        let reference = |p: &dyn Fn(&str) -> Tensor| {
            let x = dense(p, 0, &input());
            loss(&[dense(p, 1, &x), &x * 2.0][used])
        };
        check(&world, remote, reference, "one of two");
    }
    // The unused one is passed on to a third rank, whose result is not used either.
    let remote = |c: &Context| {
        let x = dense(|name| own(c, name), 0, &input());
        let both = on(world.root(), c, 1, "both", &[&x]);
        let _ = on(world.root(), c, 2, "dense", &[&both[1]]);
        loss(&both[0])
    };
    let reference = |p: &dyn Fn(&str) -> Tensor| loss(&dense(p, 1, &dense(p, 0, &input())));
    check(&world, remote, reference, "unused further on");
}

#[test]
fn a_tensor_sent_to_two_ranks_and_twice_in_one_call() {
    let world = world(3);
    let remote = |c: &Context| {
        let x = dense(|name| own(c, name), 0, &input());
        let (a, b) = (start(world.root(), c, 1, "dense", &[&x]), start(world.root(), c, 2, "sum", &[&x, &x]));
        let a = tensors(a.wait().expect("served")).expect("a tensor").remove(0);
        let b = tensors(b.wait().expect("served")).expect("a tensor").remove(0);
        loss(&(a * b))
    };
    let reference = |p: &dyn Fn(&str) -> Tensor| {
        let x = dense(p, 0, &input());
        loss(&(dense(p, 1, &x) * (&x + &x)))
    };
    check(&world, remote, reference, "sent three times");
}

#[test]
fn a_diamond_over_three_ranks() {
    let world = world(4);
    let remote = |c: &Context| {
        let top = &on(world.root(), c, 1, "dense", &[&input()])[0];
        let left = &on(world.root(), c, 2, "dense", &[top])[0];
        let right = &on(world.root(), c, 3, "dense", &[top])[0];
        loss(&on(world.root(), c, 1, "sum", &[left, right, top])[0])
    };
    let reference = |p: &dyn Fn(&str) -> Tensor| {
        let top = dense(p, 1, &input());
        loss(&(dense(p, 2, &top) + dense(p, 3, &top) + &top))
    };
    check(&world, remote, reference, "diamond");
}

#[test]
fn tensors_passed_on_and_returned_as_they_came() {
    let world = world(3);
    let remote = |c: &Context| {
        let x = own(c, "0.x");
        let same = &on(world.root(), c, 1, "same", &[&x])[0];
        let passed_on = &on(world.root(), c, 2, "same", &[same])[0];
        loss(&(passed_on * same))
    };
    check(&world, remote, |p| loss(&(p("0.x") * p("0.x"))), "as it came");
}

#[test]
fn a_received_tensor_that_comes_back_to_its_maker_in_two_ways() {
    let world = world(3);
    // Rank 1 gets gradients for its first output at different times: at once from the root, later by rank 2.
    let remote = |c: &Context| {
        let x = own(c, "0.x");
        let y = &on(world.root(), c, 1, "dense", &[&x])[0];
        let z = &on(world.root(), c, 2, "via 1 dense", &[y])[0];
        loss(y) + loss(z)
    };
    let reference = |p: &dyn Fn(&str) -> Tensor| {
        let y = dense(p, 1, &p("0.x"));
        loss(&y) + loss(&dense(p, 2, &dense(p, 1, &dense(p, 2, &y))))
    };
    check(&world, remote, reference, "twice at different times");
}

#[test]
fn integers_and_tensors_without_gradient_travel_along() {
    let world = world(2);
    let context = world.root().context();
    let index = Tensor::from_slice(&[1i64, 0]);
    let plain = value("plain");
    let same = on(world.root(), &context, 1, "same", &[&index, &plain, &own(&context, "0.x")]);
    assert_eq!(same[0], index);
    assert!(!same[0].requires_grad() && !same[1].requires_grad() && same[2].requires_grad());
    let root = loss(&(same[2].index_select(0, &same[0]).sum_dim_intlist(0i64, true, None) * &same[1]));
    world.root().backward(&context, &[root], false).wait().expect("no rank fails");
    assert_eq!(world.gradients(&context).keys().collect::<Vec<_>>(), ["0.x"]);
}

#[test]
fn several_roots_are_one_backward() {
    let world = world(2);
    let context = world.root().context();
    let both = on(world.root(), &context, 1, "both", &[&own(&context, "0.x")]);
    let roots = [loss(&both[0]), loss(&both[1]).reshape([1, 1])];
    world.root().backward(&context, &roots, false).wait().expect("no rank fails");
    let leaves = Leaves::default();
    let x = leaves.get("0.x");
    (loss(&dense(|name| leaves.get(name), 1, &x)) + loss(&(&x * 2.0))).backward();
    assert_close(&world.gradients(&context), &leaves.gradients(), "two roots");
}

#[test]
fn a_retained_graph_may_be_used_again_and_gradients_add_up() {
    let world = world(3);
    let context = world.root().context();
    let root = loss(&on(world.root(), &context, 1, "via 2 dense", &[&own(&context, "0.x")])[0]);
    let leaves = Leaves::default();
    let p = |name: &str| leaves.get(name);
    for last in [false, false, true] {
        let backward = world.root().backward(&context, &[root.shallow_clone()], !last);
        backward.wait().expect("no rank fails");
        // Again in one process too, over a graph of its own: tch cannot retain one.
        loss(&dense(p, 1, &dense(p, 2, &dense(p, 1, &p("0.x"))))).backward();
        assert_close(&world.gradients(&context), &leaves.gradients(), "once more");
    }
}

#[test]
fn backwards_of_one_context_may_overlap() {
    let world = world(3);
    let context = world.root().context();
    let leaves = Leaves::default();
    let p = |name: &str| leaves.get(name);
    // Micro-batches: each its own graph over the same parameters, none retained.
    let losses: Vec<Tensor> = (0..8)
        .map(|i| loss(&on(world.root(), &context, 1, "via 2 dense", &[&(own(&context, "0.x") * i)])[0]))
        .collect();
    let under_way: Vec<_> =
        losses.into_iter().map(|loss| world.root().backward(&context, &[loss], false)).collect();
    under_way.into_iter().for_each(|backward| backward.wait().expect("no rank fails"));
    for i in 0..8 {
        loss(&dense(p, 1, &dense(p, 2, &dense(p, 1, &(p("0.x") * i))))).backward();
    }
    assert_close(&world.gradients(&context), &leaves.gradients(), "eight at once");
}

#[test]
fn two_contexts_at_once_on_one_server() {
    let world = world(3);
    // Ranks 0 and 2 train on rank 1 at the same time; each finds its own gradients in its own context.
    thread::scope(|scope| {
        for trainer in [0, 2] {
            let autograd = &world.ranks[trainer].autograd;
            scope.spawn(move || {
                for step in 0..20 {
                    let context = autograd.context();
                    let x = value(&format!("{trainer}.{step}"));
                    let y = &on(autograd, &context, 1, "dense", &[&x])[0];
                    autograd.backward(&context, &[loss(y)], false).wait().expect("no rank fails");
                    let got =
                        autograd.gradients(&context, pstrain::topology::Rank(1)).wait().expect("served");
                    let leaves = Leaves::default();
                    loss(&dense(|name| leaves.get(name), 1, &x)).backward();
                    assert_close(&got, &leaves.gradients(), "its own");
                }
            });
        }
    });
    world.wait_until_no_context_is_open();
}
