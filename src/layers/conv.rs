//! Convolutions in any number of dimensions.

use figment::value::Value;
use serde::Serialize;
use tch::{TchError, Tensor};

use super::arguments::{Arguments, BIAS, divisors_hint, size};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position, weight_and_bias,
};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::window::{Window, dimensions, slide};
use super::{Layer, init, size::numbers};
use crate::config::{
    AnyKey, Integer, Item, Key, Kind, MOST, Refused, Sizes, Table, Values, integer, key, refused, sizes,
};

/// A convolution over the last `N` dimensions of a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(bound = "[i64; N]: Serialize")]
pub struct Conv<const N: usize> {
    pub in_channels: i64,
    pub out_channels: i64,
    pub kernel_size: [i64; N],
    pub stride: [i64; N],
    pub padding: [i64; N],
    pub dilation: [i64; N],
    pub groups: i64,
    pub bias: bool,
}

/// What the dimensions do not have in common.
pub trait Convolve {
    const DOC: &'static str;

    /// # Errors
    /// What libtorch refuses.
    fn convolve(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError>;
}

pub(super) const IN_CHANNELS: Key<Integer> =
    size("in_channels").doc("Channels of the input, the first dimension of a sample.");
pub(super) const OUT_CHANNELS: Key<Integer> = size("out_channels").doc("Channels of the output.");
pub(super) const GROUPS: Key<Integer> = key("groups", integer(1..=MOST))
    .default("1")
    .doc("Groups of channels that do not mix; they divide in_channels and out_channels.");
pub(super) const PADDING_MODE: Refused =
    refused("padding_mode", "leave it out: padding is with zeros, as is PyTorch's default");

impl<const N: usize> Conv<N> {
    pub(super) const KERNEL_SIZE: Key<Sizes<N>> =
        key("kernel_size", sizes(1..=MOST)).example("3").doc("Size of the window.");
    pub(super) const STRIDE: Key<Sizes<N>> =
        key("stride", sizes(1..=MOST)).default("1").doc("How far the window moves.");
    pub(super) const DILATION: Key<Sizes<N>> =
        key("dilation", sizes(1..=MOST)).default("1").doc("Distance between neighbours under the window.");
    const PADDING: Key<PaddingValues<N>> = key("padding", PaddingValues)
        .default("0")
        .doc("Zeros around the sample; \"same\" keeps its size, \"valid\" is none.");
}

impl<const N: usize> Arguments for Conv<N>
where
    Conv<N>: Convolve,
{
    const DOC: &'static str = <Conv<N> as Convolve>::DOC;
    const KEYS: &'static [&'static dyn AnyKey] = &[
        &IN_CHANNELS,
        &OUT_CHANNELS,
        &Self::KERNEL_SIZE,
        &Self::STRIDE,
        &Self::PADDING,
        &Self::DILATION,
        &GROUPS,
        &BIAS,
        &PADDING_MODE,
    ];

    fn read(table: &Table<'_>) -> Option<Conv<N>> {
        let (in_channels, out_channels) = (table.read(&IN_CHANNELS), table.read(&OUT_CHANNELS));
        let (kernel_size, stride) = (table.read(&Self::KERNEL_SIZE), table.read(&Self::STRIDE));
        let (padding, dilation) = (table.read(&Self::PADDING), table.read(&Self::DILATION));
        let (groups, bias) = (table.read(&GROUPS), table.read(&BIAS));
        let (kernel_size, stride, dilation) = (kernel_size?, stride?, dilation?);
        let (in_channels, out_channels, groups) = (in_channels?, out_channels?, groups?);
        let padding = match padding? {
            Padding::Zeros(padding) => Some(padding),
            Padding::Same => same(table, kernel_size, stride, dilation),
        };
        groups_fit(table, groups, in_channels, out_channels)?;
        let (padding, bias) = (padding?, bias?);
        Some(Conv { in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias })
    }
}

/// Reports groups that do not divide both numbers of channels.
pub(super) fn groups_fit(table: &Table<'_>, groups: i64, ins: i64, outs: i64) -> Option<()> {
    if ins % groups == 0 && outs % groups == 0 {
        return Some(());
    }
    if let Some(item) = table.item(&GROUPS) {
        let problem = format!("does not divide both in_channels = {ins} and out_channels = {outs}");
        item.wrong(problem, divisors_hint(common_divisor(ins, outs)));
    }
    None
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Numbers, or one of PyTorch's words.
#[derive(Clone, Copy)]
struct PaddingValues<const N: usize>;

enum Padding<const N: usize> {
    Zeros([i64; N]),
    Same,
}

impl<const N: usize> Values for PaddingValues<N> {
    type Read = Padding<N>;

    fn read(&self, item: &Item<'_>) -> Option<Padding<N>> {
        match item.value() {
            Value::String(..) => Some(match item.choice(&[("valid", false), ("same", true)])? {
                true => Padding::Same,
                false => Padding::Zeros([0; N]),
            }),
            _ => item.sizes(0..=MOST).map(Padding::Zeros),
        }
    }

    fn kind(&self) -> Kind {
        Kind::Either(vec![sizes::<N>(0..=MOST).kind(), Kind::Words(vec!["valid", "same"])])
    }
}

fn same<const N: usize>(
    table: &Table<'_>,
    kernel: [i64; N],
    stride: [i64; N],
    dilation: [i64; N],
) -> Option<[i64; N]> {
    let total: [i64; N] = std::array::from_fn(|dim| dilation[dim] * (kernel[dim] - 1));
    let (problem, hint) = if stride != [1; N] {
        ("needs stride 1", "give the padding as a number")
    } else if total.iter().any(|total| total % 2 == 1) {
        ("would pad one side more than the other with an even kernel", "use an odd kernel_size")
    } else {
        return Some(total.map(|total| total / 2));
    };
    if let Some(item) = table.item(&Conv::<N>::PADDING) {
        item.wrong(problem, hint);
    }
    None
}

/// Refuses a sample that has not one dimension of channels and `N` others.
pub(super) fn expect_channels<const N: usize>(shape: &[i64], ins: i64) -> Result<(), Refusal> {
    if shape.len() == N + 1 {
        return Ok(());
    }
    let names = dimensions(N);
    let lacks_channels = shape.len() == N && ins == 1;
    let hint = if lacks_channels {
        let whole: Vec<i64> = [1].iter().chain(shape).copied().collect();
        format!("put {{ type = \"reshape\", shape = {whole:?} }} before it")
    } else {
        format!("bring the sample to [{ins}, {names}], for example with a reshape before it")
    };
    Err(Refusal::new(format!("[{ins}, {names}]"), hint))
}

/// `output`, or that another number of channels came.
pub(super) fn with_channels(came: i64, ins: i64, output: Vec<i64>) -> Output {
    if came == ins {
        return Ok(Signal::floats(output));
    }
    let expects = format!("{ins} channels (in_channels)");
    Err(Refusal::new(expects, format!("write in_channels = {came}")).otherwise(output))
}

impl<const N: usize> Op for Conv<N>
where
    Conv<N>: Convolve,
{
    fn parameters(&self) -> Vec<ParameterSpec> {
        let mut weight = vec![self.out_channels, self.in_channels / self.groups];
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
        expect_channels::<N>(shape, self.in_channels)?;
        let positions: [i64; N] = slide(shape, |dim| Window {
            kernel: self.kernel_size[dim],
            stride: self.stride[dim],
            padding: self.padding[dim],
            dilation: self.dilation[dim],
            ceil_mode: false,
        })?;
        let output = [self.out_channels].into_iter().chain(positions).collect();
        with_channels(shape[0], self.in_channels, output)
    }

    fn macs(&self, _input: &Signal, output: &Signal) -> u64 {
        at_each_position(numbers(&self.parameters()), output, true)
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
        Python::torch(format!("nn.Conv{N}d"))
            .with(self.in_channels)
            .with(self.out_channels)
            .with(self.kernel_size)
            .named("stride", self.stride, [1; N])
            .named("padding", self.padding, [0; N])
            .named("dilation", self.dilation, [1; N])
            .named("groups", self.groups, 1)
            .named("bias", self.bias, true)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        self.convolve(args.x, &args.params[0], args.params.get(1))
    }
}
