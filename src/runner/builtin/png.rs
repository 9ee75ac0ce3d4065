//! The built-in digits as PNG files in a folder for each class.

use std::io::{self, Read as _, Write as _};

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// The images of an IDX file in gzip, with the labels of another one, as `SPLIT/CLASS/NUMBER.png`.
///
/// # Errors
/// They are no IDX files of so many gray images and labels.
pub fn images(split: &str, images: &[u8], labels: &[u8]) -> io::Result<Vec<(String, Vec<u8>)>> {
    let (images, labels) = (unpacked(images)?, unpacked(labels)?);
    let cut = || io::Error::new(io::ErrorKind::InvalidData, "the built-in digits are cut short");
    let dimension = |at: usize| -> io::Result<usize> {
        let bytes =
            images.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).ok_or_else(cut)?;
        Ok(u32::from_be_bytes(bytes) as usize)
    };
    let (height, width) = (dimension(8)?, dimension(12)?);
    let (pixels, labels) = (images.get(16..).ok_or_else(cut)?, labels.get(8..).ok_or_else(cut)?);
    if height * width == 0 || pixels.len() != labels.len() * height * width {
        return Err(cut());
    }
    let numbered = pixels.chunks_exact(height * width).zip(labels).enumerate();
    numbered
        .map(|(number, (pixels, label))| {
            Ok((format!("{split}/{label}/{number:04}.png"), gray(pixels, width)?))
        })
        .collect()
}

fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A PNG file of 8 bits for each pixel (W3C, "Portable Network Graphics", chapters 5 and 11).
fn gray(pixels: &[u8], width: usize) -> io::Result<Vec<u8>> {
    let mut header = Vec::new();
    header.extend((width as u32).to_be_bytes());
    header.extend((pixels.len().checked_div(width).unwrap_or(0) as u32).to_be_bytes());
    // Bits, gray, and the only methods that there are; not interlaced.
    header.extend([8, 0, 0, 0, 0]);
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    for row in pixels.chunks_exact(width) {
        // No filter.
        packed.write_all(&[0])?;
        packed.write_all(row)?;
    }
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", &header), (b"IDAT", &packed.finish()?), (b"IEND", &Vec::new())] {
        file.extend((data.len() as u32).to_be_bytes());
        file.extend(kind);
        file.extend(data);
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(data);
        file.extend(crc.sum().to_be_bytes());
    }
    Ok(file)
}
