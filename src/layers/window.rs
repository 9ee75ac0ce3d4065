//! The arithmetic of a window that slides over one dimension. Source: `ATen/native/Pool.h`
//! (`pooling_output_shape`) and `ConvUtils.h` (`conv_output_size`) of libtorch 2.11.

use super::shape::Refusal;

/// How a window slides.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub kernel: i64,
    pub stride: i64,
    /// On each side.
    pub padding: i64,
    pub dilation: i64,
    /// A last window that does not fill also counts, if it starts inside the input or its left padding.
    pub ceil_mode: bool,
}

impl Window {
    /// From the first to the last element under the window.
    pub fn span(&self) -> i64 {
        self.dilation * (self.kernel - 1) + 1
    }

    /// Positions of the window over `size` elements; None if it does not fit even once.
    pub fn positions(&self, size: i64) -> Option<i64> {
        let room = size + 2 * self.padding - self.span();
        let extra = if self.ceil_mode { self.stride - 1 } else { 0 };
        // Division rounds down, as ATen's div_rtn does, where Rust's rounds towards zero.
        let mut positions = (room + extra).div_euclid(self.stride) + 1;
        if self.ceil_mode && (positions - 1) * self.stride >= size + self.padding {
            positions -= 1;
        }
        (positions >= 1).then_some(positions)
    }
}

/// "length", "height, width", "depth, height, width": the dimensions that a window of so many slides over.
pub(super) fn dimensions(dims: usize) -> String {
    let names: Vec<&str> = (0..dims).map(|dim| dimension(dims, dim)).collect();
    names.join(", ")
}

fn dimension(dims: usize, dim: usize) -> &'static str {
    const NAMES: [&str; 3] = ["depth", "height", "width"];
    match dims {
        1 => "length",
        dims => NAMES[3 - dims + dim],
    }
}

/// What a window over the last `N` dimensions of `shape` leaves of them.
///
/// # Errors
/// It does not fit even once.
pub(super) fn slide<const N: usize>(
    shape: &[i64],
    window: impl Fn(usize) -> Window,
) -> Result<[i64; N], Refusal> {
    let mut positions = [0; N];
    for (dim, (positions, size)) in positions.iter_mut().zip(&shape[shape.len() - N..]).enumerate() {
        let window = window(dim);
        *positions = window.positions(*size).ok_or_else(|| too_small(&window, dim, N))?;
    }
    Ok(positions)
}

fn too_small(window: &Window, dim: usize, dims: usize) -> Refusal {
    let least = window.span() - 2 * window.padding;
    let name = dimension(dims, dim);
    let expects = format!("a {name} of at least {least} for its kernel of {}", window.kernel);
    Refusal::new(
        expects,
        "use a smaller kernel_size, more padding, or fewer layers that shrink the sample before it",
    )
}
