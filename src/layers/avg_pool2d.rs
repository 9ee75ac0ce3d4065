//! Mean pooling of images.

use tch::{TchError, Tensor};

use super::avg_pool::{AvgPool, AvgPoolDimensions};

pub type AvgPool2d = AvgPool<2>;

impl AvgPoolDimensions for AvgPool2d {
    const DOC: &'static str = "The mean under a window that slides over an image.";

    fn pool(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let AvgPool { kernel_size, padding, ceil_mode, count_include_pad, .. } = self;
        x.f_avg_pool2d(kernel_size, self.step(), padding, *ceil_mode, *count_include_pad, None)
    }
}
