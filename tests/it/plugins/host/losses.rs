//! Losses made of host tensor operations.

use insta::assert_snapshot;
use pstrain::job::PluginLimits;
use pstrain::plugin::{Loss, PluginErrorKind};
use serde_json::json;
use tch::{Kind, Tensor};

use super::{EVIL, LIMITS, SHORT, loss, told, without_size};

fn pair() -> (Tensor, Tensor) {
    let x = Tensor::from_slice(&[1.0f32, -2.0, 0.5, 4.0]).reshape([2, 2]).set_requires_grad(true);
    let y = Tensor::from_slice(&[0.0f32, 1.0, 0.5, 2.0]).reshape([2, 2]);
    (x, y)
}

/// The error of a loss of float outputs and targets.
fn compute_error(sin: &str) -> String {
    let (x, y) = pair();
    told(&loss(sin).compute(&[x], &[y], false).expect_err("no loss"))
}

#[test]
fn libtorch_differentiates_what_a_guest_composes() {
    let (x, y) = pair();
    let value = loss("none").compute(&[x.shallow_clone()], &[y.shallow_clone()], true).unwrap();
    assert_eq!(value.loss.double_value(&[]), (1.0 + 9.0 + 0.0 + 4.0) / 4.0);
    assert_eq!(value.metrics, [("largest".to_owned(), 3.0)]);
    value.loss.backward();
    assert_eq!(x.grad(), (&x - &y).detach() / 2.0);
}

#[test]
fn without_a_gradient_to_be_found_the_value_is_given_all_the_same() {
    let (x, y) = pair();
    let value = loss("none").compute(&[x.detach()], &[y], false).unwrap();
    assert_eq!((value.loss.double_value(&[]), value.loss.requires_grad()), (3.5, false));
    assert!(value.metrics.is_empty());
}

#[test]
fn every_operation_does_what_libtorch_does() {
    let n = 5;
    tch::manual_seed(1);
    let x = Tensor::randn([n, 4], tch::kind::FLOAT_CPU).set_requires_grad(true);
    let y = Tensor::from_slice(&[0i64, 3, 2, 2, 1]);
    let value = loss("everything").compute(&[x.shallow_clone()], &[y.shallow_clone()], false).unwrap();
    let expected = everything(&x, &y);
    assert!(value.loss.allclose(&expected, 1e-6, 1e-6, false), "{} {expected}", value.loss);
    let gradient = |loss: &Tensor| Tensor::run_backward(&[loss], &[&x], false, false).remove(0);
    assert!(gradient(&value.loss).allclose(&gradient(&expected), 1e-6, 1e-6, false));
}

/// The same as in the guest, written with tch.
fn everything(x: &Tensor, y: &Tensor) -> Tensor {
    let c = x.size()[1];
    let weights = Tensor::arange(c, (Kind::Float, x.device())) + 1.0;
    let positive = x.sigmoid() + 0.5;
    let picked = x.log_softmax(1, None).gather(1, &y.unsqueeze(1), false).squeeze_dim(1);
    let off_diagonal = Tensor::eye(x.size()[0], tch::kind::FLOAT_CPU).logical_not().to_kind(Kind::Float);
    let gram = x.matmul(&x.tr()) * off_diagonal;
    let large = x.gt(0.0);
    let parts = [
        -(picked * weights.index_select(0, y)).mean(None),
        gram.sum(None) * 0.01,
        (positive.log() + positive.sqrt() - positive.log1p()).mean(None),
        positive.pow(&x.abs()).mean(None),
        (x.softmax(1, None) * y.one_hot(c)).sum(None) / (2.0 * x.size()[0] as f64),
        x.tanh().where_self(&large, &x.softplus()).sum(None),
        (x.amax([1], false) - x.amin([1], false)).mean(None),
        x.logsumexp([1], false).mean(None),
        x.clamp_min(-0.5).relu().exp().mean(None),
        x.sum_dim_intlist(1, false, None).maximum(&x.select(1, 0)).mean(None),
        x.clamp_max(0.25).sign().mean(None),
        x.gt_tensor(&x.mean_dim(1, true, None)).eq_tensor(&large).to_kind(Kind::Float).mean(None),
        x.argmax(1, false).eq(0).to_kind(Kind::Float).mean(None),
    ];
    Tensor::stack(&parts, 0).sum(None)
}

#[test]
fn a_loss_must_be_a_floating_scalar_that_depends_on_the_outputs() {
    assert_snapshot!(compute_error("vector"), @"plug-in `evil`: `compute` handed over bad data: the loss is float32[2, 2] and should be a floating-point scalar: take its mean or sum");
    assert_snapshot!(compute_error("integer"), @"plug-in `evil`: `compute` handed over bad data: the loss is int64[2] and should be a floating-point scalar: take its mean or sum");
    assert_snapshot!(compute_error("detached"), @"plug-in `evil`: `compute` handed over bad data: the loss does not depend on the outputs: no gradient would flow; `detach`, `argmax`, comparisons and integers cut it off");
}

#[test]
fn what_libtorch_refuses_is_told_in_its_words() {
    let x = Tensor::ones([2, 3], tch::kind::FLOAT_CPU);
    let y = Tensor::from_slice(&[0i64, 3]);
    let error = loss("bad-shapes").compute(&[x.shallow_clone()], &[x.shallow_clone()], false).unwrap_err();
    assert_eq!(error.kind, PluginErrorKind::BadOperation);
    assert_snapshot!(told(&error), @"plug-in `evil`: `compute`: an operation was refused: matmul(float32[2, 3], float32[2, 3]): mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
    // A class number too large.
    let error = loss("everything").compute(&[x], &[y], false).unwrap_err();
    assert_snapshot!(told(&error), @"plug-in `evil`: `compute`: an operation was refused: one_hot(int64[2]): Class values must be smaller than num_classes.");
}

#[test]
fn handles_that_are_never_dropped_come_to_an_end() {
    assert_snapshot!(compute_error("hoard"), @r"
    plug-in `evil`: `compute`: an operation was refused: it holds 4096 files, tensors and other handles, its limit
      hint: close what is read; if it needs more at one time, raise `plugins.max_files`
    ");
}

#[test]
fn inputs_that_there_is_no_room_for_are_refused_with_the_limit() {
    let limits = PluginLimits { max_files: 16, ..LIMITS };
    let (x, y) = pair();
    let outputs: Vec<Tensor> = (0..20).map(|_| x.shallow_clone()).collect();
    let mut loss = Loss::open(&EVIL, &json!("none"), limits).unwrap();
    assert_snapshot!(told(&loss.compute(&outputs, &[y], false).unwrap_err()), @r"
    plug-in `evil`: `compute`: an operation was refused: there is no room for 20 more handles, those of its inputs; the limit is 16
      hint: drop tensors that are not used any more; if it needs more at one time, raise `plugins.max_files`
    ");
}

#[test]
fn a_guest_cannot_make_libtorch_fill_the_machine() {
    assert_snapshot!(compute_error("explode"), @r"
    plug-in `evil`: `compute`: an operation was refused: mul: it makes 48 GiB, after 525.1 KiB in this call; the limit is 64.0 MiB (`plugins.memory_mb` and 64 times the inputs)
      hint: make smaller tensors; if it needs more, raise `plugins.memory_mb`
    ");
    assert_snapshot!(compute_error("full"), @"plug-in `evil`: `compute`: an operation was refused: full: [1099511627776, 1099511627776] is not a valid shape: its sizes multiplied are over 2^48");
    let x = Tensor::ones([2, 3], tch::kind::FLOAT_CPU);
    let error = loss("one-hot").compute(&[x], &[Tensor::from_slice(&[0i64, 1])], false).unwrap_err();
    assert_snapshot!(told(&error), @"plug-in `evil`: `compute`: an operation was refused: one_hot: [2, 1125899906842624] is not a valid shape: its sizes multiplied are over 2^48");
}

#[test]
fn metrics_have_names_of_their_own() {
    assert_snapshot!(compute_error("metric-names"), @"plug-in `evil`: `compute` handed over bad data: two metrics are named `same`");
}

#[test]
fn limits_hold_in_a_loss() {
    let (x, y) = pair();
    let error = Loss::open(&EVIL, &json!("loop"), SHORT).unwrap().compute(&[x], &[y], false).unwrap_err();
    assert_snapshot!(told(&error), @r"
    plug-in `evil`: `compute` was stopped after 200ms, its limit
      hint: it may be in an endless loop; if it needs longer, raise `plugins.time_ms`
    ");
    assert_snapshot!(without_size(&compute_error("grow")), @r"
    plug-in `evil`: `compute` wanted more memory than its limit, 64 MiB: it asked for 64... MiB
      hint: if it needs more, raise `plugins.memory_mb`
    ");
    assert_snapshot!(compute_error("panic no such class"), @"plug-in `evil`: `compute` panicked: no such class");
    assert_snapshot!(compute_error("fail no such class"), @"plug-in `evil`: `compute` failed: no such class");
}

#[test]
fn a_loss_goes_on_after_a_trap_and_leaves_no_handles() {
    let (x, y) = pair();
    let mut loss = loss("bad-shapes");
    let wide = Tensor::ones([2, 3], tch::kind::FLOAT_CPU);
    assert!(loss.compute(&[wide.shallow_clone()], &[wide], false).is_err());
    assert!(loss.compute(&[x.shallow_clone()], &[y.shallow_clone()], false).is_err());
    let limits = PluginLimits { memory_bytes: 256 << 20, ..LIMITS };
    let mut loss = Loss::open(&EVIL, &json!("none"), limits).unwrap();
    // More calls than handles.
    for _ in 0..5000 {
        loss.compute(&[x.shallow_clone()], &[y.shallow_clone()], true).unwrap();
    }
}
