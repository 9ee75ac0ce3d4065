//! Optimizers as written: PyTorch's option names, defaults and limits.

use super::super::optimizer::OptimizerSpec;
use crate::config::{ByHand, Item, Key, Kind, Table, by_hand, key};

const TYPES: [(&str, Read); 8] = [
    ("sgd", sgd),
    ("adam", |t| {
        adam(t, 0.0, |o| OptimizerSpec::Adam {
            lr: o.lr,
            betas: o.betas,
            eps: o.eps,
            weight_decay: o.weight_decay,
            amsgrad: o.amsgrad,
            maximize: o.maximize,
        })
    }),
    ("adamw", |t| {
        adam(t, 0.01, |o| OptimizerSpec::AdamW {
            lr: o.lr,
            betas: o.betas,
            eps: o.eps,
            weight_decay: o.weight_decay,
            amsgrad: o.amsgrad,
            maximize: o.maximize,
        })
    }),
    ("adagrad", adagrad),
    ("adadelta", adadelta),
    ("adamax", adamax),
    ("rmsprop", rmsprop),
    ("rprop", rprop),
];
type Read = fn(&Table<'_>) -> Option<OptimizerSpec>;

pub const OPTIMIZER: Key<ByHand> = key("optimizer", by_hand(|| Kind::Named("optimizer")))
    .needed_at_times("{ type = \"sgd\" }")
    .doc("How parameters are updated.");

/// The section, or an empty one.
pub(super) fn table<'a>(root: &Table<'a>) -> Table<'a> {
    root.item(&OPTIMIZER).and_then(|item| item.table()).unwrap_or_else(|| root.section(&OPTIMIZER))
}

pub(super) fn read(table: Table<'_>) -> Option<OptimizerSpec> {
    let read = table.need("type", "\"sgd\"", |item| item.choice(&TYPES))?;
    let spec = read(&table);
    for key in ["foreach", "fused", "capturable", "differentiable"] {
        table.refuse(key, "leave it out: it changes how PyTorch computes, not what");
    }
    table.finish();
    spec
}

fn lr(t: &Table<'_>, default: f64) -> f64 {
    t.or("lr", default, |item| item.number_that(|lr| lr > 0.0, "above 0"))
}

fn at_least_zero(t: &Table<'_>, key: &'static str, default: f64) -> f64 {
    t.or(key, default, |item| item.number_that(|x| x >= 0.0, "at least 0"))
}

fn weight_decay(t: &Table<'_>, default: f64) -> f64 {
    at_least_zero(t, "weight_decay", default)
}

fn flag(t: &Table<'_>, key: &'static str) -> bool {
    t.or(key, false, Item::flag)
}

/// Two numbers, each in its range.
fn pair(
    t: &Table<'_>,
    key: &'static str,
    default: [f64; 2],
    fits: fn([f64; 2]) -> bool,
    limit: &str,
) -> [f64; 2] {
    t.or(key, default, |item| {
        let entries = item.list()?;
        let numbers: Vec<_> = entries.iter().map(Item::number).collect();
        let numbers: Vec<f64> = numbers.into_iter().collect::<Option<_>>()?;
        match <[f64; 2]>::try_from(numbers) {
            Ok(pair) if fits(pair) => Some(pair),
            _ => {
                let [a, b] = default;
                item.wrong(format!("is not {limit}"), format!("PyTorch's default is [{a}, {b}]"));
                None
            }
        }
    })
}

fn betas(t: &Table<'_>) -> [f64; 2] {
    let fits = |betas: [f64; 2]| betas.iter().all(|beta| (0.0..1.0).contains(beta));
    pair(t, "betas", [0.9, 0.999], fits, "two numbers of at least 0 and below 1")
}

fn sgd(t: &Table<'_>) -> Option<OptimizerSpec> {
    let lr = lr(t, 1e-3);
    let momentum = at_least_zero(t, "momentum", 0.0);
    let dampening = t.or("dampening", 0.0, Item::number);
    let weight_decay = weight_decay(t, 0.0);
    let nesterov = t.or("nesterov", false, |item| {
        let nesterov = item.flag()?;
        if nesterov && (momentum == 0.0 || dampening != 0.0) {
            let problem = format!("needs a momentum and no dampening; there are {momentum} and {dampening}");
            item.wrong(problem, "for example momentum = 0.9, and leave dampening out");
        }
        Some(nesterov)
    });
    Some(OptimizerSpec::Sgd {
        lr,
        momentum,
        dampening,
        weight_decay,
        nesterov,
        maximize: flag(t, "maximize"),
    })
}

struct AdamOptions {
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    amsgrad: bool,
    maximize: bool,
}

fn adam(t: &Table<'_>, decay: f64, spec: fn(AdamOptions) -> OptimizerSpec) -> Option<OptimizerSpec> {
    Some(spec(AdamOptions {
        lr: lr(t, 1e-3),
        betas: betas(t),
        eps: at_least_zero(t, "eps", 1e-8),
        weight_decay: weight_decay(t, decay),
        amsgrad: flag(t, "amsgrad"),
        maximize: flag(t, "maximize"),
    }))
}

fn adagrad(t: &Table<'_>) -> Option<OptimizerSpec> {
    Some(OptimizerSpec::Adagrad {
        lr: lr(t, 1e-2),
        lr_decay: at_least_zero(t, "lr_decay", 0.0),
        weight_decay: weight_decay(t, 0.0),
        initial_accumulator_value: at_least_zero(t, "initial_accumulator_value", 0.0),
        eps: at_least_zero(t, "eps", 1e-10),
        maximize: flag(t, "maximize"),
    })
}

fn adadelta(t: &Table<'_>) -> Option<OptimizerSpec> {
    Some(OptimizerSpec::Adadelta {
        lr: lr(t, 1.0),
        rho: t.or("rho", 0.9, Item::probability),
        eps: at_least_zero(t, "eps", 1e-6),
        weight_decay: weight_decay(t, 0.0),
        maximize: flag(t, "maximize"),
    })
}

fn adamax(t: &Table<'_>) -> Option<OptimizerSpec> {
    Some(OptimizerSpec::Adamax {
        lr: lr(t, 2e-3),
        betas: betas(t),
        eps: at_least_zero(t, "eps", 1e-8),
        weight_decay: weight_decay(t, 0.0),
        maximize: flag(t, "maximize"),
    })
}

fn rmsprop(t: &Table<'_>) -> Option<OptimizerSpec> {
    Some(OptimizerSpec::RmsProp {
        lr: lr(t, 1e-2),
        alpha: at_least_zero(t, "alpha", 0.99),
        eps: at_least_zero(t, "eps", 1e-8),
        weight_decay: weight_decay(t, 0.0),
        momentum: at_least_zero(t, "momentum", 0.0),
        centered: flag(t, "centered"),
        maximize: flag(t, "maximize"),
    })
}

fn rprop(t: &Table<'_>) -> Option<OptimizerSpec> {
    let etas = |[minus, plus]: [f64; 2]| 0.0 < minus && minus < 1.0 && 1.0 < plus;
    let sizes = |[least, most]: [f64; 2]| 0.0 <= least && least <= most;
    Some(OptimizerSpec::Rprop {
        lr: lr(t, 1e-2),
        etas: pair(t, "etas", [0.5, 1.2], etas, "one number between 0 and 1 and one above 1"),
        step_sizes: pair(
            t,
            "step_sizes",
            [1e-6, 50.0],
            sizes,
            "the least and the most size of a step, from 0",
        ),
        maximize: flag(t, "maximize"),
    })
}
