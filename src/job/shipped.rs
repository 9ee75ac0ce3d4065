//! The plug-ins inside the program: what they are and which parameters they take. `check` refuses others, and the schema and
//! the reference tell of these.

use crate::config::{
    AnyKey, Array, By, ByHand, Flag, Integer, Item, Key, Kind, List, MOST, Number, Optional, Refused, Str,
    Variant, Words, array, at_least, between, by, by_hand, flag, integer, key, list, refused, string, words,
};

/// One of them.
pub struct Shipped {
    pub name: &'static str,
    /// What it is, in one line.
    pub doc: &'static str,
    /// The fields of a dataset, or what a loss expects and measures.
    pub tensors: &'static str,
    /// Its parameters: in `data.train` and `data.test`, or in `loss.params`.
    pub keys: &'static [&'static dyn AnyKey],
    /// Those of them that name files in `data.root`.
    pub files: &'static [&'static str],
}

/// Data inside the program: what may stand after `builtin:` in `data.root`.
pub const BUILTIN_DATA: [&str; 1] = ["digits"];

pub static DATASETS: &[Shipped] = &[
    Shipped {
        name: "idx",
        doc: "Images and labels in IDX files, the format of MNIST; finds `X` as `X.gz`, too.",
        tensors: "Fields: `images` as in the file (MNIST: uint8 [28, 28]), `labels` int64",
        keys: &[&IMAGES, &LABELS, &RESIZE, &RESIZE_FILTER],
        files: &["images", "labels"],
    },
    Shipped {
        name: "csv",
        doc: "A table in a CSV file.",
        tensors: "Fields: `features` [columns], `target`",
        keys: &[
            &FILE,
            &HEADER,
            &DELIMITER,
            &FEATURES,
            &FEATURE_DTYPE,
            &TARGET,
            &TARGET_DTYPE,
            &TARGET_CLASSES,
        ],
        files: &["file"],
    },
    Shipped {
        name: "synthetic",
        doc: "Made-up samples of a task that can be learnt.",
        tensors: "Fields: `features` and `target`, or `images` and `labels`",
        keys: &[&KIND, &SAMPLES, &SHAPE, &CLASSES, &TARGETS, &NOISE, &SEED, &OFFSET],
        files: &[],
    },
    Shipped {
        name: "bags",
        doc: "Made-up bags of indices, as in PyTorch's tutorial on combining DDP with RPC: groups of 20 to 50 indices.",
        tensors: "Fields: `bags` int64 [10], indices below `rows`, padded with -1; `target` int64",
        keys: &[&SAMPLES, &ROWS, &BAGS, &BAG_CLASSES, &SEED],
        files: &[],
    },
    Shipped {
        name: "clicks",
        doc: "A made-up log of a recommender: few users and items come very often, and a hidden model decides who clicks.",
        tensors: "Fields: `ids` int64 [3], a user, an item and a category as rows of one table; `click` float32 [1]",
        keys: &[&SAMPLES, &USERS, &ITEMS, &CATEGORIES, &SEED, &OFFSET],
        files: &[],
    },
];

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

const IMAGES: Key<Str> =
    key("images", string()).example("\"train-images-idx3-ubyte\"").doc("The file of images.");
const LABELS: Key<Optional<Str>> =
    key("labels", string()).optional().doc("The file of labels; without it there is no field `labels`.");
const RESIZE: Key<Optional<Array<Integer, 2>>> = key("resize", array(integer(1..=16384)))
    .optional()
    .doc("Height and width that all images are brought to.");
const RESIZE_FILTER: Key<Words<()>> =
    key("resize_filter", words(&[("nearest", ()), ("bilinear", ())])).default("bilinear").doc("How.");

const FILE: Key<Str> = key("file", string()).example("\"houses.csv\"").doc("The file.");
const HEADER: Key<Optional<Flag>> = key("header", flag())
    .optional()
    .doc("Whether the first line has the columns' names; it should, if nothing is said.");
const DELIMITER: Key<Str> =
    key("delimiter", string()).default("\",\"").doc("One ASCII character between columns.");
const FEATURES: Key<Optional<ByHand>> = key("features", by_hand(|| Kind::list(column())))
    .optional()
    .doc("The columns that the model sees, by name or by position from 0; without it all but the target.");
const FEATURE_DTYPE: Key<Words<()>> = key("feature_dtype", DTYPES).default("float32").doc("Their elements.");
const TARGET: Key<Optional<ByHand>> =
    key("target", by_hand(|| Kind::Either(vec![column(), Kind::list(column())])))
        .optional()
        .doc("The column, or columns, of the target; without it there is no field `target`.");
const TARGET_DTYPE: Key<Optional<Words<()>>> = key("target_dtype", DTYPES)
    .optional()
    .doc("Its elements: `float32` if nothing is said, or `int64` where `target_classes` are.");
const TARGET_CLASSES: Key<Optional<List<Str>>> = key("target_classes", list(string()))
    .optional()
    .doc("The texts that the target's column has, in the order of their class numbers.");
const DTYPES: Words<()> = words(&[("float32", ()), ("int64", ())]);

fn column() -> Kind {
    Kind::Either(vec![Kind::Str, Kind::Integer { least: 0, most: MOST }])
}

const KIND: Key<Words<()>> =
    key("kind", words(&[("regression", ()), ("classification", ()), ("images", ())]))
        .example("\"classification\"")
        .doc("The task.");
const SAMPLES: Key<Integer> =
    key("samples", integer(1..=i64::MAX)).example("10000").doc("How many samples there are.");
const SHAPE: Key<List<Integer>> =
    key("shape", list(integer(1..=MOST))).example("[16]").doc("The shape of one sample's features or image.");
const CLASSES: Key<Integer> =
    key("classes", integer(1..=MOST)).default("2").doc("How many classes there are.");
const TARGETS: Key<Integer> =
    key("targets", integer(1..=MOST)).default("1").doc("How many numbers a regression's target has.");
const NOISE: Key<Number> = key("noise", at_least(0.0))
    .default("0.1")
    .doc("The deviation of what is added to targets (regression) or features; of images 1 is a fifth of the range.");
const SEED: Key<Integer> =
    key("seed", integer(0..=i64::MAX)).default("0").doc("Another seed is another task.");
const OFFSET: Key<Integer> = key("offset", integer(0..=i64::MAX))
    .default("0")
    .doc("The number of the first sample: a test set is the same seed behind the training set's samples.");

const ROWS: Key<Integer> = key("rows", integer(1..=i64::MAX)).default("100").doc("Indices are below it.");
const BAGS: Key<Integer> =
    key("bags", integer(2..=50)).default("8").doc("Bags in a group: a job's batch size.");
const BAG_CLASSES: Key<Integer> =
    key("classes", integer(1..=i64::MAX)).default("8").doc("How many classes there are.");

const USERS: Key<Integer> =
    key("users", integer(1..=1 << 31)).example("1000").doc("How many users there are.");
const ITEMS: Key<Integer> =
    key("items", integer(1..=1 << 31)).example("1000").doc("How many items there are.");
const CATEGORIES: Key<Integer> =
    key("categories", integer(1..=1 << 31)).example("10").doc("How many categories of items there are.");

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

impl Shipped {
    /// Its parameters as one of several tables.
    pub(super) fn variant(&self) -> Variant {
        Variant { name: self.name, doc: self.doc, keys: self.keys }
    }
}

pub(super) fn names(all: &'static [Shipped]) -> Vec<&'static str> {
    all.iter().map(|shipped| shipped.name).collect()
}

pub fn find(all: &'static [Shipped], name: &str) -> Option<&'static Shipped> {
    all.iter().find(|shipped| shipped.name == name)
}
