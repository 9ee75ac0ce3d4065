//! Convolution of sequences.

use tch::{TchError, Tensor};

use super::conv::{Conv, Convolve};

pub type Conv1d = Conv<1>;

impl Convolve for Conv1d {
    const DOC: &'static str = "A window of learned weights that slides over sequences.";

    fn convolve(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
        let Conv { stride, padding, dilation, groups, .. } = self;
        x.f_conv1d(weight, bias, stride, padding, dilation, *groups)
    }
}
