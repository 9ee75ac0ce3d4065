//! Datasets on real files. What they do with wrong ones is tested beside them, in `plugins/`.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::{EVALUATION, dataset, dataset_error};

fn digits() -> Value {
    json!({"images": "train-images-idx3-ubyte", "labels": "train-labels-idx1-ubyte"})
}

/// Four images of 2 x 3, image n all of n * 10, label n; the images compressed.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 3];
    images.extend((0..4u8).flat_map(|n| [n * 10; 6]));
    let mut gzip = flate2::GzBuilder::new().read(&images[..], flate2::Compression::default());
    let mut packed = Vec::new();
    std::io::Read::read_to_end(&mut gzip, &mut packed).unwrap();
    std::fs::write(folder.path().join("train-images-idx3-ubyte.gz"), packed).unwrap();
    let labels = [0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 2, 3];
    std::fs::write(folder.path().join("train-labels-idx1-ubyte"), labels).unwrap();
    folder
}

#[test]
fn idx_gives_images_and_labels_of_plain_and_compressed_files() {
    let folder = folder();
    let mut idx = dataset("idx", &digits(), folder.path());
    let fields: Vec<_> =
        idx.info().fields.iter().map(|f| (f.name.as_str(), f.dtype, f.shape.clone())).collect();
    assert_eq!(fields, [("images", Kind::Uint8, vec![2, 3]), ("labels", Kind::Int64, vec![])]);
    assert_eq!(idx.info().samples, 4);
    let batch = idx.batch(&[3, 1, 1], EVALUATION).unwrap();
    assert_eq!(batch[0].size(), [3, 2, 3]);
    assert_eq!(
        Vec::<i64>::try_from(batch[0].select(1, 0).select(1, 0).to_kind(Kind::Int64)).unwrap(),
        [30, 10, 10]
    );
    assert_eq!(Vec::<i64>::try_from(&batch[1]).unwrap(), [3, 1, 1]);
}

#[test]
fn idx_resizes_as_pytorch_does() {
    let folder = folder();
    let mut image = vec![0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28];
    let pixels: Vec<u8> = (0..784).map(|n: u32| (n * n * 31 % 251) as u8).collect();
    image.extend(&pixels);
    std::fs::write(folder.path().join("one"), image).unwrap();
    for (filter, to) in
        [("bilinear", [32, 20]), ("bilinear", [7, 56]), ("nearest", [32, 20]), ("nearest", [13, 57])]
    {
        let config = json!({"images": "one", "resize": to, "resize_filter": filter});
        let found = dataset("idx", &config, folder.path()).batch(&[0], EVALUATION).unwrap().remove(0);
        let image = Tensor::from_slice(&pixels).to_kind(Kind::Float).reshape([1, 1, 28, 28]);
        let expected = if filter == "nearest" {
            image.upsample_nearest2d(to, None, None)
        } else {
            (image.upsample_bilinear2d(to, false, None, None) + 0.5).floor()
        };
        let off = (expected.reshape([1, to[0], to[1]]) - found.to_kind(Kind::Float)).abs();
        // Halves may fall to either side.
        assert!(
            off.max().double_value(&[]) <= 1.0 && off.mean(Kind::Float).double_value(&[]) < 0.01,
            "{filter}"
        );
    }
}

#[test]
fn mnist_fits_well_into_the_default_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut images = vec![0, 0, 8, 3, 0, 0, 0xea, 0x60, 0, 0, 0, 28, 0, 0, 0, 28];
    images.resize(16 + 60_000 * 784, 7);
    std::fs::write(folder.path().join("images"), images).unwrap();
    let mut idx = dataset("idx", &json!({"images": "images"}), folder.path());
    idx.batch(&(0..512).collect::<Vec<_>>(), EVALUATION).unwrap();
    assert!(idx.memory_bytes() < 64 << 20, "{}", idx.memory_bytes());
}

#[test]
fn csv_and_synthetic_give_what_a_linear_model_wants() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), "a,b,y\n1,2,3\n4,5,6\n").unwrap();
    let mut csv = dataset("csv", &json!({"file": "t.csv", "target": "y"}), folder.path());
    let batch = csv.batch(&[1, 0], EVALUATION).unwrap();
    assert_eq!(Vec::<f32>::try_from(batch[0].reshape([-1])).unwrap(), [4.0, 5.0, 1.0, 2.0]);
    assert_eq!(Vec::<f32>::try_from(&batch[1]).unwrap(), [6.0, 3.0]);

    let config = json!({"kind": "classification", "samples": 50, "shape": [3], "classes": 4});
    let mut synthetic = dataset("synthetic", &config, Path::new("."));
    let batch = synthetic.batch(&[49, 0], EVALUATION).unwrap();
    assert_eq!((batch[0].size(), batch[0].kind()), (vec![2, 3], Kind::Float));
    assert_eq!((batch[1].size(), batch[1].kind()), (vec![2], Kind::Int64));
}

#[test]
fn bags_are_what_an_embedding_bag_takes() {
    let mut bags = dataset("bags", &json!({"samples": 160, "rows": 100, "bags": 8}), Path::new("."));
    let batch = bags.batch(&[8, 9, 10, 11, 12, 13, 14, 15], EVALUATION).unwrap();
    assert_eq!((batch[0].size(), batch[0].kind()), (vec![8, 10], Kind::Int64));
    assert_eq!((batch[1].size(), batch[1].kind()), (vec![8], Kind::Int64));
    let indices = batch[0].ge(0).sum(Kind::Int64).int64_value(&[]);
    assert!((20..=50).contains(&indices), "{indices}");
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let folder = folder();
    let root = folder.path();
    let error = |name: &str, config: Value| dataset_error(name, &config, root);
    assert_snapshot!(error("idx", json!({"images": "t10k-images-idx3-ubyte"})), @r"
    plug-in `idx`: `open` failed: the data folder has no file `t10k-images-idx3-ubyte` or `t10k-images-idx3-ubyte.gz`; it has `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte`
      hint: `pstrain data fetch mnist` gets it; or set `data.root` to the folder that has it
    ");
    assert_snapshot!(error("idx", json!({"images": "/etc/passwd"})), @r"
    plug-in `idx`: `open` reached for what it may not: the data folder has no file `/etc/passwd` or `/etc/passwd.gz`
      hint: a plug-in sees `ROOT` (`data.root`), read-only, and nothing else; name files relative to it
    ");
    assert_snapshot!(error("idx", json!({"images": "../secret"})), @r"
    plug-in `idx`: `open` reached for what it may not: cannot read `../secret`: Operation not permitted (os error 63)
      hint: a plug-in sees `ROOT` (`data.root`), read-only, and nothing else; name files relative to it
    ");
    assert_snapshot!(error("idx", json!({})), @r"plug-in `idx`: `open` failed: missing key `images`");
    assert_snapshot!(error("csv", json!({"file": "houses.csv"})), @r"
    plug-in `csv`: `open` failed: the data folder has no file `houses.csv`; it has `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte`
      hint: files are looked for in `ROOT` (`data.root`)
    ");
    assert_snapshot!(error("synthetic", json!({"kind": "images", "samples": 10, "shape": [8], "clases": 3})), @r"plug-in `synthetic`: `open` failed: unknown key `clases`, expected one of `kind`, `samples`, `shape`, `classes`, `targets`, `noise`, `seed`, `offset`");
}

#[test]
fn a_file_larger_than_the_memory_limit_is_refused_with_the_key_that_raises_it() {
    let folder = tempfile::tempdir().unwrap();
    // A compressed file must be held whole: 800 MB of zeros, which are nearly nothing when packed.
    let header: &[u8] = &[0, 0, 8, 2, 0, 0, 3, 32, 0, 15, 66, 64];
    let zeros = std::io::Read::take(std::io::repeat(0), 1_000_000);
    let bytes = std::io::Read::chain(header, zeros);
    let mut gzip = flate2::GzBuilder::new().read(bytes, flate2::Compression::fast());
    let mut packed = Vec::new();
    std::io::Read::read_to_end(&mut gzip, &mut packed).unwrap();
    std::fs::write(folder.path().join("large.gz"), packed).unwrap();
    assert_snapshot!(dataset_error("idx", &json!({"images": "large"}), folder.path()), @r"
    plug-in `idx`: `open` failed: `large.gz` has 800 MB of elements, more than the plug-in's memory
      hint: raise `plugins.memory_mb`, or unpack the file, which is then read bit by bit
    ");
}

#[test]
fn clicks_are_rows_of_one_table_and_a_zero_or_one() {
    let config = json!({"samples": 100, "users": 50, "items": 20, "categories": 3});
    let mut clicks = dataset("clicks", &config, Path::new("."));
    let batch = clicks.batch(&(0..100).collect::<Vec<u64>>(), EVALUATION).unwrap();
    assert_eq!((batch[0].size(), batch[0].kind()), (vec![100, 3], Kind::Int64));
    assert_eq!((batch[1].size(), batch[1].kind()), (vec![100, 1], Kind::Float));
    let largest: Vec<i64> = batch[0].amax([0i64].as_slice(), false).try_into().unwrap();
    assert!(largest[0] < 50 && largest[1] < 70 && largest[2] < 73, "{largest:?}");
    let share = batch[1].mean(Kind::Float).double_value(&[]);
    assert!(share > 0.1 && share < 0.9, "{share}");
}
