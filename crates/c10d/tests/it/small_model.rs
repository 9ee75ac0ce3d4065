//! A small model whose numbers need no random generator.

use std::ops::Range;
use std::time::Duration;

use c10d::reducer::{Reducer, ReducerOptions};
use c10d::{Options, ProcessGroup};
use tch::{Device, Kind, Tensor};

/// One float32 rounding.
pub const ROUNDING: f64 = 3e-7;

pub fn options() -> Options {
    Options { timeout: Duration::from_secs(30), ..Options::default() }
}

/// Numbers between -1 and 1 that look like chance, others for each seed.
pub fn numbers(shape: &[i64], seed: i64) -> Tensor {
    let count: i64 = shape.iter().product();
    let at = Tensor::arange(count, (Kind::Double, Device::Cpu)) + (1000 * seed + 1) as f64;
    (at * 12.9898).sin().multiply_scalar(43758.5453).frac().to_kind(Kind::Float).view(shape)
}

/// Leaves with the shapes, as `numbers` gives them.
pub fn leaves(shapes: &[&[i64]], seed: i64) -> Vec<Tensor> {
    let leaf = |(shape, i): (&&[i64], i64)| (numbers(shape, seed + i) * 0.5).set_requires_grad(true);
    shapes.iter().zip(0..).map(leaf).collect()
}

pub const SHAPES: [&[i64]; 6] = [&[24, 6], &[24], &[24, 24], &[24], &[3, 24], &[3]];

/// Three layers.
pub struct Mlp {
    pub parameters: Vec<Tensor>,
}

impl Mlp {
    pub fn new(seed: i64) -> Self {
        Self { parameters: leaves(&SHAPES, seed) }
    }

    pub fn forward(&self, input: &Tensor) -> Tensor {
        let [w1, b1, w2, b2, w3, b3] = &self.parameters[..] else { unreachable!() };
        let hidden = input.linear(w1, Some(b1)).tanh();
        let hidden = hidden.linear(w2, Some(b2)).tanh();
        hidden.linear(w3, Some(b3))
    }

    pub fn loss(&self, batch: &Batch) -> Tensor {
        self.forward(&batch.input).mse_loss(&batch.target, tch::Reduction::Mean)
    }

    pub fn zero_grad(&self) {
        self.parameters.iter().for_each(|parameter| parameter.shallow_clone().zero_grad());
    }

    /// Plain SGD with what is in `.grad`.
    pub fn step(&self) {
        let gradients: Vec<_> = self.parameters.iter().map(Tensor::grad).collect();
        self.step_with(&gradients);
    }

    pub fn step_with(&self, gradients: &[Tensor]) {
        tch::no_grad(|| {
            for (parameter, gradient) in self.parameters.iter().zip(gradients) {
                let _ = parameter.shallow_clone().g_sub_(&(gradient * 0.3));
            }
        });
    }
}

pub struct Batch {
    pub input: Tensor,
    pub target: Tensor,
}

impl Batch {
    /// The rows of step `step`, in all.
    pub fn whole(step: i64, rows: i64) -> Self {
        Self { input: numbers(&[rows, 6], 100 + step), target: numbers(&[rows, 3], 500 + step) }
    }

    /// The part of a rank.
    pub fn part(&self, rank: u32, size: u32) -> Self {
        let cut = |all: &Tensor| all.chunk(i64::from(size), 0).swap_remove(rank as usize);
        Self { input: cut(&self.input), target: cut(&self.target) }
    }
}

pub fn copies(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.detach().copy()).collect()
}

/// One process, the full batch.
pub fn reference(steps: i64, rows: i64) -> Vec<Tensor> {
    let model = Mlp::new(1);
    for step in 0..steps {
        model.zero_grad();
        model.loss(&Batch::whole(step, rows)).backward();
        model.step();
    }
    copies(&model.parameters)
}

/// The largest difference of any two elements.
pub fn distance(a: &[Tensor], b: &[Tensor]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs().max().double_value(&[])).fold(0.0, f64::max)
}

#[track_caller]
pub fn assert_close(a: &[Tensor], b: &[Tensor], bound: f64) {
    let distance = distance(a, b);
    assert!(distance <= bound, "{distance:e} apart, {bound:e} allowed");
}

pub fn reducer(model: &Mlp, group: &ProcessGroup, options: ReducerOptions) -> Reducer {
    Reducer::new(&model.parameters, &[], group, options).unwrap()
}

/// Buckets so small that the model needs several.
pub fn small_buckets() -> ReducerOptions {
    ReducerOptions { bucket_cap_mb: 0.0005, first_bucket_mb: 0.0002, ..ReducerOptions::default() }
}

/// 20 steps on each rank into `.grad`; the parameters at the end.
pub fn train(group: &ProcessGroup, options: ReducerOptions, steps: i64, rows: i64) -> Vec<Tensor> {
    // Each starts elsewhere: the reducer gives all the start of rank 0.
    let model = Mlp::new(1 + 50 * i64::from(group.rank()));
    train_on(&model, group, options, 0..steps, rows);
    copies(&model.parameters)
}

/// Some of these steps, by a reducer of their own.
pub fn train_on(model: &Mlp, group: &ProcessGroup, options: ReducerOptions, steps: Range<i64>, rows: i64) {
    let mut reducer = reducer(model, group, options);
    for step in steps {
        let batch = Batch::whole(step, rows).part(group.rank(), group.size());
        reducer.zero_grad().unwrap();
        reducer.before_forward().unwrap();
        reducer.backward(&model.loss(&batch)).unwrap();
        model.step();
    }
}
