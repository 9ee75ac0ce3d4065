//! The arithmetic of a window that slides over one dimension. Source: `ATen/native/Pool.h`
//! (`pooling_output_shape`) and `ConvUtils.h` (`conv_output_size`) of libtorch 2.11.

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
