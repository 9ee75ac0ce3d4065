//! Convolution of volumes.

use tch::{TchError, Tensor};

use super::conv::{Conv, Convolve};

pub type Conv3d = Conv<3>;

impl Convolve for Conv3d {
    const DOC: &'static str = "A window of learned weights that slides over volumes.";

    fn convolve(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
        let Conv { stride, padding, dilation, groups, .. } = self;
        x.f_conv3d(weight, bias, stride, padding, dilation, *groups)
    }
}
