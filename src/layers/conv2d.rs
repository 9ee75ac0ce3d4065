//! Convolution of images.

use tch::{TchError, Tensor};

use super::conv::{Conv, Convolve};

pub type Conv2d = Conv<2>;

impl Convolve for Conv2d {
    const DOC: &'static str = "A window of learned weights that slides over images.";

    fn convolve(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
        let Conv { stride, padding, dilation, groups, .. } = self;
        x.f_conv2d(weight, bias, stride, padding, dilation, *groups)
    }
}
