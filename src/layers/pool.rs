//! Pooling in any number of dimensions.

use super::shape::{Output, Refusal, Signal};
use super::window::{Window, dimensions, slide};
use crate::config::{Flag, Key, MOST, Optional, Sizes, Table, flag, key, sizes};

pub(super) const fn kernel_size<const N: usize>() -> Key<Sizes<N>> {
    key("kernel_size", sizes(1..=MOST)).example("2").doc("Size of the window.")
}

pub(super) const fn stride<const N: usize>() -> Key<Optional<Sizes<N>>> {
    key("stride", sizes(1..=MOST))
        .optional()
        .doc("How far the window moves; kernel_size where it is not said.")
}

pub(super) const fn padding<const N: usize>() -> Key<Sizes<N>> {
    key("padding", sizes(0..=MOST)).default("0").doc("Places around the sample, at most half of kernel_size.")
}

pub(super) const fn dilation<const N: usize>() -> Key<Sizes<N>> {
    key("dilation", sizes(1..=MOST)).default("1").doc("Distance between neighbours under the window.")
}

pub(super) const CEIL_MODE: Key<Flag> =
    key("ceil_mode", flag()).default("false").doc("Also a last window that the sample does not fill.");
pub(super) const COUNT_INCLUDE_PAD: Key<Flag> =
    key("count_include_pad", flag()).default("true").doc("Whether a mean counts the padding.");

/// PyTorch: at most half of the kernel.
pub(super) fn check_padding<const N: usize>(
    table: &Table<'_>,
    padding: [i64; N],
    kernel: [i64; N],
) -> Option<()> {
    let most = kernel.map(|size| size / 2);
    if padding.iter().zip(&most).all(|(padding, most)| padding <= most) {
        return Some(());
    }
    if let Some(item) = table.item(&self::padding::<N>()) {
        item.wrong(format!("is more than half of kernel_size = {kernel:?}"), format!("use at most {most:?}"));
    }
    None
}

/// What leaves a window over the last `N` dimensions. PyTorch takes samples without channels too: their batch looks to it
/// like channels, which pooling keeps apart just as well.
pub(super) fn output<const N: usize>(input: &Signal, window: impl Fn(usize) -> Window) -> Output {
    let shape = expect_image::<N>(input)?;
    let positions: [i64; N] = slide(shape, window)?;
    Ok(with_last(shape, positions))
}

/// Refuses a sample that has not `N` dimensions, with or without one of channels before them.
pub(super) fn expect_image<const N: usize>(input: &Signal) -> Result<&[i64], Refusal> {
    let shape = input.expect_floats()?;
    if shape.len() == N || shape.len() == N + 1 {
        return Ok(shape);
    }
    let hint = "bring the sample to that shape, for example with a reshape before it";
    Err(Refusal::new(format!("[channels, {}]", dimensions(N)), hint))
}

/// `shape` with other last dimensions.
pub(super) fn with_last<const N: usize>(shape: &[i64], last: [i64; N]) -> Signal {
    let mut output = shape.to_vec();
    let first = shape.len() - N;
    output[first..].copy_from_slice(&last);
    Signal::floats(output)
}
