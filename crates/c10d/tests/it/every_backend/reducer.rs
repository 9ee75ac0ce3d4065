//! Replicas that follow one process with the whole batch.

use super::ranks;
use crate::small_model::*;
use c10d::ProcessGroup;
use c10d::reducer::{Reducer, ReducerOptions};
use tch::{Device, Kind, Tensor};

#[test]
fn two_ranks_follow_one_process_with_the_whole_batch() {
    let alone = reference(20, 16);
    for result in ranks(2, |group| train(&group, ReducerOptions::default(), 20, 16)) {
        assert_close(&result, &alone, ROUNDING);
    }
}

#[test]
fn four_ranks_follow_one_process_with_several_buckets() {
    let alone = reference(20, 16);
    for result in ranks(4, |group| train(&group, small_buckets(), 20, 16)) {
        assert_close(&result, &alone, ROUNDING);
    }
}

#[test]
fn gradients_that_stay_in_the_buckets_are_the_same() {
    let alone = reference(20, 16);
    let options = || ReducerOptions { gradient_as_bucket_view: true, ..small_buckets() };
    for result in ranks(2, |group| train(&group, options(), 20, 16)) {
        assert_close(&result, &alone, ROUNDING);
    }
}

#[test]
fn a_static_graph_gives_the_same() {
    let alone = reference(20, 16);
    let options = || ReducerOptions { static_graph: true, ..small_buckets() };
    for result in ranks(2, |group| train(&group, options(), 20, 16)) {
        assert_close(&result, &alone, ROUNDING);
    }
}

#[test]
fn a_backward_of_the_callers_own_gives_the_same() {
    let alone = reference(5, 16);
    let results = ranks(2, |group| {
        let model = Mlp::new(1 + i64::from(group.rank()));
        let mut reducer = reducer(&model, &group, small_buckets());
        for step in 0..5 {
            let batch = Batch::whole(step, 16).part(group.rank(), 2);
            model.zero_grad();
            reducer.before_forward().unwrap();
            let loss = model.loss(&batch);
            reducer.before_backward(std::slice::from_ref(&loss)).unwrap();
            loss.f_backward().unwrap();
            model.step();
        }
        copies(&model.parameters)
    });
    for result in results {
        assert_close(&result, &alone, ROUNDING);
    }
}

#[test]
fn accumulated_steps_equal_one_of_a_larger_batch() {
    let alone = reference(4, 32);
    for view in [false, true] {
        let results = ranks(2, |group| {
            let model = Mlp::new(1);
            let options = ReducerOptions { gradient_as_bucket_view: view, ..small_buckets() };
            let mut reducer = reducer(&model, &group, options);
            for step in 0..4 {
                let whole = Batch::whole(step, 32);
                // Four parts of eight rows: two for each rank, one after the other.
                let loss = |reducer: &mut Reducer, half: u32| {
                    reducer.before_forward().unwrap();
                    let loss = model.loss(&whole.part(2 * group.rank() + half, 4)) / 2;
                    reducer.backward(&loss).unwrap();
                };
                reducer.zero_grad().unwrap();
                reducer.no_sync(|reducer| loss(reducer, 0));
                loss(&mut reducer, 1);
                model.step();
            }
            copies(&model.parameters)
        });
        for result in results {
            assert_close(&result, &alone, ROUNDING);
        }
    }
}

/// Rank 0 uses the first branch, rank 1 the second; nobody the last.
struct Branches {
    parameters: Vec<Tensor>,
}

impl Branches {
    fn new() -> Self {
        Self { parameters: leaves(&[&[4], &[4], &[4], &[4]], 7) }
    }

    fn loss(&self, branch: usize) -> Tensor {
        (&self.parameters[0] * &self.parameters[branch]).sum(Kind::Float)
    }
}

fn unused(group: &ProcessGroup, options: ReducerOptions) -> Vec<Tensor> {
    let model = Branches::new();
    let options = ReducerOptions { find_unused_parameters: true, ..options };
    let mut reducer = Reducer::new(&model.parameters, &[], group, options).unwrap();
    let mut last = Vec::new();
    for _ in 0..3 {
        reducer.zero_grad().unwrap();
        reducer.before_forward().unwrap();
        reducer.backward(&model.loss(1 + group.rank() as usize)).unwrap();
        last = model.parameters.iter().map(Tensor::grad).collect();
    }
    last
}

#[test]
fn a_parameter_that_one_rank_leaves_unused_gets_half_of_the_others_gradient() {
    let model = Branches::new();
    let [shared, first, second, _] = &model.parameters[..] else { unreachable!() };
    let wanted = [(first + second) / 2, shared / 2, shared / 2];
    for view in [false, true] {
        let options = || ReducerOptions { gradient_as_bucket_view: view, ..ReducerOptions::default() };
        for gradients in ranks(2, |group| unused(&group, options())) {
            assert_close(&gradients[..3], &wanted, ROUNDING);
            assert!(!gradients[3].defined(), "nobody used it");
        }
    }
}

#[test]
fn a_rank_whose_loss_reaches_no_parameter_still_takes_part() {
    let results = ranks(2, |group| {
        let model = Branches::new();
        let options = ReducerOptions { find_unused_parameters: true, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(&model.parameters, &[], &group, options).unwrap();
        let apart = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        for _ in 0..2 {
            model.parameters.iter().for_each(|p| p.shallow_clone().zero_grad());
            reducer.before_forward().unwrap();
            let loss = if group.rank() == 0 { model.loss(1) } else { (&apart * 2).sum(Kind::Float) };
            reducer.backward(&loss).unwrap();
        }
        model.parameters[..2].iter().map(Tensor::grad).collect::<Vec<_>>()
    });
    let model = Branches::new();
    let wanted = [&model.parameters[1] / 2, &model.parameters[0] / 2];
    for gradients in results {
        assert_close(&gradients, &wanted, ROUNDING);
    }
}

#[test]
fn buffers_are_those_of_rank_0_before_each_forward() {
    let results = ranks(2, |group| {
        let model = Mlp::new(1);
        let mut buffer = Tensor::full([3], 10.0 + f64::from(group.rank()), (Kind::Float, Device::Cpu));
        let counter = Tensor::full([], i64::from(group.rank()), (Kind::Int64, Device::Cpu));
        let buffers = [buffer.shallow_clone(), counter.shallow_clone()];
        let mut reducer = Reducer::new(&model.parameters, &buffers, &group, small_buckets()).unwrap();
        let mut seen = vec![buffer.double_value(&[0]), counter.double_value(&[])];
        for step in 0..2 {
            let _ = buffer.g_add_scalar_(1.0 + f64::from(group.rank()));
            reducer.before_forward().unwrap();
            seen.push(buffer.double_value(&[2]));
            reducer.backward(&model.loss(&Batch::whole(step, 4))).unwrap();
        }
        seen
    });
    for result in results {
        assert_eq!(result, [10.0, 0.0, 11.0, 12.0]);
    }
}

#[test]
fn parameters_have_the_values_of_rank_0_from_the_start() {
    let results = ranks(3, |group| {
        let model = Mlp::new(1 + i64::from(group.rank()));
        let _reducer = reducer(&model, &group, ReducerOptions::default());
        copies(&model.parameters)
    });
    for result in results {
        assert_close(&result, &Mlp::new(1).parameters, 0.0);
    }
}

#[test]
fn the_first_backward_orders_the_buckets() {
    let counts = ranks(2, |group| {
        let model = Mlp::new(1);
        let mut reducer = reducer(&model, &group, small_buckets());
        let before = reducer.bucket_bytes().unwrap();
        for step in 0..2 {
            reducer.before_forward().unwrap();
            reducer.backward(&model.loss(&Batch::whole(step, 4))).unwrap();
        }
        (before, reducer.bucket_bytes().unwrap())
    });
    for (before, after) in counts {
        let numbers: i64 = SHAPES.iter().map(|shape| shape.iter().product::<i64>()).sum();
        assert_eq!(before, [numbers as u64 * 4]);
        assert!(after.len() > 2, "{after:?}");
        assert_eq!(after.iter().sum::<u64>(), before[0]);
    }
}

fn kept_buckets() -> ReducerOptions {
    ReducerOptions { rebuild_buckets: false, ..small_buckets() }
}

#[test]
fn kept_buckets_have_the_last_parameters_first_from_the_start() {
    let results = ranks(4, |group| {
        let model = Mlp::new(1);
        let mut kept = reducer(&model, &group, kept_buckets());
        let before = kept.bucket_bytes().unwrap();
        kept.before_forward().unwrap();
        kept.backward(&model.loss(&Batch::whole(0, 4))).unwrap();
        kept.before_forward().unwrap();
        (before, kept.bucket_bytes().unwrap(), train(&group, kept_buckets(), 20, 16))
    });
    for (before, after, trained) in results {
        // From the end [3], [3, 24], a bucket full at 209 bytes; [24], [24, 24], full at 524; [24], [24, 6].
        assert_eq!(before, [(3 + 72) * 4, (24 + 576) * 4, (24 + 144) * 4]);
        assert_eq!(before, after);
        assert_close(&trained, &reference(20, 16), ROUNDING);
    }
}

#[test]
fn kept_buckets_of_several_dtypes_come_in_the_order_in_which_they_are_ready() {
    let orders = ranks(2, |group| {
        let kinds = [Kind::Float, Kind::Double, Kind::Float, Kind::Double];
        let parameter = |kind| Tensor::ones([10], (kind, Device::Cpu)).set_requires_grad(true);
        let parameters = kinds.map(parameter);
        let options = ReducerOptions { rebuild_buckets: false, ..ReducerOptions::default() };
        Reducer::new(&parameters, &[], &group, options).unwrap().bucket_bytes().unwrap()
    });
    // The floats' waits for the first parameter, the last to come.
    assert_eq!(orders, [[160, 80], [160, 80]]);
}

/// The last bits of a sum of three depend on where a number lies in its bucket.
#[test]
fn with_kept_buckets_a_reducer_goes_on_to_the_same_bits_as_another() {
    let trained = ranks(3, |group| {
        let steps = |model: &Mlp, steps| train_on(model, &group, kept_buckets(), steps, 6);
        let [whole, gone_on] = [Mlp::new(1), Mlp::new(1)];
        steps(&whole, 0..6);
        steps(&gone_on, 0..3);
        steps(&gone_on, 3..6);
        [whole, gone_on].map(|model| copies(&model.parameters))
    });
    for [whole, gone_on] in trained {
        assert_close(&whole, &gone_on, 0.0);
    }
}

#[test]
fn communication_runs_during_the_backward() {
    let stats = ranks(2, |group| {
        let weights = leaves(&[[256, 256].as_slice(); 12], 3);
        let options = ReducerOptions { bucket_cap_mb: 0.25, first_bucket_mb: 0.25, ..Default::default() };
        let mut reducer = Reducer::new(&weights, &[], &group, options).unwrap();
        for _ in 0..5 {
            reducer.before_forward().unwrap();
            let start = numbers(&[512, 256], i64::from(group.rank()));
            let end = weights.iter().fold(start, |x, weight| x.matmul(weight).tanh());
            reducer.backward(&end.sum(Kind::Float)).unwrap();
        }
        reducer.before_forward().unwrap();
        reducer.stats().unwrap()
    });
    for stats in stats {
        assert!(!stats.overlap.is_zero() && stats.overlap <= stats.communication, "{stats:?}");
        assert!(!stats.forward.is_zero() && !stats.backward.is_zero(), "{stats:?}");
    }
}

#[test]
fn two_reducers_live_at_once_and_one_may_go_midway() {
    let wanted = reference(4, 16);
    let results = ranks(2, |group| {
        let (left, right) = (Mlp::new(1), Mlp::new(1));
        let mut reducers =
            [Some(reducer(&left, &group, small_buckets())), Some(reducer(&right, &group, small_buckets()))];
        for step in 0..4 {
            let batch = Batch::whole(step, 16).part(group.rank(), 2);
            for (model, reducer) in [&left, &right].into_iter().zip(&mut reducers) {
                model.zero_grad();
                if let Some(reducer) = reducer {
                    reducer.before_forward().unwrap();
                    if step == 2 && std::ptr::eq(model, &left) {
                        continue;
                    }
                    reducer.backward(&model.loss(&batch)).unwrap();
                } else {
                    model.loss(&batch).backward();
                }
                model.step();
            }
            if step == 2 {
                // Prepared, but its backward never comes.
                reducers[0] = None;
            }
        }
        (copies(&left.parameters), copies(&right.parameters))
    });
    for (left, right) in &results {
        assert_close(right, &wanted, ROUNDING);
        assert!(distance(left, &wanted) > 1e-4);
    }
    if let [first, second] = &results[..] {
        assert!(distance(&first.0, &second.0) > 1e-4, "without a reducer each rank goes its own way");
    }
}

#[test]
fn two_reducers_over_the_same_parameters_average_one_after_the_other() {
    let results = ranks(2, |group| {
        let model = Mlp::new(1);
        drop(reducer(&model, &group, small_buckets()));
        let mut again = reducer(&model, &group, small_buckets());
        for step in 0..3 {
            model.zero_grad();
            again.before_forward().unwrap();
            again.backward(&model.loss(&Batch::whole(step, 16).part(group.rank(), 2))).unwrap();
            model.step();
        }
        copies(&model.parameters)
    });
    for result in results {
        assert_close(&result, &reference(3, 16), ROUNDING);
    }
}
