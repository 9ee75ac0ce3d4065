//! Instance normalisation (Ulyanov et al., 2016): what both dimensions of it have in common.
//!
//! Running statistics, if it keeps any, are handed out as those of a batch normalisation are: see `batch_norm.rs`.

use tch::{Kind, TchError, Tensor};

use super::batch_norm::{channels, running_statistics};
use super::op::{Buffer, Call, Seen, Slot, weight_and_bias};
use super::shape::{Output, Refusal, Signal};
use super::window::dimensions;
use crate::config::{Flag, Key, flag, key};

pub(super) const AFFINE: Key<Flag> =
    key("affine", flag()).default("false").doc("Whether it learns a scale and a shift for each channel.");
pub(super) const TRACK_RUNNING_STATS: Key<Flag> = key("track_running_stats", flag())
    .default("false")
    .doc("Keep running statistics, and evaluate with them instead of with the sample's.");

/// The options of such a layer.
pub(super) struct InstanceNorm {
    pub num_features: i64,
    pub eps: f64,
    pub momentum: f64,
    pub affine: bool,
    pub track_running_stats: bool,
}

impl InstanceNorm {
    pub fn parameters(&self) -> Vec<Slot> {
        let size = self.num_features;
        if self.affine { weight_and_bias(vec![size], Some(size)) } else { vec![] }
    }

    pub fn buffers(&self) -> Vec<Buffer> {
        if self.track_running_stats { running_statistics(self.num_features) } else { vec![] }
    }

    /// What leaves it of samples with channels and `dims` other dimensions.
    pub fn output(&self, input: &Signal, dims: usize) -> Output {
        let shape = input.expect_floats()?;
        if shape.len() != dims + 1 {
            let hint = "bring the sample to that shape, for example with a reshape before it";
            return Err(Refusal::new(format!("[channels, {}]", dimensions(dims)), hint).otherwise(shape));
        }
        // PyTorch's own check, when it trains: one value has no variance.
        if shape[1..].iter().all(|size| *size == 1) {
            let hint = "leave it out there, or use another normalisation: its output would be 0";
            return Err(Refusal::new("more than 1 value per channel", hint).otherwise(shape));
        }
        channels(shape, self.num_features, "num_features")
    }

    /// `x` (N, C, ...) normalised per sample and channel.
    pub fn forward(&self, call: &mut Call<'_>) -> Result<Tensor, TchError> {
        let (x, weight, bias) = (call.x, call.params.first(), call.params.get(1));
        let normalise = |mean: Option<&Tensor>, var: Option<&Tensor>, own: bool| {
            x.f_instance_norm(weight, bias, mean, var, own, 1.0, self.eps, true)
        };
        if !self.track_running_stats {
            return normalise(None, None, true);
        }
        if !call.train {
            let running = (call.buffers)()?;
            return normalise(Some(&running[0]), Some(&running[1]), false);
        }
        let features = &x.size()[1..2];
        let mean = Tensor::f_zeros(features, (Kind::Float, x.device()))?;
        let var = Tensor::f_zeros(features, (Kind::Float, x.device()))?;
        let y = normalise(Some(&mean), Some(&var), true)?;
        // PyTorch has a count of batches here as well, and never counts.
        (call.seen)(Seen::Mean { buffer: 0, seen: mean, momentum: self.momentum });
        (call.seen)(Seen::Mean { buffer: 1, seen: var, momentum: self.momentum });
        Ok(y)
    }
}
