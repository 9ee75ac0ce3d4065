//! What is done to an image: resized, cut, shifted and mirrored, with torchvision's numbers.

use crate::decode::Pixels;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use pstrain_plugin::{Random, Result, anyhow, bail, ensure};
use serde::Deserialize;

const LARGEST: usize = 16384;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "wanted a size, or height and width")]
pub enum Size {
    One(usize),
    Both([usize; 2]),
}

/// One channel after the other, each row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planes {
    pub height: usize,
    pub width: usize,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Transform {
    /// The length of the shorter side, or height and width.
    pub resize: Option<Size>,
    pub crop: Option<Size>,
    pub random_crop: bool,
    pub flip: bool,
    /// By so many pixels at most, with black where nothing is.
    pub shift: usize,
}

impl Transform {
    /// # Errors
    /// If a size is none or too large.
    pub fn check(&self) -> Result<()> {
        let fits = |size: &usize| (1..=LARGEST).contains(size);
        for (key, size) in [("resize", self.resize), ("crop", self.crop)] {
            let good = match size {
                None => true,
                Some(Size::One(size)) => fits(&size),
                Some(Size::Both(sizes)) => sizes.iter().all(fits),
            };
            ensure!(good, "`{key}`: sizes are 1 to {LARGEST}");
        }
        ensure!(self.shift <= LARGEST, "`shift` = {} is more than {LARGEST}", self.shift);
        ensure!(!self.random_crop || self.crop.is_some(), "`random_crop` needs `crop`");
        Ok(())
    }

    /// Height and width of what comes out, if all images have the same.
    pub fn size(&self) -> Option<[usize; 2]> {
        match (self.crop, self.resize) {
            (Some(Size::One(size)), _) => Some([size; 2]),
            (Some(Size::Both(sizes)), _) | (None, Some(Size::Both(sizes))) => Some(sizes),
            (None, _) => None,
        }
    }

    /// What does not depend on chance: resizing.
    ///
    /// # Errors
    /// If the size that comes of it is too large.
    pub fn prepare(&self, pixels: Pixels, resizer: &mut Resizer) -> Result<Planes> {
        let to = match self.resize {
            None => [pixels.height, pixels.width],
            Some(Size::Both(sizes)) => sizes,
            // torchvision's `Resize(size)`: the longer side is cut to a whole number.
            Some(Size::One(size)) if pixels.height <= pixels.width => {
                [size, size * pixels.width / pixels.height]
            }
            Some(Size::One(size)) => [size * pixels.height / pixels.width, size],
        };
        if to.iter().any(|size| *size > LARGEST) {
            bail!("it would be resized to {} x {}: sizes are 1 to {LARGEST}", to[0], to[1]);
        }
        let pixels = match pixels.channels {
            _ if to == [pixels.height, pixels.width] => pixels,
            1 => resized::<U8>(&pixels, to, resizer)?,
            _ => resized::<U8x3>(&pixels, to, resizer)?,
        };
        let Pixels { height, width, channels, bytes } = pixels;
        if channels == 1 {
            return Ok(Planes { height, width, bytes });
        }
        let mut planes = vec![0; bytes.len()];
        let size = height * width;
        let (red, rest) = planes.split_at_mut(size);
        let (green, blue) = rest.split_at_mut(size);
        for (((rgb, red), green), blue) in bytes.chunks_exact(3).zip(red).zip(green).zip(blue) {
            (*red, *green, *blue) = (rgb[0], rgb[1], rgb[2]);
        }
        Ok(Planes { height, width, bytes: planes })
    }

    /// The rest, by chance if there is any: writes an image of `size`.
    ///
    /// # Errors
    /// If the image is too small.
    pub fn apply(
        &self,
        planes: &Planes,
        size: [usize; 2],
        chance: Option<Random>,
        to: &mut [u8],
    ) -> Result<()> {
        let has = [planes.height, planes.width];
        let hint = match (self.crop, self.resize) {
            (Some(_), None) => "`resize` brings images to a size from which `crop` can be cut",
            (Some(_), Some(_)) => "`resize` to a larger size, or `crop` a smaller one",
            _ => "`resize` or `crop` bring all images to one size",
        };
        let fits = if self.crop.is_some() { has[0] >= size[0] && has[1] >= size[1] } else { has == size };
        ensure!(
            fits,
            "it has {} x {} pixels, and {} x {} are wanted\nhint: {hint}",
            has[0],
            has[1],
            size[0],
            size[1]
        );
        let room = [has[0] - size[0], has[1] - size[1]];
        let mut origin = room.map(|room| centre(room) as i64);
        let mut flipped = false;
        if let Some(mut random) = chance {
            if self.random_crop {
                origin = room.map(|room| random.below(room as u64 + 1) as i64);
            }
            if self.shift > 0 {
                let shift = self.shift as i64;
                origin = origin.map(|at| at + random.below(2 * shift as u64 + 1) as i64 - shift);
            }
            flipped = self.flip && random.below(2) == 1;
        }
        let planes_of =
            planes.bytes.chunks_exact(has[0] * has[1]).zip(to.chunks_exact_mut(size[0] * size[1]));
        for (from, to) in planes_of {
            for (y, row) in to.chunks_exact_mut(size[1]).enumerate() {
                match usize::try_from(origin[0] + y as i64).ok().filter(|&y| y < has[0]) {
                    Some(y) => copy_row(&from[y * has[1]..][..has[1]], origin[1], row),
                    None => row.fill(0),
                }
                if flipped {
                    row.reverse();
                }
            }
        }
        Ok(())
    }
}

/// A row from `start` on, black where the image is not.
fn copy_row(from: &[u8], start: i64, to: &mut [u8]) {
    let first = usize::try_from(-start).unwrap_or(0).min(to.len());
    let begin = usize::try_from(start).unwrap_or(0).min(from.len());
    let count = (from.len() - begin).min(to.len() - first);
    to[..first].fill(0);
    to[first..first + count].copy_from_slice(&from[begin..begin + count]);
    to[first + count..].fill(0);
}

/// torchvision's `CenterCrop` takes Python's `round`, which takes halves to the even neighbour.
fn centre(room: usize) -> usize {
    let half = room / 2;
    half + usize::from(room % 2 == 1 && half % 2 == 1)
}

/// Pillow's resampling with its triangle filter: torchvision's `Resize`.
fn resized<P: PixelTrait + Default>(from: &Pixels, to: [usize; 2], resizer: &mut Resizer) -> Result<Pixels> {
    let wrong = |error: &dyn std::fmt::Display| anyhow!("it cannot be resized: {error}");
    let [height, width] = to;
    let source = TypedImageRef::<P>::from_buffer(from.width as u32, from.height as u32, &from.bytes);
    let source = source.map_err(|error| wrong(&error))?;
    let mut bytes = vec![0; height * width * from.channels];
    let mut target = TypedImage::<P>::from_buffer(width as u32, height as u32, &mut bytes)
        .map_err(|error| wrong(&error))?;
    let options =
        ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).use_alpha(false);
    resizer.resize_typed(&source, &mut target, &options).map_err(|error| wrong(&error))?;
    Ok(Pixels { height, width, channels: from.channels, bytes })
}
