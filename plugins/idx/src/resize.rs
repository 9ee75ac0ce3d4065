//! Images of one size to another, as PyTorch's `interpolate` does it (without `align_corners` or antialiasing).

use pstrain_plugin::{Result, ensure};
use serde::Deserialize;

const LARGEST: usize = 16384;

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    Nearest,
    #[default]
    Bilinear,
}

/// From uint8 [height, width] to another height and width.
#[derive(Debug)]
pub struct Resize {
    rows: Vec<Tap>,
    columns: Vec<Tap>,
    source: Vec<u8>,
    width: usize,
}

/// Where a target position lies between two source positions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tap {
    low: usize,
    high: usize,
    /// The part of `high`, 0 to 1.
    weight: f32,
}

impl Resize {
    /// # Errors
    /// If a size is none or too large.
    pub fn new(from: [usize; 2], to: [usize; 2], filter: Filter) -> Result<Self> {
        let fits = |size| (1..=LARGEST).contains(&size);
        ensure!(
            to.into_iter().all(fits),
            "`resize` = {to:?}: both sizes must be at least 1 and at most {LARGEST}"
        );
        ensure!(from.into_iter().all(|size| size > 0), "images of {from:?} cannot be resized");
        let source = vec![0; from[0] * from[1]];
        Ok(Resize {
            rows: taps(from[0], to[0], filter),
            columns: taps(from[1], to[1], filter),
            source,
            width: from[1],
        })
    }

    /// Height and width of the result.
    pub fn to(&self) -> [usize; 2] {
        [self.rows.len(), self.columns.len()]
    }

    /// Where the image goes before [`Resize::apply`].
    pub fn source(&mut self) -> &mut [u8] {
        &mut self.source
    }

    /// Writes the resized image.
    pub fn apply(&self, to: &mut [u8]) {
        for (row, line) in self.rows.iter().zip(to.chunks_exact_mut(self.columns.len())) {
            let upper = &self.source[row.low * self.width..][..self.width];
            let lower = &self.source[row.high * self.width..][..self.width];
            for (column, pixel) in self.columns.iter().zip(line) {
                let above = between(upper[column.low], upper[column.high], column.weight);
                let below = between(lower[column.low], lower[column.high], column.weight);
                // Never negative, so that adding a half and cutting is rounding.
                *pixel = (above + (below - above) * row.weight + 0.5) as u8;
            }
        }
    }
}

fn between(low: u8, high: u8, weight: f32) -> f32 {
    f32::from(low) + (f32::from(high) - f32::from(low)) * weight
}

fn taps(from: usize, to: usize, filter: Filter) -> Vec<Tap> {
    let scale = from as f32 / to as f32;
    let tap = |position: usize| match filter {
        Filter::Nearest => {
            let low = ((position as f32 * scale) as usize).min(from - 1);
            Tap { low, high: low, weight: 0.0 }
        }
        Filter::Bilinear => {
            let at = ((position as f32 + 0.5) * scale - 0.5).max(0.0);
            let low = (at as usize).min(from - 1);
            Tap { low, high: (low + 1).min(from - 1), weight: at - low as f32 }
        }
    };
    (0..to).map(tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(from: [usize; 2], pixels: &[u8], to: [usize; 2], filter: Filter) -> Vec<u8> {
        let mut resize = Resize::new(from, to, filter).unwrap();
        resize.source().copy_from_slice(pixels);
        let mut out = vec![0; to[0] * to[1]];
        resize.apply(&mut out);
        out
    }

    // torch.nn.functional.interpolate(torch.tensor([[[[0., 100.], [50., 200.]]]]), size=(3, 4), mode=..., align_corners=False)
    // .round() for bilinear: [[0, 25, 75, 100], [25, 56, 119, 150], [50, 88, 162, 200]] (87.5 and 162.5 round up here)
    #[test]
    fn bilinear_gives_pytorchs_numbers() {
        assert_eq!(
            resized([2, 2], &[0, 100, 50, 200], [3, 4], Filter::Bilinear),
            [0, 25, 75, 100, 25, 56, 119, 150, 50, 88, 163, 200]
        );
    }

    #[test]
    fn nearest_picks_pixels() {
        assert_eq!(resized([1, 4], &[1, 2, 3, 4], [1, 2], Filter::Nearest), [1, 3]);
        assert_eq!(resized([1, 2], &[1, 2], [1, 5], Filter::Nearest), [1, 1, 1, 2, 2]);
    }

    #[test]
    fn the_same_size_leaves_an_image_as_it_is() {
        let pixels: Vec<u8> = (0..12).collect();
        assert_eq!(resized([3, 4], &pixels, [3, 4], Filter::Bilinear), pixels);
        assert_eq!(resized([3, 4], &pixels, [3, 4], Filter::Nearest), pixels);
    }
}
