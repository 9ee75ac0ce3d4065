//! Max pooling of images.

use tch::{TchError, Tensor};

use super::max_pool::{MaxPool, MaxPoolDimensions};

pub type MaxPool2d = MaxPool<2>;

impl MaxPoolDimensions for MaxPool2d {
    const DOC: &'static str = "The greatest number under a window that slides over an image.";

    fn pool(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_max_pool2d(self.kernel_size, self.step(), self.padding, self.dilation, self.ceil_mode)
    }
}
