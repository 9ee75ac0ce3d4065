//! Layers with a window that slides over the sample: convolutions and pools.

use figment::value::Value;

use super::{divisors_hint, flag, need_size};
use crate::config::{Item, MOST, Table};
use crate::job::layer::{Conv, LayerOp};

pub(super) fn conv<const N: usize>(t: &Table<'_>) -> Option<Conv<N>> {
    let (in_channels, out_channels) = (need_size(t, "in_channels"), need_size(t, "out_channels"));
    let kernel_size = t.need("kernel_size", "3", |item| item.sizes(1..=MOST));
    let stride = t.or("stride", [1; N], |item| item.sizes(1..=MOST));
    let dilation = t.or("dilation", [1; N], |item| item.sizes(1..=MOST));
    let padding = t.get("padding").map_or(Some([0; N]), |item| match item.value() {
        Value::String(..) => named_padding(&item, kernel_size?, stride, dilation),
        _ => item.sizes(0..=MOST),
    });
    let groups = t.or("groups", 1, |item| {
        let groups = item.integer(1..=MOST)?;
        let (ins, outs) = (in_channels?, out_channels?);
        if ins % groups == 0 && outs % groups == 0 {
            return Some(groups);
        }
        let problem = format!("does not divide both in_channels = {ins} and out_channels = {outs}");
        item.wrong(problem, divisors_hint(common_divisor(ins, outs)));
        None
    });
    let bias = flag(t, "bias", true);
    t.refuse("padding_mode", "leave it out: padding is with zeros, as is PyTorch's default");
    Some(Conv {
        in_channels: in_channels?,
        out_channels: out_channels?,
        kernel_size: kernel_size?,
        stride,
        padding: padding?,
        dilation,
        groups,
        bias,
    })
}

/// PyTorch's "valid" and "same".
fn named_padding<const N: usize>(
    item: &Item<'_>,
    kernel: [i64; N],
    stride: [i64; N],
    dilation: [i64; N],
) -> Option<[i64; N]> {
    if item.choice(&[("valid", false), ("same", true)])? {
        if stride != [1; N] {
            item.wrong("needs stride 1", "give the padding as a number");
            return None;
        }
        let total: [i64; N] = std::array::from_fn(|dim| dilation[dim] * (kernel[dim] - 1));
        if total.iter().any(|total| total % 2 == 1) {
            item.wrong(
                "would pad one side more than the other with an even kernel",
                "use an odd kernel_size",
            );
            return None;
        }
        return Some(total.map(|total| total / 2));
    }
    Some([0; N])
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

pub(super) fn max_pool(t: &Table<'_>) -> Option<LayerOp> {
    let kernel_size = t.need("kernel_size", "2", |item| item.sizes(1..=MOST));
    let stride = t.or("stride", kernel_size.unwrap_or([1; 2]), |item| item.sizes(1..=MOST));
    let padding = t.or("padding", [0; 2], |item| pool_padding(item, kernel_size));
    let dilation = t.or("dilation", [1; 2], |item| item.sizes(1..=MOST));
    let ceil_mode = flag(t, "ceil_mode", false);
    t.refuse("return_indices", "leave it out: a list of layers passes one tensor on");
    Some(LayerOp::MaxPool2d { kernel_size: kernel_size?, stride, padding, dilation, ceil_mode })
}

pub(super) fn avg_pool(t: &Table<'_>) -> Option<LayerOp> {
    let kernel_size = t.need("kernel_size", "2", |item| item.sizes(1..=MOST));
    let stride = t.or("stride", kernel_size.unwrap_or([1; 2]), |item| item.sizes(1..=MOST));
    let padding = t.or("padding", [0; 2], |item| pool_padding(item, kernel_size));
    let ceil_mode = flag(t, "ceil_mode", false);
    let count_include_pad = flag(t, "count_include_pad", true);
    t.refuse("divisor_override", "leave it out: the divisor is the size of the window");
    Some(LayerOp::AvgPool2d { kernel_size: kernel_size?, stride, padding, ceil_mode, count_include_pad })
}

/// PyTorch: at most half of the kernel.
fn pool_padding(item: &Item<'_>, kernel: Option<[i64; 2]>) -> Option<[i64; 2]> {
    let (padding, kernel) = (item.sizes(0..=MOST)?, kernel?);
    if (0..2).all(|dim| padding[dim] <= kernel[dim] / 2) {
        return Some(padding);
    }
    let most = kernel.map(|size| size / 2);
    item.wrong(format!("is more than half of kernel_size = {kernel:?}"), format!("use at most {most:?}"));
    None
}
