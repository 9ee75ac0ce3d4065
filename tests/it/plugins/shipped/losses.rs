//! Losses against PyTorch's numbers (`tests/data/losses.py`).

use insta::assert_snapshot;
use pstrain::plugin::Weight;
use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::{loss, loss_error};

#[derive(Deserialize)]
struct Case {
    plugin: String,
    params: Value,
    outputs: Vec<Numbers>,
    targets: Vec<Numbers>,
    loss: f64,
    gradients: Vec<Vec<f64>>,
    /// What the mean was divided by, where it is not the number of samples.
    weight: Option<f64>,
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
    assert!(cases.len() >= 82);
    for case in cases {
        let shapes: Vec<_> = case.outputs.iter().map(|output| &output.shape).collect();
        let told = format!("{} {} {shapes:?}", case.plugin, case.params);
        let outputs: Vec<Tensor> =
            case.outputs.iter().map(|output| output.tensor().set_requires_grad(true)).collect();
        let targets: Vec<Tensor> = case.targets.iter().map(Numbers::tensor).collect();
        let mut loss = loss(&case.plugin, &case.params);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs().max(1.0);
        assert_eq!(loss.weighs(), case.weight.is_some(), "{told}");
        if let Some(wanted) = case.weight {
            let found = loss.weigh(&targets, 0).unwrap().loss;
            assert!(close(found, wanted), "{told}: weighs {found} and not {wanted}");
        }
        let value = loss.compute(&outputs, &targets, false).unwrap().loss;
        assert!(close(value.double_value(&[]), case.loss), "{told}: {value} {}", case.loss);
        value.backward();
        for (output, wanted) in outputs.iter().zip(&case.gradients) {
            let gradient = Vec::<f64>::try_from(output.grad().reshape([-1])).unwrap();
            let all_close = gradient.iter().zip(wanted).all(|(&a, &b)| close(a, b));
            assert!(all_close, "{told}: {gradient:?} {wanted:?}");
        }
    }
}

#[test]
fn a_loss_that_does_not_weigh_counts_its_samples() {
    for name in ["cross_entropy", "nll", "mse", "focal", "bpr"] {
        let mut loss = loss(name, &json!({}));
        let weight = loss.weigh(&[], 7).unwrap();
        assert_eq!((loss.weighs(), weight), (false, Weight { loss: 7.0, metrics: 7.0 }), "{name}");
    }
}

#[test]
fn a_batch_in_which_no_target_counts_has_no_loss_and_no_gradient() {
    let scores = Tensor::from_slice(&[2.0f32, 1.0, 0.0, 3.0]).reshape([2, 2]);
    let cases = [
        ("nll", json!({"ignore_index": -1}), [-1i64, -1]),
        ("cross_entropy", json!({"ignore_index": -1, "label_smoothing": 0.1}), [-1, -1]),
        ("cross_entropy", json!({"weight": [1, 0]}), [1, 1]),
        ("nll", json!({"weight": [1, 0], "ignore_index": 0}), [0, 1]),
    ];
    for (name, params, classes) in cases {
        let output = scores.log_softmax(1, None::<Kind>).set_requires_grad(true);
        let (mut loss, classes) = (loss(name, &params), [Tensor::from_slice(&classes)]);
        assert_eq!(loss.weigh(&classes, 2).unwrap().loss, 0.0, "{name} {params}");
        let computed = loss.compute(&[output.shallow_clone()], &classes, true).unwrap();
        assert_eq!(computed.loss.double_value(&[]), 0.0, "{name} {params}");
        assert!(computed.metrics.iter().all(|(_, value)| value.is_finite()), "{:?}", computed.metrics);
        computed.loss.backward();
        assert_eq!(output.grad().abs().max().double_value(&[]), 0.0, "{name} {params}");
    }
}

/// Scores that are certain, and wrong or right beyond what a number can say.
#[test]
fn a_focal_loss_of_extreme_scores_has_a_gradient() {
    for gamma in [0.0, 0.5, 2.0] {
        let yes_and_no = [200.0f32, -200.0, 200.0, -200.0].map(f64::from);
        let targets = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0]);
        let classes = Tensor::from_slice(&[0i64, 1]);
        let scores = Tensor::from_slice(&yes_and_no.map(|score| score as f32));
        for (shape, targets) in [(vec![4], targets), (vec![2, 2], classes)] {
            let output = scores.reshape(&shape).detach().set_requires_grad(true);
            let mut focal = loss("focal", &json!({ "gamma": gamma }));
            let value = focal.compute(&[output.shallow_clone()], &[targets], false).unwrap().loss;
            value.backward();
            let finite =
                value.isfinite().all().int64_value(&[]) + output.grad().isfinite().all().int64_value(&[]);
            assert_eq!(finite, 2, "gamma {gamma}: {value}, {}", output.grad());
        }
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
    assert_eq!(
        metrics("huber", output.shallow_clone(), target.shallow_clone()),
        [("mae".to_owned(), (0.0 + 3.0 + 2.0 + 4.0) / 4.0)]
    );
    for name in ["bce_with_logits", "focal"] {
        let found = metrics(name, output.shallow_clone(), target.shallow_clone());
        assert_eq!(found, [("accuracy".to_owned(), 0.75)]);
    }
}

#[test]
fn metrics_of_rankings_are_the_part_in_the_right_order() {
    let [one, other] = [[1.0f32, 2.0, 3.0, 4.0], [0.0, 2.0, 1.0, 5.0]].map(|of| Tensor::from_slice(&of));
    let bpr = loss("bpr", &json!({})).compute(&[one.shallow_clone(), other.shallow_clone()], &[], true);
    assert_eq!(bpr.unwrap().metrics, [("ordered".to_owned(), 0.5)]);
    let column = |of: &Tensor| of.reshape([4, 1]);
    let outputs = [column(&one), column(&(&one + 1.5)), column(&other)];
    let triplet = loss("triplet", &json!({})).compute(&outputs, &[], true);
    assert_eq!(triplet.unwrap().metrics, [("ordered".to_owned(), 0.25)]);
}

#[test]
fn the_accuracy_is_over_the_targets_that_count() {
    let scores = Tensor::from_slice(&[2.0f32, 1.0, 0.0, 3.0, 5.0, 4.0, 0.0, 1.0]).reshape([4, 2]);
    let classes = [Tensor::from_slice(&[0i64, -100, 1, -100])];
    let mut loss = loss("cross_entropy", &json!({"ignore_index": -100, "weight": [1, 3]}));
    assert_eq!(loss.compute(&[scores], &classes, true).unwrap().metrics, [("accuracy".to_owned(), 0.5)]);
    assert_eq!(loss.weigh(&classes, 4).unwrap(), Weight { loss: 4.0, metrics: 2.0 });
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
      hint: the targets go down to -1, and the model gives scores of 3 classes, 0 to 2: class numbers begin at 0; if -1 stands for what does not count, write ignore_index = -1 in loss.params
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
    assert_snapshot!(loss_error("cross_entropy", &json!({"smoothing": 0.1})), @"plug-in `cross_entropy`: `open` failed: unknown key `smoothing`, expected one of `reduction`, `label_smoothing`, `weight`, `ignore_index`");
    assert_snapshot!(loss_error("nll", &json!({"reduction": "none"})), @"plug-in `nll`: `open` failed: key `reduction`: unknown value `none`, expected `mean` or `sum`");
    assert_snapshot!(loss_error("bce_with_logits", &json!({"pos_weight": -1})), @r"plug-in `bce_with_logits`: `open` failed: `pos_weight` = -1 is not a number from 0 on");
    assert_snapshot!(loss_error("bce_with_logits", &json!({"pos_weight": "2"})), @r"plug-in `bce_with_logits`: `open` failed: key `pos_weight`: wanted a number or a list of numbers");
    assert_snapshot!(loss_error("cross_entropy", &json!({"weight": [1, -2]})), @"plug-in `cross_entropy`: `open` failed: `weight` = -2 is not a number from 0 on");
    assert_snapshot!(loss_error("nll", &json!({"weight": [0, 0]})), @"plug-in `nll`: `open` failed: `weight` is 0 for every class: nothing would count");
    assert_snapshot!(loss_error("cross_entropy", &json!({"weight": [1, 0], "label_smoothing": 0.1})), @r"
    plug-in `cross_entropy`: `open` failed: `weight` has a 0 and `label_smoothing` is 0.1: the mean of a batch that has only targets of that class would be infinite
      hint: give the class a small weight, such as 1e-3, or leave label_smoothing out
    ");
    assert_snapshot!(loss_error("nll", &json!({"ignore_index": 0.5})), @"plug-in `nll`: `open` failed: key `ignore_index`: invalid type: floating point `0.5`, expected i64");
    assert_snapshot!(loss_error("bce_with_logits", &json!({"weight": [1, -2]})), @"plug-in `bce_with_logits`: `open` failed: `weight` = -2 is not a number from 0 on");
    assert_snapshot!(loss_error("huber", &json!({"delta": 0})), @"plug-in `huber`: `open` failed: `delta` = 0 is not a number above 0");
    assert_snapshot!(loss_error("kl_div", &json!({"reduction": "none"})), @"plug-in `kl_div`: `open` failed: key `reduction`: unknown value `none`, expected one of `batchmean`, `mean`, `sum`");
    assert_snapshot!(loss_error("focal", &json!({"alpha": 1.5})), @r"
    plug-in `focal`: `open` failed: `alpha` = 1.5 is not within 0 to 1
      hint: -1 stands for none
    ");
    assert_snapshot!(loss_error("triplet", &json!({"p": 0.5})), @"plug-in `triplet`: `open` failed: `p` = 0.5 is not a number from 1 on");
    let output = Tensor::from_slice(&[0.5f32, 2.0]);
    let mut weighted = loss("bce_with_logits", &json!({"pos_weight": [1, 2, 3]}));
    let error = weighted.compute(&[output.shallow_clone()], &[output], false).unwrap_err();
    assert_snapshot!(error, @r"plug-in `bce_with_logits`: `compute` failed: `pos_weight` has 3 numbers, and the last dimension of the output [2] is 2");
}

#[test]
fn weights_that_fit_no_class_and_outputs_that_are_missing_are_told() {
    let scores = || Tensor::zeros([2, 3], (Kind::Float, tch::Device::Cpu));
    let classes = || Tensor::from_slice(&[0i64, 2]);
    let computed = |name: &str, params: &Value, outputs: &[Tensor], targets: &[Tensor]| {
        loss(name, params).compute(outputs, targets, false).unwrap_err().to_string()
    };
    let weights = json!({"weight": [1, 2]});
    assert_snapshot!(computed("cross_entropy", &weights, &[scores()], &[classes()]), @"plug-in `cross_entropy`: `compute` failed: `weight` has 2 numbers, and the output [2, 3] is of 3 classes");
    assert_snapshot!(loss("nll", &weights).weigh(&[classes()], 2).unwrap_err(), @"plug-in `nll`: `weigh` failed: the targets go from 0 to 2, and `weight` has 2 numbers, for the classes 0 to 1");
    assert_snapshot!(computed("focal", &json!({"alpha": [1, 2]}), &[scores()], &[classes()]), @"plug-in `focal`: `compute` failed: `alpha` has 2 numbers, and the output [2, 3] is of 3 classes");
    assert_snapshot!(computed("focal", &json!({"alpha": 0.25}), &[scores()], &[classes()]), @r"
    plug-in `focal`: `compute` failed: `alpha` = 0.25 is for targets that are yes or no, and these are class numbers
      hint: write a list of one number for each class, or leave it out
    ");
    assert_snapshot!(computed("focal", &json!({"alpha": [1, 2]}), &[scores()], &[scores()]), @r"
    plug-in `focal`: `compute` failed: `alpha` is a list, of one number for each class, and the targets are yes or no
      hint: write one number, how much yes weighs
    ");
    assert_snapshot!(computed("bpr", &json!({}), &[scores(), scores()], &[classes()]), @r"
    plug-in `bpr`: `compute` failed: this loss takes no target, and got 1
      hint: write target = [] in [loss], which names none
    ");
    assert_snapshot!(computed("bpr", &json!({}), &[scores()], &[]), @"plug-in `bpr`: `compute` failed: this loss takes two outputs, the scores of a positive and of a negative item, and got 1");
    assert_snapshot!(computed("triplet", &json!({}), &[scores(), scores(), classes()], &[]), @"plug-in `triplet`: `compute` failed: the anchor output is [2, 3], and the negative one [2]: they should have one shape");
}
