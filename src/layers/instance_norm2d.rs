//! Instance normalisation of images.

use super::instance_norm::{InstanceNorm, InstanceNormDimensions};

pub type InstanceNorm2d = InstanceNorm<2>;

impl InstanceNormDimensions for InstanceNorm2d {
    const DOC: &'static str = "Each channel of each image gets mean 0 and variance 1, then, if asked for, a learned scale and shift.";
}
