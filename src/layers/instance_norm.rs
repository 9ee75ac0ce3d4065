//! Instance normalisation (Ulyanov et al., 2016) in any number of dimensions.
//!
//! Running statistics, if it keeps any, are handed out as those of a batch normalisation are: see `batch_norm.rs`.

use tch::{Kind, TchError, Tensor};

use super::arguments::{EPS, arguments};
use super::batch_norm::{
    ALL_OF_THE_BATCH, MOMENTUM, NUM_FEATURES, RUNNING_MEAN, RUNNING_VAR, channels, running_statistics,
};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, Seen, at_each_position, weight_and_bias,
};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::window::dimensions;
use super::{Layer, init, size::numbers};
use crate::config::{Flag, Key, flag, key};

pub(super) const AFFINE: Key<Flag> =
    key("affine", flag()).default("false").doc("Whether it learns a scale and a shift for each channel.");
pub(super) const TRACK_RUNNING_STATS: Key<Flag> = key("track_running_stats", flag())
    .default("false")
    .doc("Keep running statistics, and evaluate with them instead of with the sample's.");

arguments! {
    /// Instance normalisation of samples of `N` dimensions beside their channels.
    pub struct InstanceNorm<const N: usize>: InstanceNormDimensions {
        num_features: i64 = NUM_FEATURES,
        eps: f64 = EPS,
        momentum: f64 = MOMENTUM,
        affine: bool = AFFINE,
        track_running_stats: bool = TRACK_RUNNING_STATS,
    }
}

/// What the dimensions do not have in common.
pub trait InstanceNormDimensions {
    const DOC: &'static str;
}

impl<const N: usize> InstanceNorm<N> {
    /// `x` (batch, channels, ...) normalised per sample and channel.
    fn normalise(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let (x, weight, bias) = (args.x, args.params.first(), args.params.get(1));
        let normalise = |mean: Option<&Tensor>, var: Option<&Tensor>, own: bool| {
            x.f_instance_norm(weight, bias, mean, var, own, ALL_OF_THE_BATCH, self.eps, true)
        };
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
        // PyTorch has a count of batches here as well, and never counts.
        (args.seen)(Seen::Mean { buffer: RUNNING_MEAN, seen: mean, momentum: self.momentum });
        (args.seen)(Seen::Mean { buffer: RUNNING_VAR, seen: var, momentum: self.momentum });
        Ok(y)
    }
}

impl<const N: usize> Op for InstanceNorm<N>
where
    InstanceNorm<N>: InstanceNormDimensions,
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
        if shape.len() != N + 1 {
            let hint = "bring the sample to that shape, for example with a reshape before it";
            return Err(Refusal::new(format!("[channels, {}]", dimensions(N)), hint).otherwise(shape));
        }
        // PyTorch's own check, when it trains: one value has no variance.
        if shape[1..].iter().all(|size| *size == 1) {
            let hint = "leave it out there, or use another normalisation: its output would be 0";
            return Err(Refusal::new("more than 1 value per channel", hint).otherwise(shape));
        }
        channels(shape, self.num_features, "num_features")
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
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        Python::torch(format!("nn.InstanceNorm{N}d"))
            .with(self.num_features)
            .named("eps", self.eps, 1e-5)
            .named("momentum", self.momentum, 0.1)
            .named("affine", self.affine, false)
            .named("track_running_stats", self.track_running_stats, false)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        self.normalise(args)
    }
}
