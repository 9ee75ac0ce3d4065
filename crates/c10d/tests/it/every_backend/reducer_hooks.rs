//! Communication hooks against the same arithmetic done by hand, and against PyTorch's figures.

use super::ranks;
use crate::small_model::*;
use c10d::reducer::{Bucket, CommHook, Hook, PowerSgd, PowerSgdOptions, ReducerOptions};
use c10d::{ProcessGroup, ReduceOp, Result};
use tch::{Kind, Tensor};

/// The averages of one backward on each of two ranks.
fn averages(hook: impl Fn() -> Hook + Sync, steps: i64) -> Vec<Vec<Tensor>> {
    ranks(2, |group| {
        let model = Mlp::new(1);
        let mut reducer = reducer(&model, &group, ReducerOptions { hook: hook(), ..small_buckets() });
        for _ in 0..steps {
            reducer.zero_grad().unwrap();
            reducer.before_forward().unwrap();
            reducer.backward(&model.loss(&Batch::whole(0, 16).part(group.rank(), 2))).unwrap();
        }
        model.parameters.iter().map(Tensor::grad).collect()
    })
}

/// What each rank finds by itself.
fn own() -> [Vec<Tensor>; 2] {
    [0, 1].map(|rank| {
        let model = Mlp::new(1);
        model.loss(&Batch::whole(0, 16).part(rank, 2)).backward();
        model.parameters.iter().map(Tensor::grad).collect()
    })
}

#[test]
fn half_precision_hooks_sum_halves_of_the_gradients_in_their_dtype() {
    let [first, second] = own();
    for (kind, bound) in [(Kind::Half, 2f64.powi(-10)), (Kind::BFloat16, 2f64.powi(-7))] {
        let hook = || if kind == Kind::Half { Hook::Fp16 } else { Hook::Bf16 };
        let exact: Vec<_> = first.iter().zip(&second).map(|(a, b)| (a + b) / 2).collect();
        let wanted: Vec<_> = first
            .iter()
            .zip(&second)
            .map(|(a, b)| (a.to_kind(kind) / 2 + b.to_kind(kind) / 2).to_kind(Kind::Float))
            .collect();
        let largest = exact.iter().map(|it| it.abs().max().double_value(&[])).fold(0.0, f64::max);
        for gradients in averages(hook, 2) {
            assert_close(&gradients, &wanted, 0.0);
            assert_close(&gradients, &exact, bound * largest);
        }
    }
}

#[test]
fn small_buckets_may_be_gathered() {
    let [first, second] = own();
    let exact: Vec<_> = first.iter().zip(&second).map(|(a, b)| (a + b) / 2).collect();
    // All are, some are, none is.
    for up_to_bytes in [u64::MAX, 256, 0] {
        for gradients in averages(|| Hook::Gather { up_to_bytes }, 2) {
            assert_close(&gradients, &exact, ROUNDING);
        }
    }
    let alone = reference(20, 12);
    let options = || ReducerOptions { hook: Hook::Gather { up_to_bytes: 256 }, ..small_buckets() };
    for result in ranks(3, |group| train(&group, options(), 20, 12)) {
        assert_close(&result, &alone, ROUNDING);
    }
}

struct AllReduce;

impl CommHook for AllReduce {
    fn reduce(&mut self, bucket: &Bucket, group: &ProcessGroup) -> Result<Tensor> {
        assert_eq!(bucket.gradients.iter().map(Tensor::numel).sum::<usize>(), bucket.buffer.numel());
        let mut average = &bucket.buffer / f64::from(group.size());
        group.all_reduce(&mut average, ReduceOp::Sum)?;
        Ok(average)
    }
}

#[test]
fn a_hook_of_ones_own_follows_one_process_with_the_whole_batch() {
    let alone = reference(20, 16);
    for view in [false, true] {
        let options = || ReducerOptions {
            hook: Hook::Custom(Box::new(AllReduce)),
            gradient_as_bucket_view: view,
            find_unused_parameters: view,
            ..small_buckets()
        };
        for result in ranks(2, |group| train(&group, options(), 20, 16)) {
            assert_close(&result, &alone, ROUNDING);
        }
    }
}

#[test]
fn power_sgd_of_full_rank_leaves_nothing_out() {
    let [first, second] = own();
    let exact: Vec<_> = first.iter().zip(&second).map(|(a, b)| (a + b) / 2).collect();
    let options =
        PowerSgdOptions { rank: 24, start_iter: 2, min_compression_rate: 0.1, ..PowerSgdOptions::default() };
    for gradients in averages(|| Hook::PowerSgd(options.clone()), 4) {
        assert_close(&gradients, &exact, 1e-5);
    }
}

/// Lines of `rank warm feedback parameter dot norm`, made by tests/data/power_sgd.py.
const FIGURES: &str = include_str!("../../data/power_sgd.txt");

#[test]
fn power_sgd_gives_pytorchs_figures() {
    for (rank, warm, feedback) in [(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 0, 1), (2, 1, 0)] {
        let options = PowerSgdOptions {
            rank,
            start_iter: 3,
            warm_start: warm == 1,
            error_feedback: feedback == 1,
            seed: 7,
            ..PowerSgdOptions::default()
        };
        let hook = || Hook::PowerSgd(options.clone());
        let results =
            ranks(2, |group| train(&group, ReducerOptions { hook: hook(), ..Default::default() }, 12, 16));
        if let [first, second] = &results[..] {
            assert_close(first, second, 0.0);
        }
        let Some(result) = results.first() else { continue };
        assert!(distance(result, &reference(12, 16)) > 1e-3, "it compresses");
        for (i, parameter) in result.iter().enumerate() {
            let [dot, norm] = figure(&format!("{rank} {warm} {feedback} {i}"));
            let weights = numbers(&parameter.size(), 99);
            assert_near((parameter * weights).sum(Kind::Double).double_value(&[]), dot);
            assert_near(parameter.norm().double_value(&[]), norm);
        }
    }
}

fn figure(start: &str) -> [f64; 2] {
    let line = FIGURES.lines().find(|line| line.starts_with(&format!("{start} "))).unwrap();
    let fields: Vec<f64> = line.split_whitespace().skip(4).map(|field| field.parse().unwrap()).collect();
    [fields[0], fields[1]]
}

#[track_caller]
fn assert_near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{found} instead of {wanted}");
}

#[test]
fn power_sgd_refuses_options_that_cannot_be() {
    let refused = |options| PowerSgd::new(options).map(drop).unwrap_err().to_string();
    let base = PowerSgdOptions::default;
    assert_eq!(
        refused(PowerSgdOptions { rank: 0, ..base() }),
        "PowerSGD: the rank must be at least 1, it is 0"
    );
    assert_eq!(
        refused(PowerSgdOptions { start_iter: 1, ..base() }),
        "PowerSGD: start_iter must be at least 2 with error feedback or warm start, it is 1"
    );
    assert_eq!(
        refused(PowerSgdOptions { epsilon: f64::NAN, ..base() }),
        "PowerSGD: epsilon must not be below 0, it is NaN"
    );
}
