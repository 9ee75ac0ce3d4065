//! Max pooling of sequences.

use tch::{TchError, Tensor};

use super::max_pool::{MaxPool, MaxPoolDimensions};

pub type MaxPool1d = MaxPool<1>;

impl MaxPoolDimensions for MaxPool1d {
    const DOC: &'static str = "The greatest number under a window that slides over a sequence.";

    fn pool(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_max_pool1d(self.kernel_size, self.step(), self.padding, self.dilation, self.ceil_mode)
    }
}
