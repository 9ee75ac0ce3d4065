//! Transposed convolution of images.

use tch::{TchError, Tensor};

use super::arguments::{BIAS, arguments};
use super::conv::{
    Conv, GROUPS, IN_CHANNELS, OUT_CHANNELS, PADDING_MODE, expect_channels, groups_fit, with_channels,
};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position, weight_and_bias,
};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::{Layer, init, size::numbers};
use crate::config::{Key, MOST, Sizes, Table, key, sizes};

arguments! {
    /// The gradient of a convolution as a layer: each number of an image puts a window of learned weights down.
    pub struct ConvTranspose2d {
        in_channels: i64 = IN_CHANNELS,
        out_channels: i64 = OUT_CHANNELS,
        kernel_size: [i64; 2] = Conv::<2>::KERNEL_SIZE,
        stride: [i64; 2] = Conv::<2>::STRIDE,
        padding: [i64; 2] = PADDING,
        output_padding: [i64; 2] = OUTPUT_PADDING,
        groups: i64 = GROUPS,
        bias: bool = BIAS,
        dilation: [i64; 2] = Conv::<2>::DILATION,
    }
    refused: PADDING_MODE;
    rules: check;
}

const PADDING: Key<Sizes<2>> = key("padding", sizes(0..=MOST))
    .default("0")
    .doc("How much is cut off around the output: the padding of the convolution that this one undoes.");
const OUTPUT_PADDING: Key<Sizes<2>> = key("output_padding", sizes(0..=MOST))
    .default("0")
    .doc("Added to one side of the output: of the sizes that the convolution would map to one, which.");

fn check(layer: ConvTranspose2d, table: &Table<'_>) -> Option<ConvTranspose2d> {
    groups_fit(table, layer.groups, layer.in_channels, layer.out_channels)?;
    let most: [i64; 2] = std::array::from_fn(|dim| layer.stride[dim].max(layer.dilation[dim]) - 1);
    if layer.output_padding.iter().zip(&most).all(|(padding, most)| padding <= most) {
        return Some(layer);
    }
    if let Some(item) = table.item(&OUTPUT_PADDING) {
        item.wrong("is not smaller than stride or dilation", format!("use at most {most:?}"));
    }
    None
}

impl ConvTranspose2d {
    /// Places of the output along a dimension with so many of the input.
    fn places(&self, dim: usize, size: i64) -> i64 {
        let span = self.dilation[dim] * (self.kernel_size[dim] - 1) + 1;
        (size - 1) * self.stride[dim] - 2 * self.padding[dim] + span + self.output_padding[dim]
    }
}

impl Op for ConvTranspose2d {
    fn parameters(&self) -> Vec<ParameterSpec> {
        let mut weight = vec![self.in_channels, self.out_channels / self.groups];
        weight.extend(self.kernel_size);
        weight_and_bias(weight, self.bias.then_some(self.out_channels))
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::by_fan_in(parameters)
    }

    fn output(&self, input: &Signal) -> Output {
        let shape = input.expect_floats()?;
        expect_channels::<2>(shape, self.in_channels)?;
        let places = [0, 1].map(|dim| self.places(dim, shape[dim + 1]));
        if let Some(places) = places.iter().find(|places| **places < 1) {
            let expects =
                format!("an input that is larger than its padding cuts off: {places} of it would be left");
            return Err(Refusal::new(expects, "use less padding"));
        }
        let output = [self.out_channels].into_iter().chain(places).collect();
        with_channels(shape[0], self.in_channels, output)
    }

    fn macs(&self, input: &Signal, _output: &Signal) -> u64 {
        // Each weight once at each position of the input.
        at_each_position(numbers(&self.parameters()), input, true)
    }

    fn has_sparse_gradient(&self) -> bool {
        false
    }

    fn rows(&self) -> Option<RowTable> {
        None
    }

    fn joins(&self) -> Option<&dyn Join> {
        None
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::FORGETS_OUTPUT
    }

    fn python(&self) -> Python {
        Python::torch("nn.ConvTranspose2d")
            .with(self.in_channels)
            .with(self.out_channels)
            .with(self.kernel_size)
            .named("stride", self.stride, [1; 2])
            .named("padding", self.padding, [0; 2])
            .named("output_padding", self.output_padding, [0; 2])
            .named("groups", self.groups, 1)
            .named("bias", self.bias, true)
            .named("dilation", self.dilation, [1; 2])
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let ConvTranspose2d { stride, padding, output_padding, groups, dilation, .. } = self;
        let (weight, bias) = (&args.params[0], args.params.get(1));
        args.x.f_conv_transpose2d(weight, bias, stride, padding, output_padding, *groups, dilation)
    }
}
