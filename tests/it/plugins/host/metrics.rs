//! Metrics: what parts come to, merged, and guests that hand over what nobody can take.

use insta::assert_snapshot;
use pstrain::job::PluginLimits;
use pstrain::plugin::{Component, Figures, Metric, PluginError};
use serde_json::{Value as Json, json};
use std::sync::LazyLock;
use tch::{Kind, Tensor};

use super::{EVIL, HOST, LIMITS, SHORT, guest, told};

static METRIC: LazyLock<Component> =
    LazyLock::new(|| HOST.load("metric", &guest("metric")).expect("a plug-in"));
/// With room for the largest state, several times.
const ROOMY: PluginLimits = PluginLimits { memory_bytes: 512 << 20, ..LIMITS };

fn open(config: Json, limits: PluginLimits) -> Metric {
    Metric::open(&METRIC, &config, limits).expect("it opens")
}

fn sinful(sin: &str) -> Metric {
    open(json!({ "sin": sin }), ROOMY)
}

/// Outputs [n, 2] and targets of the same shape.
fn numbers(n: i64) -> (Tensor, Tensor) {
    let output = Tensor::arange(2 * n, tch::kind::DOUBLE_CPU).sin().reshape([n, 2]);
    (output.to_kind(Kind::Float), output.cos().to_kind(Kind::Float))
}

/// One that has counted something.
fn counted(sin: &str) -> Metric {
    let (output, target) = numbers(3);
    let mut metric = sinful(sin);
    metric.update(&[output], &[target]).expect("it counts");
    metric
}

fn error_of<T: std::fmt::Debug>(result: Result<T, PluginError>) -> String {
    told(&result.expect_err("it is refused"))
}

#[test]
fn uneven_batches_of_three_trainers_come_to_the_figure_of_all_samples() {
    let (output, target) = numbers(101);
    let errors = (output.to_kind(Kind::Double) - target.to_kind(Kind::Double)).abs();
    let (mean, largest) = (errors.mean(None).double_value(&[]), errors.max().double_value(&[]));
    let parts = |trainers: usize| {
        let config = json!({ "several": true });
        let mut parts: Vec<Metric> = (0..trainers).map(|_| open(config.clone(), LIMITS)).collect();
        let (mut begin, mut batch) = (0, 0);
        while begin < 101 {
            let size = (1 + batch % 7).min(101 - begin);
            let cut = |tensor: &Tensor| [tensor.narrow(0, begin, size)];
            parts[batch as usize % trainers].update(&cut(&output), &cut(&target)).unwrap();
            (begin, batch) = (begin + size, batch + 1);
        }
        let (first, others) = parts.split_first_mut().unwrap();
        // One that has counted nothing changes nothing.
        first.merge(&open(config.clone(), LIMITS).state().unwrap()).unwrap();
        others.iter_mut().for_each(|other| first.merge(&other.state().unwrap()).unwrap());
        first.figures().unwrap()
    };
    for trainers in [1, 3] {
        let Figures::Several(figures) = parts(trainers) else { panic!("it tells two") };
        let [(first, found), (second, most)] = &figures[..] else { panic!("{figures:?}") };
        assert_eq!((first.as_str(), second.as_str(), *most), ("mean", "largest", largest));
        assert!((found - mean).abs() < 1e-12, "{trainers} trainers: {found} and {mean}");
    }
}

#[test]
fn outputs_of_any_floating_type_are_counted() {
    for kind in [Kind::Half, Kind::BFloat16, Kind::Float, Kind::Double] {
        let mut metric = open(json!({}), LIMITS);
        let (output, target) =
            (Tensor::from_slice(&[1.0, -2.0]).to_kind(kind), Tensor::from_slice(&[0i64, 1]));
        metric.update(&[output.set_requires_grad(true)], &[target]).unwrap();
        assert_eq!(metric.figures().unwrap(), Figures::One(2.0), "{kind:?}");
    }
}

#[test]
fn no_number_is_a_figure_too() {
    let Figures::One(figure) = counted("nan").figures().unwrap() else { panic!("it tells one") };
    assert!(figure.is_nan());
}

#[test]
fn a_state_has_a_limit_on_either_side() {
    assert_snapshot!(error_of(counted("large-state").state()), @"plug-in `metric`: `state` handed over bad data: a state has 64.0 MiB; the limit is 64 MiB");
    let largest = vec![0; (64 << 20) + 1];
    assert_snapshot!(error_of(counted("").merge(&largest)), @"plug-in `metric`: `merge` handed over bad data: a state has 64.0 MiB; the limit is 64 MiB");
    let unreadable = error_of(counted("").merge(&[1, 2, 3]));
    assert_snapshot!(unreadable, @"plug-in `metric`: `merge` failed: the state has 3 bytes, and numbers of 8 bytes are wanted");
    let negative: Vec<u8> = [-1.0f64, 0.0, 1.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_snapshot!(error_of(counted("").merge(&negative)), @"plug-in `metric`: `merge` failed: a sum of -1 over 1 came");
    let begun = error_of(counted("no-memory").state());
    assert!(begun.contains("`state` wanted more memory than its limit, 512 MiB"), "{begun}");
}

#[test]
fn names_of_figures_are_bounded_and_differ() {
    assert_snapshot!(error_of(counted("many-names").figures()), @"plug-in `metric`: `value` handed over bad data: it tells 100000 figures; 1 to 64 are possible");
    assert_snapshot!(error_of(counted("much-of-names").figures()), @"plug-in `metric`: `value` handed over bad data: it tells 100 figures; 1 to 64 are possible");
    assert_snapshot!(error_of(counted("no-names").figures()), @"plug-in `metric`: `value` handed over bad data: it tells 0 figures; 1 to 64 are possible");
    assert_snapshot!(error_of(counted("same-names").figures()), @"plug-in `metric`: `value` handed over bad data: two figures are named `mean`");
    assert_snapshot!(error_of(counted("long-name").figures()), @"plug-in `metric`: `value` handed over bad data: a figure is named `nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn`; 1 to 64 letters, digits, `_` and `-` are possible");
    assert_snapshot!(error_of(counted("strange-name").figures()), @"plug-in `metric`: `value` handed over bad data: a figure is named `a�[31m`; 1 to 64 letters, digits, `_` and `-` are possible");
    // What the host would have to hold of it is counted before it is held.
    let mut small =
        open(json!({ "sin": "much-of-names" }), PluginLimits { memory_bytes: 128 << 20, ..LIMITS });
    assert!(error_of(small.figures()).contains("`value`"));
}

#[test]
fn what_a_trap_has_lost_is_not_told_as_if_it_were_there() {
    let state = counted("").state().unwrap();
    let mut metric = counted("merge-panics");
    assert_snapshot!(error_of(metric.merge(&state)), @"plug-in `metric`: `merge` panicked: this was never meant to be merged");
    assert_snapshot!(error_of(metric.figures()), @"plug-in `metric`: `value`: an earlier call has ended it, and what it had counted is lost");
    let (output, target) = numbers(1);
    assert!(metric.update(&[output], &[target]).is_err() && metric.state().is_err());
}

#[test]
fn endless_loops_end() {
    let state = counted("").state().unwrap();
    let (output, target) = numbers(1);
    let looping = |sin: &str| open(json!({ "sin": sin }), SHORT);
    assert_snapshot!(error_of(looping("merge-loops").merge(&state)), @r"
    plug-in `metric`: `merge` was stopped after 200ms, its limit
      hint: it may be in an endless loop; if it needs longer, raise `plugins.time_ms`
    ");
    let error = error_of(looping("update-loops").update(&[output], &[target]));
    assert!(error.contains("`update` was stopped after 200ms, its limit"), "{error}");
}

#[test]
fn what_is_no_metric_and_what_it_does_not_know_is_told() {
    assert_snapshot!(error_of(Metric::open(&EVIL, &json!({}), LIMITS).map(drop)), @"`evil` is not a plug-in that can be used here: it is a dataset and a loss, not a metric");
    assert_snapshot!(error_of(Metric::open(&METRIC, &json!({ "tolerance": 1 }), LIMITS).map(drop)), @"plug-in `metric`: `open` failed: unknown key `tolerance`, expected `sin` or `several`");
    let (output, target) = numbers(2);
    assert_snapshot!(error_of(counted("").update(&[output], &[target.narrow(0, 0, 1)])), @"plug-in `metric`: `update` failed: 4 outputs for 2 targets");
}
