//! Batch normalisation of images.

use super::batch_norm::{BatchNorm, BatchNormDimensions};

pub type BatchNorm2d = BatchNorm<2>;

impl BatchNormDimensions for BatchNorm2d {
    const DOC: &'static str =
        "Each channel of images gets mean 0 and variance 1 over the batch, then a learned scale and shift.";
    const EXPECTS: &'static str = "[channels, height, width]";
    const OTHERWISE: &'static str = "use batch_norm1d, or bring the sample to that shape";

    fn fits(sample: &[i64]) -> bool {
        sample.len() == 3
    }
}
