//! The losses inside the program.

use super::Shipped;
use crate::config::{
    By, ByHand, Item, Key, Kind, Number, Optional, Refused, at_least, between, by, by_hand, key, refused,
};

pub static LOSSES: &[Shipped] = &[
    Shipped {
        name: "nll",
        doc: "PyTorch's `nll_loss`.",
        tensors: "Expects log-probabilities [n, classes, ...] and int64 [n, ...]; metric `accuracy`",
        keys: &[&REDUCTION, &WEIGHT, &IGNORE_INDEX, &SIZE_AVERAGE, &REDUCE],
        files: &[],
    },
    Shipped {
        name: "cross_entropy",
        doc: "PyTorch's `cross_entropy`, over scores before any softmax.",
        tensors: "Expects scores [n, classes, ...] and int64 [n, ...]; metric `accuracy`",
        keys: &[&LABEL_SMOOTHING, &REDUCTION, &WEIGHT, &IGNORE_INDEX, &SIZE_AVERAGE, &REDUCE],
        files: &[],
    },
    Shipped {
        name: "mse",
        doc: "PyTorch's `mse_loss`.",
        tensors: "Expects output and target of one shape (sizes of 1 aside); metric `mae`",
        keys: &[&REDUCTION, &SIZE_AVERAGE, &REDUCE],
        files: &[],
    },
    Shipped {
        name: "bce_with_logits",
        doc: "PyTorch's `binary_cross_entropy_with_logits`, over scores before the sigmoid.",
        tensors: "Expects scores and targets from 0 to 1 of one shape (sizes of 1 aside); metric `accuracy`",
        keys: &[&POS_WEIGHT, &REDUCTION, &WEIGHT, &SIZE_AVERAGE, &REDUCE],
        files: &[],
    },
];

const REDUCTION: Key<By<()>> = key("reduction", by(reduction, || Kind::Words(vec!["mean"])))
    .default("mean")
    .doc("The mean over the batch: the only one that a job can have.");
const LABEL_SMOOTHING: Key<Number> = key("label_smoothing", between(0.0, 1.0))
    .default("0.0")
    .doc("The part of the target's probability that is spread over all classes.");
const POS_WEIGHT: Key<Optional<ByHand>> = key("pos_weight", by_hand(weights))
    .optional()
    .doc("How much a positive element weighs: one number, or one for each position of the last dimension.");

/// The mean is all that a job can train with.
fn reduction(item: &Item<'_>) -> Option<()> {
    if item.text()? == "sum" {
        let problem = "cannot be trained with: the job averages over batches and trainers by their samples";
        item.wrong(
            problem,
            "use \"mean\", and multiply optimizer.lr by the elements that the sum would be over",
        );
        return None;
    }
    item.choice(&[("mean", ())])
}

const OWN: &str = "leave it out; `pstrain plugin new NAME --kind loss` starts a loss of your own";
const WEIGHT: Refused = refused("weight", OWN);
const IGNORE_INDEX: Refused = refused("ignore_index", OWN);
const SIZE_AVERAGE: Refused = refused("size_average", "leave it out: PyTorch has replaced it by reduction");
const REDUCE: Refused = refused("reduce", "leave it out: PyTorch has replaced it by reduction");

fn weights() -> Kind {
    Kind::Either(vec![Kind::Number(at_least(0.0)), Kind::list(Kind::Number(at_least(0.0)))])
}
