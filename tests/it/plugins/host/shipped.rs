//! The plug-ins inside the binary: they load, and what they compute is what PyTorch computes.

use std::fs;

use pstrain::job::PluginRef;
use pstrain::plugin::{Dataset, Loss, PluginErrorKind, World, builtin_names};
use serde_json::{Value, json};
use tch::{Kind, Reduction, Tensor};

use super::{EVALUATION, HOST, LIMITS, told};

fn open(name: &str, config: Value) -> Loss {
    let component = HOST.load_ref(&PluginRef::Builtin(name.into())).unwrap();
    Loss::open(&component, &config, LIMITS).unwrap()
}

fn dataset(name: &str, config: &Value, root: &std::path::Path) -> Dataset {
    let component = HOST.load_ref(&PluginRef::Builtin(name.into())).unwrap();
    Dataset::open(&component, config, root, LIMITS, None).unwrap()
}

/// Images are in another order: by class.
#[test]
fn the_digits_are_the_same_as_images_and_as_idx() {
    let idx_root = pstrain::runner::builtin::unpack("digits").unwrap();
    let config = json!({ "images": "t10k-images-idx3-ubyte", "labels": "t10k-labels-idx1-ubyte" });
    let mut idx = dataset("idx", &config, &idx_root);
    let root = pstrain::runner::builtin::unpack("digit_images").unwrap();
    let mut images = dataset("images", &json!({ "folder": "test", "channels": 1 }), &root);
    let all = |of: &mut Dataset| {
        let indices: Vec<u64> = (0..of.info().samples).collect();
        let [pixels, labels] = &of.batch(&indices, EVALUATION).unwrap()[..] else { panic!("two fields") };
        (pixels.reshape([-1, 64]), labels.shallow_clone())
    };
    let ((as_idx, classes), (as_images, labels)) = (all(&mut idx), all(&mut images));
    let (sorted, order) = classes.sort_stable(true, 0, false);
    assert_eq!(sorted, labels);
    assert_eq!(as_idx.index_select(0, &order), as_images);
}

/// Scores of five samples in three classes, and their classes.
fn scores() -> (Tensor, Tensor) {
    let scores: Vec<f32> = (0..15).map(|i| ((i * 37) % 19) as f32 / 5.0 - 1.5).collect();
    let scores = Tensor::from_slice(&scores).reshape([5, 3]).set_requires_grad(true);
    (scores, Tensor::from_slice(&[2i64, 0, 1, 1, 2]))
}

/// Value and gradient are those of `expected`.
fn same(mut loss: Loss, outputs: &Tensor, targets: &Tensor, expected: &Tensor) {
    let value = loss.compute(&[outputs.shallow_clone()], &[targets.shallow_clone()], true).unwrap();
    assert!(value.loss.allclose(expected, 1e-6, 1e-7, false), "{} {expected}", value.loss);
    let gradient = |loss: &Tensor| Tensor::run_backward(&[loss], &[outputs], false, false).remove(0);
    let (found, wanted) = (gradient(&value.loss), gradient(expected));
    assert!(found.allclose(&wanted, 1e-6, 1e-7, false), "{found} {wanted}");
    assert_eq!(value.metrics.len(), 1);
}

#[test]
fn all_of_them_load_and_are_what_they_should_be() {
    let kinds: Vec<(&str, World)> = builtin_names()
        .map(|name| (name, HOST.load_ref(&PluginRef::Builtin(name.into())).unwrap().worlds()[0]))
        .collect();
    assert_eq!(
        kinds,
        [
            ("bags", World::Dataset),
            ("bce_with_logits", World::Loss),
            ("bpr", World::Loss),
            ("clicks", World::Dataset),
            ("criteo", World::Dataset),
            ("cross_entropy", World::Loss),
            ("csv", World::Dataset),
            ("focal", World::Loss),
            ("huber", World::Loss),
            ("idx", World::Dataset),
            ("images", World::Dataset),
            ("kl_div", World::Loss),
            ("mse", World::Loss),
            ("nll", World::Loss),
            ("npy", World::Dataset),
            ("parquet", World::Dataset),
            ("synthetic", World::Dataset),
            ("text", World::Dataset),
            ("triplet", World::Loss),
        ]
    );
}

#[test]
fn nll_and_cross_entropy_are_pytorchs() {
    let (x, y) = scores();
    let logp = x.log_softmax(1, None);
    same(open("nll", json!({})), &logp, &y, &logp.nll_loss(&y));
    let smoothed =
        |smoothing: f64| x.cross_entropy_loss(&y, None::<Tensor>, Reduction::Mean, -100, smoothing);
    same(open("cross_entropy", json!({})), &x, &y, &smoothed(0.0));
    same(open("cross_entropy", json!({ "label_smoothing": 0.1 })), &x, &y, &smoothed(0.1));
    let config = json!({ "label_smoothing": 0.3, "reduction": "mean" });
    same(open("cross_entropy", config), &x, &y, &smoothed(0.3));
}

#[test]
fn cross_entropy_takes_classes_of_every_pixel() {
    let (x, _) = scores();
    let images = x.reshape([1, 3, 5]);
    let classes = Tensor::from_slice(&[0i64, 1, 2, 2, 0]).reshape([1, 5]);
    let expected = images.cross_entropy_loss(&classes, None::<Tensor>, Reduction::Mean, -100, 0.0);
    same(open("cross_entropy", json!({})), &images, &classes, &expected);
}

#[test]
fn mse_and_binary_cross_entropy_are_pytorchs() {
    let (x, _) = scores();
    let y = x.detach().sin().abs();
    same(open("mse", json!({})), &x, &y, &x.mse_loss(&y, Reduction::Mean));
    let bce = |weight: Option<&Tensor>| {
        x.binary_cross_entropy_with_logits(
            &y,
            None::<Tensor>,
            weight.map(Tensor::shallow_clone),
            Reduction::Mean,
        )
    };
    same(open("bce_with_logits", json!({})), &x, &y, &bce(None));
    let weights = Tensor::from_slice(&[1.0f32, 2.0, 0.5]);
    same(open("bce_with_logits", json!({ "pos_weight": [1.0, 2.0, 0.5] })), &x, &y, &bce(Some(&weights)));
}

#[test]
fn a_key_that_a_plugin_does_not_know_is_an_error() {
    let component = HOST.load_ref(&PluginRef::Builtin("cross_entropy".into())).unwrap();
    let error = Loss::open(&component, &json!({ "smoothing": 0.1 }), LIMITS).err().unwrap();
    assert_eq!(error.kind, PluginErrorKind::Failed);
    assert!(error.message.contains("smoothing"), "{error}");
}

#[test]
fn classes_of_a_wrong_dtype_are_an_error_that_says_so() {
    let (x, y) = scores();
    let error = open("cross_entropy", json!({})).compute(&[x], &[y.to_kind(Kind::Float)], false).unwrap_err();
    assert!(error.message.contains("int64"), "{error}");
}

#[test]
fn a_table_and_a_pair_of_idx_files_are_read_from_the_data_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rows.csv"), "a,b,y\n1,2,0\n3.5,4,1\n").unwrap();
    let mut rows = dataset("csv", &json!({ "file": "rows.csv", "target": "y" }), dir.path());
    let batch = rows.batch(&[1, 0], EVALUATION).unwrap();
    assert_eq!(Vec::<f32>::try_from(batch[0].flatten(0, -1)).unwrap(), [3.5, 4.0, 1.0, 2.0]);

    let images = [&[0u8, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2][..], &[1, 2, 3, 4]].concat();
    fs::write(dir.path().join("images"), images).unwrap();
    fs::write(dir.path().join("labels"), [0, 0, 8, 1, 0, 0, 0, 2, 9, 7]).unwrap();
    let mut digits = dataset("idx", &json!({ "images": "images", "labels": "labels" }), dir.path());
    let batch = digits.batch(&[1], EVALUATION).unwrap();
    assert_eq!((batch[0].kind(), batch[0].size()), (Kind::Uint8, vec![1, 1, 2]));
    assert_eq!(Vec::<i64>::try_from(&batch[1]).unwrap(), [7]);
}

#[test]
fn a_file_that_a_plugin_misses_is_told_with_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("train.csv"), "1,2\n").unwrap();
    let component = HOST.load_ref(&PluginRef::Builtin("csv".into())).unwrap();
    let error =
        Dataset::open(&component, &json!({ "file": "test.csv" }), dir.path(), LIMITS, None).err().unwrap();
    let text = told(&error);
    assert!(text.contains("test.csv") && text.contains("train.csv"), "{text}");
    assert!(text.contains(&*dir.path().to_string_lossy()), "{text}");
}
