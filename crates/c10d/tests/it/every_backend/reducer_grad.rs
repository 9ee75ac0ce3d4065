//! Averages as the result of a backward that captures gradients, as distributed autograd needs them.

use super::ranks;
use crate::small_model::*;
use c10d::engine;
use c10d::reducer::{Reducer, ReducerOptions};
use tch::{Device, Kind, Tensor};

fn ones_like(tensor: &Tensor) -> Tensor {
    tensor.ones_like()
}

fn all(gradients: Vec<Option<Tensor>>) -> Vec<Tensor> {
    gradients.into_iter().map(Option::unwrap).collect()
}

/// As `train`, without a `.grad`.
fn train_captured(group: &c10d::ProcessGroup, options: ReducerOptions) -> Vec<Tensor> {
    let model = Mlp::new(1 + 50 * i64::from(group.rank()));
    let mut reducer = reducer(&model, group, options);
    for step in 0..20 {
        let loss = model.loss(&Batch::whole(step, 16).part(group.rank(), group.size()));
        reducer.before_forward().unwrap();
        let seed = ones_like(&loss);
        let gradients = reducer.grad(&[loss], &model.parameters, &[seed], false).unwrap();
        model.step_with(&all(gradients));
    }
    assert!(model.parameters.iter().all(|parameter| !parameter.grad().defined()));
    copies(&model.parameters)
}

#[test]
fn captured_gradients_follow_one_process_with_the_whole_batch() {
    let alone = reference(20, 16);
    for (view, unused, still) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (false, false, true),
    ] {
        let options = || ReducerOptions {
            gradient_as_bucket_view: view,
            find_unused_parameters: unused,
            static_graph: still,
            ..small_buckets()
        };
        for result in ranks(2, |group| train_captured(&group, options())) {
            assert_close(&result, &alone, ROUNDING);
        }
    }
}

#[test]
fn both_ways_take_turns() {
    let alone = reference(6, 16);
    for view in [false, true] {
        let results = ranks(2, |group| {
            let model = Mlp::new(1);
            let options = ReducerOptions { gradient_as_bucket_view: view, ..small_buckets() };
            let mut reducer = reducer(&model, &group, options);
            for step in 0..6 {
                let loss = model.loss(&Batch::whole(step, 16).part(group.rank(), 2));
                reducer.before_forward().unwrap();
                if step % 2 == 0 {
                    let seed = ones_like(&loss);
                    model.step_with(&all(reducer.grad(&[loss], &model.parameters, &[seed], false).unwrap()));
                } else {
                    reducer.zero_grad().unwrap();
                    reducer.backward(&loss).unwrap();
                    model.step();
                }
            }
            copies(&model.parameters)
        });
        for result in results {
            assert_close(&result, &alone, ROUNDING);
        }
    }
}

#[test]
fn marks_of_received_tensors_get_this_ranks_own_gradients() {
    let results = ranks(2, |group| {
        let me = f64::from(group.rank() + 1);
        let parameters = leaves(&[&[3], &[3]], 5);
        let mut reducer = Reducer::new(&parameters, &[], &group, ReducerOptions::default()).unwrap();
        let received = engine::receive(&(numbers(&[3], 9) * me)).unwrap();
        let unrelated = engine::receive(&numbers(&[3], 8)).unwrap();
        reducer.before_forward().unwrap();
        let sent = &received.tensor * &parameters[0];
        let loss = (&received.tensor * &parameters[1]).sum(Kind::Float);
        // What another rank would send for the tensor that went there.
        let (outputs, seeds) = (
            [engine::mark(&sent).unwrap(), loss],
            [Tensor::full([3], me, (Kind::Float, Device::Cpu)), Tensor::from(1.0f32)],
        );
        drop(sent);
        let inputs = [
            parameters[1].shallow_clone(),
            received.mark.shallow_clone(),
            unrelated.mark.shallow_clone(),
            engine::mark(&parameters[0]).unwrap(),
        ];
        let mut found = reducer.grad(&outputs, &inputs, &seeds, false).unwrap();
        assert!(found.remove(2).is_none(), "nothing reaches it");
        (all(found), &parameters[0] * me + &parameters[1])
    });
    let base = numbers(&[3], 9);
    for (found, own) in &results {
        // The average of base * rank, for ranks 1 and 2; and of base * rank * seed.
        assert_close(&found[..1], &[&base * 1.5], ROUNDING);
        assert_close(&found[1..2], &[own.shallow_clone()], ROUNDING);
        assert_close(&found[2..], &[&base * 2.5], 2.0 * ROUNDING);
    }
}

#[test]
fn unused_parameters_are_averaged_with_zeros_or_have_none() {
    let model = leaves(&[&[4], &[4], &[4], &[4]], 7);
    let wanted = [(&model[1] + &model[2]) / 2, &model[0] / 2, &model[0] / 2];
    for view in [false, true] {
        let results = ranks(2, |group| {
            let parameters = leaves(&[&[4], &[4], &[4], &[4]], 7);
            let options = ReducerOptions {
                find_unused_parameters: true,
                gradient_as_bucket_view: view,
                ..ReducerOptions::default()
            };
            let mut reducer = Reducer::new(&parameters, &[], &group, options).unwrap();
            (0..3)
                .map(|_| {
                    reducer.before_forward().unwrap();
                    let used = &parameters[1 + group.rank() as usize];
                    let loss = (&parameters[0] * used).sum(Kind::Float);
                    let seed = ones_like(&loss);
                    let gradients = reducer.grad(&[loss], &parameters, &[seed], false).unwrap();
                    gradients.into_iter().map(|gradient| gradient.map(|it| it.copy())).collect::<Vec<_>>()
                })
                .next_back()
                .unwrap()
        });
        for mut gradients in results {
            assert!(gradients.pop().unwrap().is_none(), "nobody used it");
            assert_close(&all(gradients), &wanted, ROUNDING);
        }
    }
}

#[test]
fn a_rank_without_outputs_takes_part() {
    let results = ranks(2, |group| {
        let parameters = leaves(&[&[4]], 7);
        let options = ReducerOptions { find_unused_parameters: true, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(&parameters, &[], &group, options).unwrap();
        reducer.before_forward().unwrap();
        let loss = parameters[0].square().sum(Kind::Float);
        let (outputs, seeds) = if group.rank() == 0 {
            (vec![loss.shallow_clone()], vec![ones_like(&loss)])
        } else {
            (vec![], vec![])
        };
        all(reducer.grad(&outputs, &parameters, &seeds, false).unwrap())
    });
    for gradients in results {
        assert_close(&gradients, &leaves(&[&[4]], 7), ROUNDING);
    }
}

#[test]
fn an_output_may_be_a_parameter() {
    for unused in [false, true] {
        let results = ranks(2, |group| {
            let parameters = leaves(&[&[4], &[4]], 7);
            let options = ReducerOptions { find_unused_parameters: unused, ..ReducerOptions::default() };
            let mut reducer = Reducer::new(&parameters, &[], &group, options).unwrap();
            reducer.before_forward().unwrap();
            let loss = parameters[1].sum(Kind::Float);
            let seeds =
                [Tensor::full([4], f64::from(group.rank()), (Kind::Float, Device::Cpu)), ones_like(&loss)];
            let outputs = [parameters[0].shallow_clone(), loss];
            all(reducer.grad(&outputs, &parameters, &seeds, false).unwrap())
        });
        for gradients in results {
            let filled = |value: f64| Tensor::full([4], value, (Kind::Float, Device::Cpu));
            assert_close(&gradients, &[filled(0.5), filled(1.0)], 0.0);
        }
    }
}

#[test]
fn averages_do_not_write_to_what_others_hold() {
    for view in [false, true] {
        ranks(2, |group| {
            let parameters = leaves(&[&[4], &[2, 2]], 7);
            let other = leaves(&[&[4]], 8).remove(0);
            let options = ReducerOptions { gradient_as_bucket_view: view, ..ReducerOptions::default() };
            let mut reducer = Reducer::new(&parameters, &[], &group, options).unwrap();
            let mut before: Vec<Tensor> = Vec::new();
            for step in 0..3 {
                reducer.before_forward().unwrap();
                // One gradient for all three, and it is the seed itself.
                let sum = &parameters[0] + parameters[1].view([4]) + &other;
                let seed = Tensor::full([4], f64::from(group.rank() + step), (Kind::Float, Device::Cpu));
                let inputs = [&parameters[0], &parameters[1], &other].map(Tensor::shallow_clone);
                let found = all(reducer.grad(&[sum], &inputs, &[seed.shallow_clone()], false).unwrap());
                let filled = |value: f64| Tensor::full([4], value, (Kind::Float, Device::Cpu));
                let (own, average) = (f64::from(group.rank() + step), f64::from(step) + 0.5);
                assert_close(&[seed], &[filled(own)], 0.0);
                let flat = [found[0].view([4]), found[1].view([4]), found[2].shallow_clone()];
                assert_close(&flat, &[filled(average), filled(average), filled(own)], 0.0);
                if !view && step > 0 {
                    assert_close(&before, &[filled(average - 1.0)], 0.0);
                }
                before = vec![found[0].shallow_clone()];
            }
        });
    }
}

#[test]
fn accumulated_runs_give_the_average_of_their_sums() {
    let model = Mlp::new(1);
    model.loss(&Batch::whole(0, 32)).backward();
    let wanted: Vec<_> = model.parameters.iter().map(Tensor::grad).collect();
    for view in [false, true] {
        let results = ranks(2, |group| {
            let model = Mlp::new(1);
            let options = ReducerOptions { gradient_as_bucket_view: view, ..small_buckets() };
            let mut reducer = reducer(&model, &group, options);
            let run = |reducer: &mut Reducer, half: u32| {
                reducer.before_forward().unwrap();
                let loss = model.loss(&Batch::whole(0, 32).part(2 * group.rank() + half, 4)) / 2;
                let seed = ones_like(&loss);
                reducer.grad(&[loss], &model.parameters, &[seed], false).unwrap()
            };
            (0..2)
                .map(|_| {
                    let first = reducer.no_sync(|reducer| run(reducer, 0));
                    assert!(first.iter().all(Option::is_none), "they wait in the reducer");
                    all(run(&mut reducer, 1))
                })
                .next_back()
                .unwrap()
        });
        for gradients in results {
            assert_close(&gradients, &wanted, ROUNDING);
        }
    }
}

#[test]
fn other_backwards_over_the_parameters_are_left_alone() {
    ranks(2, |group| {
        let model = Mlp::new(1);
        let mut reducer = reducer(&model, &group, small_buckets());
        let loss = || model.loss(&Batch::whole(0, 16).part(group.rank(), 2));
        let alone = |loss: Tensor| {
            let seed = ones_like(&loss);
            all(engine::grad(&[loss], &model.parameters, &[seed], false).unwrap())
        };
        let wanted = alone(loss());
        for _ in 0..2 {
            reducer.before_forward().unwrap();
            let seed = ones_like(&loss());
            let averages = all(reducer.grad(&[loss()], &model.parameters, &[seed], false).unwrap());
            // Only this rank, without a word to the other.
            if group.rank() == 0 {
                assert_close(&alone(loss()), &wanted, 0.0);
            }
            assert!(distance(&averages, &wanted) > 1e-4);
        }
    });
}
