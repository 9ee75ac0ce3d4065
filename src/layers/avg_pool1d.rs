//! Mean pooling of sequences.

use tch::{TchError, Tensor};

use super::avg_pool::{AvgPool, AvgPoolDimensions};

pub type AvgPool1d = AvgPool<1>;

impl AvgPoolDimensions for AvgPool1d {
    const DOC: &'static str = "The mean under a window that slides over a sequence.";

    fn pool(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let AvgPool { kernel_size, padding, ceil_mode, count_include_pad, .. } = self;
        x.f_avg_pool1d(kernel_size, self.step(), padding, *ceil_mode, *count_include_pad)
    }
}
