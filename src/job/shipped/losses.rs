//! The losses inside the program.

use super::Shipped;
use crate::config::{
    By, ByHand, Flag, Integer, Item, Key, Kind, MOST, Number, Optional, Refused, Words, above, at_least,
    between, by, by_hand, flag, integer, key, refused, words,
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
        keys: &[&POS_WEIGHT, &ELEMENT_WEIGHT, &REDUCTION, &SIZE_AVERAGE, &REDUCE],
        files: &[],
    },
    Shipped {
        name: "huber",
        doc: "PyTorch's `huber_loss`.",
        tensors: "Expects output and target of one shape (sizes of 1 aside); metric `mae`",
        keys: &[&DELTA, &REDUCTION],
        files: &[],
    },
    Shipped {
        name: "kl_div",
        doc: "PyTorch's `kl_div`.",
        tensors: "Expects log-probabilities and probabilities of one shape (sizes of 1 aside)",
        keys: &[&KL_REDUCTION, &LOG_TARGET, &SIZE_AVERAGE, &REDUCE],
        files: &[],
    },
    Shipped {
        name: "focal",
        doc: "The focal loss (Lin et al. 2017) over scores: torchvision's `sigmoid_focal_loss`, and its form over classes.",
        tensors: "Expects scores and targets from 0 to 1 of one shape (sizes of 1 aside), or scores [n, classes, ...] and int64 \
                  [n, ...]; metric `accuracy`",
        keys: &[&ALPHA, &GAMMA, &IGNORE_INDEX, &REDUCTION],
        files: &[],
    },
    Shipped {
        name: "triplet",
        doc: "PyTorch's `triplet_margin_loss`, with `eps` 1e-6.",
        tensors: "Expects three outputs of one shape, anchor, positive and negative, and no target (`loss.target = []`); metric \
                  `ordered`, the part of the triplets whose positive is nearer",
        keys: &[&MARGIN, &P, &SWAP, &REDUCTION, &SIZE_AVERAGE, &REDUCE],
        files: &[],
    },
    Shipped {
        name: "bpr",
        doc: "Bayesian personalised ranking (Rendle et al. 2009): the mean of -log(sigmoid(positive - negative)).",
        tensors: "Expects two outputs of one shape, the scores of a positive and of a negative item, and no target \
                  (`loss.target = []`); metric `ordered`, the part of the pairs in the right order",
        keys: &[&REDUCTION],
        files: &[],
    },
];

const REDUCTION: Key<Words<()>> = key("reduction", words(&[("mean", ()), ("sum", ())])).default("mean").doc(
    "The mean over a batch, or the sum: then gradients of a step's batches and of the trainers of a round are added up. Shown \
     is the sum divided by the samples, or by what targets weigh.",
);
const LABEL_SMOOTHING: Key<Number> = key("label_smoothing", between(0.0, 1.0))
    .default("0.0")
    .doc("The part of the target's probability that is spread over all classes.");
const POS_WEIGHT: Key<Optional<ByHand>> = key("pos_weight", by_hand(weights))
    .optional()
    .doc("How much a positive element weighs: one number, or one for each position of the last dimension.");

const WEIGHT: Key<Optional<By<()>>> = key("weight", by(class_weights, || Kind::list(Kind::Number(at_least(0.0)))))
    .optional()
    .doc("How much each class weighs, a number for each; the mean is divided by the sum of the weights of the targets.");
const IGNORE_INDEX: Key<Optional<Integer>> = key("ignore_index", integer(-MOST..=MOST))
    .optional()
    .doc("A number in place of a class for targets that do not count; without it there is none, and -100 is no exception.");
const ELEMENT_WEIGHT: Key<Optional<ByHand>> = key("weight", by_hand(weights)).optional().doc(
    "How much an element weighs: one number, or one for each position of the last dimension; the mean is over the elements \
     all the same.",
);
const DELTA: Key<Number> =
    key("delta", above(0.0)).default("1.0").doc("The error up to which the loss is a square.");
const KL_REDUCTION: Key<Words<()>> = key("reduction", words(&[("batchmean", ()), ("mean", ()), ("sum", ())]))
    .default("batchmean")
    .doc("`batchmean`: the divergence, the mean over the samples; `mean`, PyTorch's default: over all elements; `sum`: of them.");
const LOG_TARGET: Key<Flag> =
    key("log_target", flag()).default("false").doc("Whether the targets are log-probabilities.");
const ALPHA: Key<Optional<ByHand>> = key("alpha", by_hand(alpha)).optional().doc(
    "How much yes weighs, no weighing 1 - alpha: 0.25 if nothing is said, and -1 for neither; over classes a list, of how much \
     each weighs, without which all weigh 1.",
);
const GAMMA: Key<Number> =
    key("gamma", at_least(0.0)).default("2.0").doc("How much less counts what is nearly right.");
const MARGIN: Key<Number> = key("margin", above(0.0))
    .default("1.0")
    .doc("By how much the positive is to be nearer than the negative.");
const P: Key<Number> = key("p", at_least(1.0)).default("2.0").doc("The norm of a difference.");
const SWAP: Key<Flag> = key("swap", flag()).default("false").doc(
    "Whether the distance of positive and negative counts where it is less than that of anchor and negative.",
);

const SIZE_AVERAGE: Refused = refused("size_average", "leave it out: PyTorch has replaced it by reduction");
const REDUCE: Refused = refused("reduce", "leave it out: PyTorch has replaced it by reduction");

fn weights() -> Kind {
    Kind::Either(vec![Kind::Number(at_least(0.0)), Kind::list(Kind::Number(at_least(0.0)))])
}

fn alpha() -> Kind {
    Kind::Either(vec![Kind::Number(at_least(-1.0).at_most(1.0)), Kind::list(Kind::Number(at_least(0.0)))])
}

/// A number from 0 on for each class, at least one above 0.
fn class_weights(item: &Item<'_>) -> Option<()> {
    let weights: Option<Vec<f64>> =
        item.list()?.iter().map(|entry| entry.number_that(|weight| weight >= 0.0, "at least 0")).collect();
    if weights?.iter().all(|&weight| weight == 0.0) {
        item.wrong(
            "has no weight above 0",
            "give a number for each class, 1 for one that weighs as much as others",
        );
        return None;
    }
    Some(())
}
