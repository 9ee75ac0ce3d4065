//! Batch normalisation of features or sequences.

use super::batch_norm::{BatchNorm, BatchNormDimensions};

pub type BatchNorm1d = BatchNorm<1>;

impl BatchNormDimensions for BatchNorm1d {
    const DOC: &'static str = "Each channel of features or sequences gets mean 0 and variance 1 over the batch, then a learned scale and shift.";
    const EXPECTS: &'static str = "[features] or [channels, length]";
    const OTHERWISE: &'static str = "use batch_norm2d, or bring the sample to that shape";

    fn fits(sample: &[i64]) -> bool {
        matches!(sample, [_] | [_, _])
    }
}
