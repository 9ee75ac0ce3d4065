use super::*;
use proptest::prelude::*;
use pstrain_plugin::testing;
use std::path::Path;

/// Made by tests/data/images.py, with what torchvision makes of them.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/images");
const IMAGES: [&str; 7] =
    ["gray.jpg", "gray.png", "palette.png", "photo.jpg", "progressive.jpg", "rgb.png", "rgba.png"];

fn expected(image: &str, way: &str) -> Vec<u8> {
    std::fs::read(format!("{DATA}/{image}.{way}")).unwrap()
}

/// Files with these bytes.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    folder
}

fn open(root: &Path, more: &str) -> Result<Images> {
    testing::open(&format!(r#"{{"folder": "{}"{more}}}"#, root.display()))
}

fn one(image: &str, more: &str) -> Vec<u8> {
    let bytes = std::fs::read(format!("{DATA}/{image}")).unwrap();
    let folder = folder(&[(&format!("a/{image}"), &bytes)]);
    testing::batch(&mut open(folder.path(), more).unwrap(), &[0]).unwrap().remove(0).bytes
}

/// JPEG decoders differ in how they round and smooth colours. PNG's pixels are exact; resampling has fewer bits than Pillow's.
fn close(image: &str, way: &str, found: &[u8]) {
    let expected = expected(image, way);
    assert_eq!(found.len(), expected.len(), "{image} {way}");
    let off = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
    let (most, sum) = off.fold((0, 0u64), |(most, sum), off| (most.max(off), sum + u64::from(off)));
    let mean = sum as f64 / expected.len() as f64;
    let (most_allowed, mean_allowed) = match (image.ends_with(".jpg"), way) {
        (false, "decoded") => (0, 0.0),
        (false, _) => (1, 0.3),
        (true, _) => (24, 1.0),
    };
    assert!(most <= most_allowed && mean <= mean_allowed, "{image} {way}: off by {most}, on average {mean}");
}

#[test]
fn pixels_are_pillows() {
    for image in IMAGES {
        let planes = one(image, "");
        let size = planes.len() / 3;
        let rows: Vec<u8> =
            (0..size).flat_map(|at| [planes[at], planes[size + at], planes[2 * size + at]]).collect();
        close(image, "decoded", &rows);
    }
}

#[test]
fn sizes_are_torchvisions() {
    for image in IMAGES {
        close(image, "resized", &one(image, r#", "resize": [24, 31]"#));
        close(image, "cropped", &one(image, r#", "resize": 20, "crop": [13, 16]"#));
    }
}

fn png(height: u32, width: u32, pixel: impl Fn(u32, u32) -> u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    let pixels: Vec<u8> = (0..height * width).map(|at| pixel(at / width, at % width)).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

#[test]
fn chance_is_a_function_of_seed_epoch_and_sample_and_rests_in_evaluation() {
    let image = png(8, 8, |y, x| (10 * y + x + 1) as u8);
    let names: Vec<String> = (0..20).map(|n| format!("a/{n:02}.png")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &image[..])).collect();
    let folder = folder(&files);
    let more = r#", "channels": 1, "crop": 6, "random_crop": true, "flip": true, "shift": 1"#;
    let all: Vec<u64> = (0..20).collect();
    // With the cache and without it, in another order and another batch.
    let mut cached = open(folder.path(), more).unwrap();
    let mut uncached = open(folder.path(), &format!(r#"{more}, "cache_mb": 0"#)).unwrap();
    let pixels = |images: &mut Images, indices: &[u64], seed, epoch| {
        let batch = testing::training_batch(images, indices, seed, epoch).unwrap().remove(0);
        batch.bytes.chunks(36).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let first = pixels(&mut cached, &all, 1, 0);
    assert_eq!(pixels(&mut cached, &all, 1, 0), first);
    assert_eq!(pixels(&mut uncached, &[7, 3], 1, 0), [first[7].clone(), first[3].clone()]);
    assert_ne!(pixels(&mut uncached, &all, 1, 1), first);
    assert_ne!(pixels(&mut uncached, &all, 2, 0), first);
    // All that can come: origins -1 to 3 in both directions, straight or mirrored.
    for crop in &first {
        let at = |y: usize, x: usize| i64::from(crop[6 * y + x]);
        let flipped = at(2, 2) > at(2, 3);
        let (y, x) = ((at(2, 2) - 1) / 10, (at(2, 2) - 1) % 10);
        let x0 = if flipped { x - 3 } else { x - 2 };
        let expected = |row: i64, column: i64| {
            let (y, x) = (y - 2 + row, x0 + if flipped { 5 - column } else { column });
            if (0..8).contains(&y) && (0..8).contains(&x) { 10 * y + x + 1 } else { 0 }
        };
        assert!((-1..=3).contains(&x0) && (-1..=3).contains(&(y - 2)));
        let same = |n: i64| i64::from(crop[n as usize]) == expected(n / 6, n % 6);
        assert!((0..36).all(same), "{crop:?}");
    }
    let distinct: std::collections::HashSet<&Vec<u8>> = first.iter().collect();
    assert!(distinct.len() > 10, "{} of 20 crops are different", distinct.len());
    let centre = testing::batch(&mut cached, &[5]).unwrap();
    assert_eq!(centre[0].bytes[..2], [12, 13]);
    assert_eq!(centre[1].values::<i64>(), [0]);
}

#[test]
fn files_that_are_no_images_are_named_with_what_to_do() {
    let good = png(4, 6, |_, _| 0);
    let error = |files: &[(&str, &[u8])], more: &str| {
        let folder = folder(files);
        let told = open(folder.path(), more).and_then(|mut images| {
            let all: Vec<u64> = (0..images.len()).collect();
            testing::batch(&mut images, &all).map(drop)
        });
        format!("{:#}", told.unwrap_err()).replace(&folder.path().display().to_string(), "root")
    };
    assert_eq!(
        error(&[("a/1.png", b"GIF89a")], ""),
        "`root/a/1.png`: it is neither PNG nor JPEG: it begins with [47, 49, 46, 38]"
    );
    assert!(
        error(&[("a/1.png", &good), ("a/2.png", &good[..30])], "")
            .starts_with("`root/a/2.png`: its PNG is broken: ")
    );
    assert!(
        error(&[("a/1.jpg", &[0xff, 0xd8, 0xff, 0])], "").starts_with("`root/a/1.jpg`: its JPEG is broken: ")
    );
    assert_eq!(
        error(&[("a/1.png", &good), ("a/2.png", &png(5, 6, |_, _| 0))], ""),
        "`root/a/2.png`: it has 5 x 6 pixels, and 4 x 6 are wanted\nhint: `resize` or `crop` bring all images to one size"
    );
    assert_eq!(
        error(&[("a/1.png", &good)], r#", "crop": 5"#),
        "`root/a/1.png`: it has 4 x 6 pixels, and 5 x 5 are wanted\n\
         hint: `resize` brings images to a size from which `crop` can be cut"
    );
    assert_eq!(error(&[("a/1.png", &good)], r#", "random_crop": true"#), "`random_crop` needs `crop`");
    assert_eq!(error(&[("a/1.png", &good)], r#", "resize": [0, 1]"#), "`resize`: sizes are 1 to 16384");
    // A header that promises more pixels than there is memory.
    let mut huge = good.clone();
    huge[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    assert!(error(&[("a/1.png", &huge)], "").starts_with("`root/a/1.png`: "));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes are, they are decoded or refused: those of good files with some that are wrong, or cut.
    #[test]
    fn any_bytes_are_decoded_or_refused(
        image in prop::sample::select(&IMAGES[..]),
        spoilt in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(format!("{DATA}/{image}")).unwrap();
        for (at, byte) in spoilt {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match decode::decode(&bytes, 3) {
            Ok(pixels) => prop_assert_eq!(pixels.bytes.len(), 3 * pixels.height * pixels.width),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
