//! Losses against PyTorch's numbers (`tests/data/losses.py`).

use insta::assert_snapshot;
use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::{loss, loss_error};

#[derive(Deserialize)]
struct Case {
    plugin: String,
    params: Value,
    output: Numbers,
    target: Numbers,
    loss: f64,
    gradient: Vec<f64>,
}

#[derive(Deserialize)]
struct Numbers {
    shape: Vec<i64>,
    values: Vec<f64>,
    #[serde(default)]
    classes: bool,
}

impl Numbers {
    fn tensor(&self) -> Tensor {
        let tensor = Tensor::from_slice(&self.values).reshape(&self.shape);
        if self.classes { tensor.to_kind(Kind::Int64) } else { tensor }
    }
}

#[test]
fn every_loss_and_its_gradient_are_pytorchs() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../../data/losses.json")).unwrap();
    assert!(cases.len() >= 11);
    for case in cases {
        let told = format!("{} {} {:?}", case.plugin, case.params, case.output.shape);
        let output = case.output.tensor().set_requires_grad(true);
        let mut loss = loss(&case.plugin, &case.params);
        let value = loss.compute(&[output.shallow_clone()], &[case.target.tensor()], false).unwrap().loss;
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs().max(1.0);
        assert!(close(value.double_value(&[]), case.loss), "{told}: {value} {}", case.loss);
        value.backward();
        let gradient = Vec::<f64>::try_from(output.grad().reshape([-1])).unwrap();
        let all_close = gradient.iter().zip(&case.gradient).all(|(&a, &b)| close(a, b));
        assert!(all_close, "{told}: {gradient:?} {:?}", case.gradient);
    }
}

fn metrics(name: &str, output: Tensor, target: Tensor) -> Vec<(String, f64)> {
    loss(name, &json!({})).compute(&[output], &[target], true).unwrap().metrics
}

#[test]
fn metrics_are_means_over_the_batch() {
    let scores = Tensor::from_slice(&[2.0f32, 1.0, 0.0, 3.0, 5.0, 4.0, 0.0, 1.0]).reshape([4, 2]);
    let classes = Tensor::from_slice(&[0i64, 1, 1, 1]);
    let log_probabilities = scores.log_softmax(1, Kind::Float);
    for (name, output) in [("nll", log_probabilities), ("cross_entropy", scores)] {
        let found = metrics(name, output, classes.shallow_clone());
        assert_eq!(found, [("accuracy".to_owned(), 0.75)]);
    }
    let output = Tensor::from_slice(&[1.0f32, -2.0, 3.0, -4.0]).reshape([4, 1]);
    let target = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 0.0]);
    assert_eq!(
        metrics("mse", output.shallow_clone(), target.shallow_clone()),
        [("mae".to_owned(), (0.0 + 3.0 + 2.0 + 4.0) / 4.0)]
    );
    assert_eq!(metrics("bce_with_logits", output, target), [("accuracy".to_owned(), 0.75)]);
}

#[test]
fn whole_numbers_are_targets_of_a_loss_over_floats() {
    let output = Tensor::from_slice(&[0.5f32, 2.0]);
    let value = loss("mse", &json!({})).compute(&[output], &[Tensor::from_slice(&[1i64, 2])], false);
    assert_eq!(value.unwrap().loss.double_value(&[]), 0.125);
}

#[test]
fn targets_that_do_not_fit_are_told_with_what_would() {
    let error = |name: &str, output: Tensor, target: Tensor| {
        loss(name, &json!({})).compute(&[output], &[target], false).unwrap_err().to_string()
    };
    let floats = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, tch::Device::Cpu));
    let classes = Tensor::from_slice(&[0i64, 1]);
    assert_snapshot!(error("nll", floats(&[2, 3]), floats(&[2, 1])), @r"plug-in `nll`: `compute` failed: the targets are float32 [2, 1], and for an output of [2, 3] they should be class numbers: int64 [2]");
    assert_snapshot!(error("cross_entropy", floats(&[2]), classes.shallow_clone()), @r"plug-in `cross_entropy`: `compute` failed: the output is [2], and [samples, classes, ...] is wanted");
    assert_snapshot!(error("mse", floats(&[4, 3]), floats(&[4])), @r"plug-in `mse`: `compute` failed: the targets are [4], and the output is [4, 3]: they should have one shape");
    assert_snapshot!(error("nll", floats(&[2, 3]), Tensor::from_slice(&[0i64, 3])), @r"
    plug-in `nll`: `compute`: an operation was refused: gather(float32[2, 3], int64[2, 1]): index 3 is out of bounds for dimension 1 with size 3
      hint: the targets go up to 3, and the model gives scores of 3 classes, 0 to 2: give its last layer out_features = 4, or name the field of the classes in `data.target`
    ");
    let scores = Tensor::from_slice(&[0.0f32; 18]).reshape([2, 9]);
    assert_snapshot!(error("cross_entropy", scores, Tensor::from_slice(&[0i64, 9])), @r"
    plug-in `cross_entropy`: `compute`: an operation was refused: cross_entropy(float32[2, 9], int64[2]): Target 9 is out of bounds.
      hint: the targets go up to 9, and the model gives scores of 9 classes, 0 to 8: give its last layer out_features = 10, or name the field of the classes in `data.target`
    ");
    assert_snapshot!(error("nll", floats(&[2, 3]), Tensor::from_slice(&[-1i64, 2])), @r"
    plug-in `nll`: `compute`: an operation was refused: gather(float32[2, 3], int64[2, 1]): index -1 is out of bounds for dimension 1 with size 3
      hint: the targets go down to -1, and the model gives scores of 3 classes, 0 to 2: class numbers begin at 0, and none is left out; is `data.target` the field of the classes?
    ");
    let mut two = loss("mse", &json!({}));
    let error = two.compute(&[floats(&[1]), floats(&[1])], &[floats(&[1])], false).unwrap_err();
    assert_snapshot!(error, @r"plug-in `mse`: `compute` failed: this loss takes one output, and got 2");
}

/// The first step is among those that are asked for metrics, and so is an evaluation.
#[test]
fn a_negative_log_likelihood_of_raw_scores_is_refused() {
    let scores = Tensor::from_slice(&[2.0f32, 1.0, 0.0, 3.0]).reshape([2, 2]);
    let classes = Tensor::from_slice(&[0i64, 1]);
    let mut nll = loss("nll", &json!({}));
    let error = nll.compute(&[scores.shallow_clone()], &[classes.shallow_clone()], true).unwrap_err();
    assert_snapshot!(error, @r"
    plug-in `nll`: `compute` failed: the outputs are not log-probabilities: of a sample's classes the exponentials add up to 21.0855, and not to 1
      hint: let the model end with log_softmax over the classes (dim = 1), or use the loss `cross_entropy`, which takes raw scores
    ");
    for kind in [Kind::Float, Kind::BFloat16] {
        let log_probabilities = scores.to_kind(kind).log_softmax(1, None::<Kind>);
        assert!(nll.compute(&[log_probabilities], &[classes.shallow_clone()], true).is_ok());
    }
}

#[test]
fn parameters_that_make_no_sense_are_refused() {
    assert_snapshot!(loss_error("cross_entropy", &json!({"label_smoothing": 1.5})), @r"plug-in `cross_entropy`: `open` failed: `label_smoothing` = 1.5 is not within 0 to 1");
    assert_snapshot!(loss_error("cross_entropy", &json!({"smoothing": 0.1})), @r"plug-in `cross_entropy`: `open` failed: unknown key `smoothing`, expected `reduction` or `label_smoothing`");
    assert_snapshot!(loss_error("nll", &json!({"reduction": "none"})), @r"plug-in `nll`: `open` failed: key `reduction`: unknown value `none`, expected `mean`");
    assert_snapshot!(loss_error("mse", &json!({"reduction": "sum"})), @r"
    plug-in `mse`: `open` failed: key `reduction`: `sum` cannot be trained with: the job averages over batches and trainers by their samples, so a loss is the mean of its batch
      hint: use `mean`, and multiply optimizer.lr by the elements that the sum would be over
    ");
    assert_snapshot!(loss_error("bce_with_logits", &json!({"pos_weight": -1})), @r"plug-in `bce_with_logits`: `open` failed: `pos_weight` = -1 is not a number from 0 on");
    assert_snapshot!(loss_error("bce_with_logits", &json!({"pos_weight": "2"})), @r"plug-in `bce_with_logits`: `open` failed: key `pos_weight`: wanted a number or a list of numbers");
    let output = Tensor::from_slice(&[0.5f32, 2.0]);
    let mut weighted = loss("bce_with_logits", &json!({"pos_weight": [1, 2, 3]}));
    let error = weighted.compute(&[output.shallow_clone()], &[output], false).unwrap_err();
    assert_snapshot!(error, @r"plug-in `bce_with_logits`: `compute` failed: `pos_weight` has 3 numbers, and the last dimension of the output [2] is 2");
}
