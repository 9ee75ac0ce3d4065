//! From the bytes of a PNG or JPEG file to pixels.

use pstrain_plugin::{Result, anyhow, bail, ensure};
use std::io::Cursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// 64 million: what an image takes in memory is three bytes a pixel.
const MOST_PIXELS: u64 = 1 << 26;
/// The most that the PNG format's own chunks may take.
const PNG_BYTES: usize = 64 << 20;

/// Pixels of 8 bits, row by row, with their channels (1 or 3) side by side.
#[derive(Debug, Default)]
pub struct Pixels {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub bytes: Vec<u8>,
}

/// `channels`: 1 or 3. As Pillow has it: more than 8 bits lose the lower ones, transparency is left out.
///
/// # Errors
/// If the bytes are neither, or broken; without the file's name.
pub fn decode(file: &[u8], channels: usize) -> Result<Pixels> {
    let pixels = match file {
        [0x89, b'P', b'N', b'G', ..] => png(file)?,
        [0xff, 0xd8, ..] => jpeg(file)?,
        _ => bail!("it is neither PNG nor JPEG: it begins with {:02x?}", &file[..file.len().min(4)]),
    };
    Ok(with_channels(pixels, channels))
}

fn fits(width: usize, height: usize) -> Result<()> {
    ensure!(
        width > 0 && height > 0 && width as u64 * height as u64 <= MOST_PIXELS,
        "it has {width} x {height} pixels; 1 to {MOST_PIXELS} are possible"
    );
    Ok(())
}

fn jpeg(file: &[u8]) -> Result<Pixels> {
    let broken = |error| anyhow!("its JPEG is broken: {error:?}");
    let options =
        DecoderOptions::default().set_max_width(1 << 16).set_max_height(1 << 16).set_strict_mode(false);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(file), options);
    decoder.decode_headers().map_err(broken)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| anyhow!("its JPEG has no size"))?;
    fits(width, height)?;
    let gray = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (space, channels) = if gray { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    decoder.set_options(options.jpeg_set_out_colorspace(space));
    let mut bytes = vec![0; width * height * channels];
    decoder.decode_into(&mut bytes).map_err(broken)?;
    Ok(Pixels { height, width, channels, bytes })
}

fn png(file: &[u8]) -> Result<Pixels> {
    let broken = |error: png::DecodingError| anyhow!("its PNG is broken: {error}");
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), png::Limits { bytes: PNG_BYTES });
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    let mut reader = decoder.read_info().map_err(broken)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    fits(width, height)?;
    let channels = reader.output_color_type().0.samples();
    let mut bytes = vec![0; width * height * channels];
    reader.next_frame(&mut bytes).map_err(broken)?;
    let kept = if channels < 3 { 1 } else { 3 };
    if channels != kept {
        // The last one is transparency.
        let mut at = 0;
        bytes.retain(|_| {
            at += 1;
            at % channels != 0
        });
    }
    Ok(Pixels { height, width, channels: kept, bytes })
}

fn with_channels(pixels: Pixels, channels: usize) -> Pixels {
    let bytes = match (pixels.channels, channels) {
        (1, 3) => pixels.bytes.iter().flat_map(|&gray| [gray; 3]).collect(),
        // ITU-R 601-2, as Pillow's `convert("L")` rounds it.
        (3, 1) => {
            let gray = |rgb: &[u8]| {
                (u32::from(rgb[0]) * 19595 + u32::from(rgb[1]) * 38470 + u32::from(rgb[2]) * 7471 + 0x8000)
                    >> 16
            };
            pixels.bytes.chunks_exact(3).map(|rgb| gray(rgb) as u8).collect()
        }
        _ => return pixels,
    };
    Pixels { channels, bytes, ..pixels }
}
