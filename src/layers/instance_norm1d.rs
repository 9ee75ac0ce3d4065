//! Instance normalisation of sequences.

use super::instance_norm::{InstanceNorm, InstanceNormDimensions};

pub type InstanceNorm1d = InstanceNorm<1>;

impl InstanceNormDimensions for InstanceNorm1d {
    const DOC: &'static str = "Each channel of each sequence gets mean 0 and variance 1, then, if asked for, a learned scale and shift.";
}
