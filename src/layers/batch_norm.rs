//! Batch normalisation (Ioffe and Szegedy, 2015) that several threads may train at once, in any
//! number of dimensions.
//!
//! PyTorch's kernel writes the running statistics while it computes. Here it writes into fresh tensors with momentum
//! 1, that is, it hands the batch's own statistics out, and their owner takes them in afterwards. Nor can one thread's
//! update then change what another thread's backward reads.

use tch::{Kind, TchError, Tensor};

use super::arguments::{EPS, arguments, size};
use super::op::{
    Buffer, First, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, Seen, at_each_position,
    weight_and_bias,
};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::{Layer, init, size::numbers};
use crate::config::{Flag, Integer, Key, Number, between, flag, key};

pub(super) const NUM_FEATURES: Key<Integer> =
    size("num_features").doc("Channels, the first dimension of a sample.");
pub(super) const MOMENTUM: Key<Number> = key("momentum", between(0.0, 1.0))
    .default("0.1")
    .doc("How far the running statistics move to a batch's.");
pub(super) const AFFINE: Key<Flag> =
    key("affine", flag()).default("true").doc("Whether it learns a scale and a shift for each channel.");
pub(super) const TRACK_RUNNING_STATS: Key<Flag> = key("track_running_stats", flag())
    .default("true")
    .doc("Keep running statistics, and evaluate with them instead of with the batch's.");

arguments! {
    /// Batch normalisation of samples of `N` dimensions beside their channels.
    pub struct BatchNorm<const N: usize>: BatchNormDimensions {
        num_features: i64 = NUM_FEATURES,
        eps: f64 = EPS,
        momentum: f64 = MOMENTUM,
        affine: bool = AFFINE,
        track_running_stats: bool = TRACK_RUNNING_STATS,
    }
}

/// What the dimensions do not have in common.
pub trait BatchNormDimensions {
    const DOC: &'static str;
    /// The shape of a sample.
    const EXPECTS: &'static str;
    /// What to do with a sample of another shape.
    const OTHERWISE: &'static str;

    fn fits(sample: &[i64]) -> bool;
}

impl<const N: usize> BatchNorm<N> {
    /// `x` (batch, channels, ...) normalised per channel.
    fn normalise(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let (x, weight, bias) = (args.x, args.params.first(), args.params.get(1));
        let normalise = |mean: Option<&Tensor>, var: Option<&Tensor>, train: bool| {
            x.f_batch_norm(weight, bias, mean, var, train, ALL_OF_THE_BATCH, self.eps, true)
        };
        if args.train || !self.track_running_stats {
            enough_values(x)?;
        }
        if !self.track_running_stats {
            return normalise(None, None, true);
        }
        if !args.train {
            let running = (args.buffers)()?;
            return normalise(Some(&running[RUNNING_MEAN]), Some(&running[RUNNING_VAR]), false);
        }
        let features = &x.size()[1..2];
        let mean = Tensor::f_zeros(features, (Kind::Float, x.device()))?;
        let var = Tensor::f_zeros(features, (Kind::Float, x.device()))?;
        let y = normalise(Some(&mean), Some(&var), true)?;
        (args.seen)(Seen::Mean { buffer: RUNNING_MEAN, seen: mean, momentum: self.momentum });
        (args.seen)(Seen::Mean { buffer: RUNNING_VAR, seen: var, momentum: self.momentum });
        (args.seen)(Seen::Batch { buffer: NUM_BATCHES_TRACKED });
        Ok(y)
    }
}

impl<const N: usize> Op for BatchNorm<N>
where
    BatchNorm<N>: BatchNormDimensions,
{
    fn parameters(&self) -> Vec<ParameterSpec> {
        let size = self.num_features;
        if self.affine { weight_and_bias(vec![size], Some(size)) } else { vec![] }
    }

    fn buffers(&self) -> Vec<Buffer> {
        if self.track_running_stats { running_statistics(self.num_features) } else { vec![] }
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::ones(parameters)
    }

    fn output(&self, input: &Signal) -> Output {
        let shape = input.expect_floats()?;
        match Self::fits(shape) {
            true => channels(shape, self.num_features, "num_features"),
            false => Err(Refusal::new(Self::EXPECTS, Self::OTHERWISE).otherwise(shape)),
        }
    }

    fn macs(&self, _input: &Signal, output: &Signal) -> u64 {
        at_each_position(numbers(&self.parameters()), output, false)
    }

    fn has_sparse_gradient(&self) -> bool {
        false
    }

    fn rows(&self) -> Option<RowTable> {
        None
    }

    fn joins(&self) -> Option<&dyn Join> {
        None
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::FORGETS_OUTPUT
    }

    fn python(&self) -> Python {
        Python::torch(format!("nn.BatchNorm{N}d"))
            .with(self.num_features)
            .named("eps", self.eps, 1e-5)
            .named("momentum", self.momentum, 0.1)
            .named("affine", self.affine, true)
            .named("track_running_stats", self.track_running_stats, true)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        self.normalise(args)
    }
}

/// A momentum with which libtorch's kernels leave the batch's own statistics in the running ones.
pub(super) const ALL_OF_THE_BATCH: f64 = 1.0;

/// Positions among [`running_statistics`].
pub(super) const RUNNING_MEAN: usize = 0;
pub(super) const RUNNING_VAR: usize = 1;
const NUM_BATCHES_TRACKED: usize = 2;

/// The buffers of a layer that keeps running statistics.
pub(super) fn running_statistics(features: i64) -> Vec<Buffer> {
    vec![
        Buffer { name: "running_mean", shape: vec![features], first: First::Zeros },
        Buffer { name: "running_var", shape: vec![features], first: First::Ones },
        Buffer { name: "num_batches_tracked", shape: vec![], first: First::Count },
    ]
}

/// PyTorch's own check, which libtorch leaves out: one value has no variance, and would make the running one NaN.
fn enough_values(x: &Tensor) -> Result<(), TchError> {
    let size = x.size();
    let per_channel: i64 =
        size.iter().enumerate().filter(|(dim, _)| *dim != 1).map(|(_, size)| size).product();
    match per_channel {
        2.. => Ok(()),
        _ => Err(TchError::Shape(
            "batch normalisation trains on more than 1 value per channel\n  \
             hint: set data.drop_last = true, or another train.batch_size"
                .into(),
        )),
    }
}

/// What leaves a layer that expects so many channels, the first dimension of a sample; `key` is their argument.
pub(super) fn channels(shape: &[i64], wanted: i64, key: &str) -> Output {
    match shape.first() {
        Some(came) if *came == wanted => Ok(Signal::floats(shape)),
        Some(came) => {
            let expects = format!("{wanted} channels ({key}) in the first dimension");
            Err(Refusal::new(expects, format!("write {key} = {came}")).otherwise(shape))
        }
        None => {
            Err(Refusal::new(format!("{wanted} channels ({key})"), "give the sample a dimension of channels"))
        }
    }
}
