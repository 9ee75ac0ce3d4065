//! Losses that give their gradient as numbers.

use insta::assert_snapshot;
use pstrain::plugin::{Loss, LossValue, PluginError};
use serde_json::json;
use tch::{Kind, Tensor};

use super::{LIMITS, RAW, told};

fn raw(sin: &str) -> Loss {
    Loss::open(&RAW, &json!(sin), LIMITS).expect("it opens")
}

fn pair(kind: Kind) -> (Tensor, Tensor) {
    let x =
        Tensor::from_slice(&[1.0f64, -2.0, 0.5, 4.0]).reshape([2, 2]).to_kind(kind).set_requires_grad(true);
    let y = Tensor::from_slice(&[0.0f64, 1.0, 0.5, 2.0]).reshape([2, 2]).to_kind(kind);
    (x, y)
}

fn compute(sin: &str) -> Result<LossValue, PluginError> {
    let (x, y) = pair(Kind::Float);
    raw(sin).compute(&[x], &[y], false)
}

#[test]
fn the_guests_gradient_flows_on_through_the_graph() {
    for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
        let (x, y) = pair(kind);
        let value = raw("none").compute(&[&x * 3.0], &[y.shallow_clone()], true).unwrap();
        let expected: Tensor = (&x * 3.0 - &y).detach();
        let mse = expected.square().mean(Kind::Double).double_value(&[]);
        assert!((value.loss.double_value(&[]) - mse).abs() < 1e-6, "{kind:?}");
        assert_eq!(value.metrics[0].0, "rmse");
        (value.loss * 10.0).backward();
        assert!(x.grad().allclose(&(expected * 15.0), 1e-6, 1e-6, false), "{kind:?}: {}", x.grad());
        assert_eq!(x.grad().kind(), kind);
    }
}

#[test]
fn without_a_gradient_to_be_found_none_is_asked_for() {
    let (x, y) = pair(Kind::Float);
    let value = raw("no-gradient").compute(&[x.detach()], &[y], false).unwrap();
    assert_eq!((value.loss.double_value(&[]), value.loss.requires_grad()), (3.5, false));
}

#[test]
fn outputs_that_are_not_contiguous_are_sent_in_order() {
    let (x, y) = pair(Kind::Float);
    let value = raw("none").compute(&[x.tr()], &[y.tr()], false).unwrap();
    value.loss.backward();
    assert_eq!(x.grad(), (&x - &y).detach() / 2.0);
}

#[test]
fn a_gradient_must_be_there_and_fit() {
    assert_snapshot!(told(&compute("no-gradient").unwrap_err()), @"plug-in `raw`: `compute` handed over bad data: it gave 0 gradients for 1 outputs");
    assert_snapshot!(told(&compute("short-gradient").unwrap_err()), @"plug-in `raw`: `compute` handed over bad data: the gradient of output 0, float32[2, 2], has 15 bytes, not 16");
}
