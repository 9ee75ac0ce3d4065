//! Gradients and reach, against what is known on paper.

use c10d::engine::{grad, mark, place, reach, receive};
use tch::{Kind, Tensor};

fn leaf(values: &[f64]) -> Tensor {
    Tensor::from_slice(values).set_requires_grad(true)
}

fn seed(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).expect("a vector of numbers")
}

fn given(gradient: &Option<Tensor>) -> Vec<f64> {
    values(gradient.as_ref().expect("a gradient"))
}

#[test]
fn each_output_is_seeded_with_its_own_gradient() {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let (square, triple) = (&x * &x, &x * 3.0);
    let gradients = grad(
        &[square, triple],
        &[x.shallow_clone()],
        &[seed(&[1.0, 10.0, 100.0]), seed(&[1.0, 0.0, -1.0])],
        false,
    )
    .unwrap();
    assert_eq!(given(&gradients[0]), [2.0 + 3.0, 40.0, 600.0 - 3.0]);
    assert!(!x.grad().defined(), "gradients never go to .grad");
}

#[test]
fn an_unused_input_has_no_gradient() {
    let (x, unused) = (leaf(&[2.0]), leaf(&[5.0]));
    let y = &x * &x;
    let gradients = grad(&[y], &[unused, x], &[seed(&[1.0])], false).unwrap();
    assert!(gradients[0].is_none());
    assert_eq!(given(&gradients[1]), [4.0]);
}

#[test]
fn a_retained_graph_gives_the_same_again_and_a_freed_one_an_error() {
    let x = leaf(&[2.0]);
    let y = &x * &x;
    let run = |retain| grad(&[y.shallow_clone()], &[x.shallow_clone()], &[seed(&[1.0])], retain);
    assert_eq!(given(&run(true).unwrap()[0]), [4.0]);
    assert_eq!(given(&run(false).unwrap()[0]), [4.0]);
    let error = run(false).unwrap_err();
    assert!(error.message.contains("second time"), "{error}");
    assert!(!error.message.contains("frame #"), "a backtrace got through: {error}");
}

#[test]
fn an_input_may_be_inside_the_graph_or_an_output_itself() {
    let x = leaf(&[3.0]);
    let middle = &x * &x;
    let end = &middle * &middle;
    let inputs = [middle.shallow_clone(), x.shallow_clone(), end.shallow_clone()];
    let gradients = grad(&[end], &inputs, &[seed(&[1.0])], false).unwrap();
    assert_eq!(gradients.iter().map(given).collect::<Vec<_>>(), [[18.0], [108.0], [1.0]]);
    let identity = grad(&[x.shallow_clone()], &[x], &[seed(&[7.0])], false).unwrap();
    assert_eq!(given(&identity[0]), [7.0]);
}

#[test]
fn one_part_of_a_split_is_told_from_the_other() {
    let x = leaf(&[1.0, 2.0, 3.0, 4.0]);
    let parts = (&x * 1.0).split(2, 0);
    let y = &parts[0] * 5.0;
    let table = reach(&[y.shallow_clone()], &parts).unwrap();
    assert_eq!(table, [[true, false]]);
    let gradients = grad(&[y], &parts, &[seed(&[1.0, 1.0])], false).unwrap();
    assert_eq!(given(&gradients[0]), [5.0, 5.0]);
    assert!(gradients[1].is_none());
}

#[test]
fn errors_say_what_libtorch_says() {
    let (x, plain) = (leaf(&[1.0, 2.0]), seed(&[1.0, 2.0]));
    let y = &x * 2.0;
    let message = |outputs: &[&Tensor], inputs: &[&Tensor], seeds: &[Tensor]| {
        let copy = |list: &[&Tensor]| list.iter().map(|t| t.shallow_clone()).collect::<Vec<_>>();
        grad(&copy(outputs), &copy(inputs), seeds, true).unwrap_err().message
    };
    assert!(mark(&plain).is_err() && place(&plain).is_err());
    assert!(receive(&Tensor::from_slice(&[1i64])).unwrap_err().message.contains("dtype"));
    assert!(message(&[&plain], &[&x], &[seed(&[1.0, 1.0])]).contains("does not require grad"));
    assert!(message(&[&y], &[&plain], &[seed(&[1.0, 1.0])]).contains("does not require grad"));
    assert!(message(&[&y], &[&x], &[seed(&[1.0, 1.0, 1.0])]).contains("shape"));
    assert_eq!(message(&[&y], &[&x], &[]), "1 outputs but 0 gradients for them");
    assert!(reach(&[y], &[Tensor::new()]).unwrap_err().message.contains("undefined"));
}

#[test]
fn no_inputs_mean_no_gradients_and_no_writes_to_leaves() {
    let x = leaf(&[1.0]);
    assert!(grad(&[&x * 2.0], &[], &[seed(&[1.0])], false).unwrap().is_empty());
    assert!(!x.grad().defined());
    assert!(grad(&[], &[x], &[], false).unwrap()[0].is_none());
}

#[test]
fn reach_names_the_leaves_of_each_output() {
    let (a, b, c, alone) = (leaf(&[1.0]), leaf(&[2.0]), leaf(&[3.0]), leaf(&[4.0]));
    let plain = seed(&[5.0]);
    let shared = &a * &b;
    let outputs = [&shared + &plain, &shared * &c, c.shallow_clone(), plain.shallow_clone(), c.detach()];
    let inputs = [a, b, c, alone, plain, shared];
    let table = reach(&outputs, &inputs).unwrap();
    assert_eq!(table[0], [true, true, false, false, false, true]);
    assert_eq!(table[1], [true, true, true, false, false, true]);
    assert_eq!(table[2], [false, false, true, false, false, false], "a leaf reaches itself");
    assert_eq!(table[3], [false; 6]);
    assert_eq!(table[4], [false; 6], "a detached tensor has no graph");
}

#[test]
fn reach_walks_a_graph_deeper_than_the_stack() {
    let x = leaf(&[0.5]);
    // 200,000 steps of recursion in a thread of 64 KiB would overflow.
    let mut y = x.shallow_clone();
    for _ in 0..200_000 {
        y = y.f_neg().unwrap();
    }
    let small = std::thread::Builder::new().stack_size(64 << 10);
    let walk =
        small.spawn(move || (reach(&[y.shallow_clone()], &[x.shallow_clone()]).unwrap(), x, y)).unwrap();
    assert_eq!(walk.join().unwrap().0, [[true]]);
}

#[test]
fn more_leaves_than_a_machine_word_has_bits_are_told_apart() {
    let leaves: Vec<Tensor> = (0..130).map(|i| leaf(&[i as f64])).collect();
    let some = &leaves[3] * &leaves[64] + &leaves[129];
    let table = reach(&[some], &leaves).unwrap();
    let reached: Vec<usize> = (0..130).filter(|&i| table[0][i]).collect();
    assert_eq!(reached, [3, 64, 129]);
}

#[test]
fn two_threads_may_differentiate_graphs_over_the_same_leaf() {
    let x = leaf(&[2.0, 3.0]);
    let threads: Vec<_> = (1..=4)
        .map(|factor| {
            let x = x.shallow_clone();
            std::thread::spawn(move || {
                let y = &x * &x * f64::from(factor);
                let gradients = grad(&[y], &[x], &[seed(&[1.0, 1.0])], false).unwrap();
                assert_eq!(given(&gradients[0]), [4.0 * f64::from(factor), 6.0 * f64::from(factor)]);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn marks_stand_for_the_tensors_they_were_made_from() {
    let x = leaf(&[1.0, 2.0]);
    let y = &x * &x;
    let marks = [mark(&x).unwrap(), mark(&y).unwrap()];
    assert_eq!(marks[1].numel(), 0);
    let z = (&y * 3.0).sum(Kind::Double);
    let end = mark(&z).unwrap();
    drop((y, z));
    assert_eq!(reach(&[end.shallow_clone()], &marks).unwrap(), [[true, true]]);
    let gradients = grad(&[end], &marks, &[Tensor::from(2.0)], false).unwrap();
    assert_eq!(given(&gradients[0]), [12.0, 24.0]);
    assert_eq!(given(&gradients[1]), [6.0, 6.0]);
}

#[test]
fn a_received_tensor_starts_a_graph_of_its_own() {
    let history = leaf(&[1.0, 2.0]) * 5.0;
    let received = receive(&history).unwrap();
    assert!(received.tensor.requires_grad() && !received.tensor.is_leaf());
    assert_eq!(received.tensor.data_ptr(), history.data_ptr(), "the memory is shared");
    let y = (&received.tensor * &received.tensor).sum(Kind::Double);
    let inputs = [received.mark.shallow_clone(), mark(&history).unwrap()];
    let gradients = grad(&[y], &inputs, &[Tensor::from(1.0)], false).unwrap();
    assert_eq!(given(&gradients[0]), [10.0, 20.0]);
    assert!(gradients[1].is_none(), "the history before the cut is not reached");
    // As it is, without anything computed.
    let identity = grad(&[received.tensor], &[received.mark], &[seed(&[3.0, 4.0])], false).unwrap();
    assert_eq!(given(&identity[0]), [3.0, 4.0]);
}

#[test]
fn a_received_tensor_may_be_changed_in_place() {
    let received = receive(&seed(&[-1.0, 2.0])).unwrap();
    let mut tensor = received.tensor;
    let y = tensor.f_relu_().unwrap() * 3.0;
    let gradients = grad(&[y], &[received.mark], &[seed(&[1.0, 1.0])], false).unwrap();
    assert_eq!(given(&gradients[0]), [0.0, 3.0]);
}

#[test]
fn a_plain_backward_does_not_lose_the_gradient_of_a_received_tensor() {
    let received = receive(&seed(&[1.0])).unwrap();
    let error = (&received.tensor * 2.0).sum(Kind::Double).f_backward().unwrap_err();
    assert!(error.to_string().contains("received from another rank"), "{error}");
}

#[test]
fn places_tell_tensors_apart_and_know_the_same_again() {
    let (x, other) = (leaf(&[1.0]), leaf(&[1.0]));
    let held = mark(&x).unwrap();
    assert_eq!(place(&x).unwrap(), place(&held).unwrap());
    assert_eq!(place(&x.shallow_clone()).unwrap(), place(&held).unwrap());
    assert_ne!(place(&other).unwrap(), place(&held).unwrap());
    let parts = (&x * 1.0).split(1, 0);
    assert_ne!(place(&parts[0]).unwrap(), place(&held).unwrap());
}

#[test]
fn a_seed_of_another_shape_than_the_marked_tensor_is_refused() {
    let x = leaf(&[1.0, 2.0]);
    let end = mark(&(&x * 2.0)).unwrap();
    let error = grad(&[end], &[x], &[seed(&[1.0, 1.0, 1.0])], false).unwrap_err();
    assert!(error.message.contains("shape"), "{error}");
}
