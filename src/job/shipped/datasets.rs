//! The datasets inside the program.

use super::Shipped;
use crate::config::{
    AnyKey, Array, ByHand, Flag, Integer, Key, Kind, List, MOST, Number, Optional, Str, Words, array,
    at_least, by_hand, flag, integer, key, list, number, string, words,
};

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
        doc: "A table in CSV files: RFC 4180, of any size.",
        tensors: "Fields: `features` [columns], `target`; or those of `fields`",
        keys: &[
            &FILE,
            &HEADER,
            &DELIMITER,
            &FEATURES,
            &FEATURE_DTYPE,
            &TARGET,
            &TARGET_DTYPE,
            &TARGET_CLASSES,
            &FIELDS,
            &MISSING_VALUES,
            &IN_MEMORY_MB,
        ],
        files: &["file"],
    },
    Shipped {
        name: "images",
        doc: "PNG and JPEG files in a folder for each class, as torchvision's `ImageFolder` has them.",
        tensors: "Fields: `images` uint8 [channels, height, width], `labels` int64",
        keys: &[&FOLDER, &CHANNELS, &IMAGE_RESIZE, &CROP, &RANDOM_CROP, &FLIP, &SHIFT, &CACHE_MB],
        files: &["folder"],
    },
    Shipped {
        name: "text",
        doc: "Text for language models: the target is the input one further on.",
        tensors: "Fields: `input` and `target`, int64 [length]",
        keys: &[&TEXT_FILE, &LENGTH, &STRIDE, &UNIT, &TOKENIZER],
        files: &["file", "tokenizer"],
    },
    Shipped {
        name: "criteo",
        doc: "Criteo's logs of clicks, tab-separated.",
        tensors: "Fields: `dense` float32 [13], log(x + 1) of what is above 0, else 0; `categories` int64 [26], a \
                  hexadecimal number modulo its column's rows, 0 where there is none; `click` float32 [1]",
        keys: &[&LINES_FILE, &TABLE_ROWS, &IN_MEMORY_MB],
        files: &["file"],
    },
    Shipped {
        name: "npy",
        doc: "Arrays of NumPy, .npy or .npz, with the samples in their first dimension.",
        tensors: "Fields: each array, called as its file or as it is called in the .npz",
        keys: &[&ARRAYS_FILE, &ARRAYS, &IN_MEMORY_MB],
        files: &["file"],
    },
    Shipped {
        name: "parquet",
        doc: "Columns of numbers in Parquet files, uncompressed or by Snappy, gzip or LZ4 (not zstd).",
        tensors: "Fields: each column, int64 for whole numbers and float32 for others; or those of `fields`",
        keys: &[&LINES_FILE, &PARQUET_FIELDS, &GROUPS_MB],
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
        tensors: "Fields: `ids` int64 [3], a user, an item and a category as rows of one table; `click` float32 [1]. With \
                  `rows` those of Criteo's logs: `dense` float32 [numbers], `categories` int64 [columns], `click`",
        keys: &[&SAMPLES, &USERS, &ITEMS, &CATEGORIES, &COLUMNS, &NUMBERS, &SEED, &OFFSET],
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

const FILE: Key<ByHand> = key("file", by_hand(text_or_texts))
    .example("\"houses.csv\"")
    .doc("The file, or several, one after the other; the last part of a name may have `*` and `?`.");
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
const FIELDS: Key<Optional<ByHand>> = key("fields", by_hand(|| Kind::list(Kind::Table(CSV_FIELD)))).optional().doc(
    "In place of the six above: fields of any names. Each has `name` and `columns` (one, or a list), and for numbers `dtype`, \
     `missing` (a number or \"mean\", of the training samples) and `indicator` (behind each value whether it is missing); for \
     texts `categories = true` (numbered from 1 in alphabetical order as the training samples have them at least `min_count` \
     times; 0 is any other) or `classes`.",
);
static CSV_FIELD: &[&dyn AnyKey] = &[
    &FIELD_NAME,
    &FIELD_COLUMNS,
    &FIELD_DTYPE,
    &CATEGORIES_FOUND,
    &MIN_COUNT,
    &FIELD_CLASSES,
    &MISSING,
    &INDICATOR,
];
const FIELD_NAME: Key<Str> = key("name", string()).example("\"dense\"").doc("The field's name.");
const FIELD_COLUMNS: Key<ByHand> =
    key("columns", by_hand(|| Kind::Either(vec![column(), Kind::list(column())])))
        .example("[\"age\"]")
        .doc("Its columns, by name or position; one that is in no list is a scalar.");
const FIELD_DTYPE: Key<Optional<Words<()>>> =
    key("dtype", DTYPES).optional().doc("Of numbers; `float32` if nothing is said.");
const CATEGORIES_FOUND: Key<Flag> =
    key("categories", flag()).default("false").doc("Texts, as the training samples have them.");
const MIN_COUNT: Key<Optional<Integer>> = key("min_count", integer(1..=i64::MAX))
    .optional()
    .doc("Texts with fewer samples are 0 like unknown ones.");
const FIELD_CLASSES: Key<Optional<List<Str>>> = key("classes", list(string()))
    .optional()
    .doc("Texts in the order of their numbers from 0; others are errors.");
const MISSING: Key<Optional<ByHand>> =
    key("missing", by_hand(|| Kind::Either(vec![Kind::Number(number()), Kind::Words(vec!["mean"])])))
        .optional()
        .doc("What stands where there is no value; without it that is an error.");
const INDICATOR: Key<Flag> =
    key("indicator", flag()).default("false").doc("Behind each value 1 where it is missing, 0 elsewhere.");
const MISSING_VALUES: Key<Optional<List<Str>>> = key("missing_values", list(string()))
    .optional()
    .doc("Texts that stand for no value beside the empty one, such as \"NA\".");
const IN_MEMORY_MB: Key<Integer> = key("in_memory_mb", integer(0..=4096))
    .default("64")
    .doc("A table of more MiB of numbers stays on the disk, and rows are read when they are asked for.");
const DTYPES: Words<()> = words(&[("float32", ()), ("int64", ())]);

fn text_or_texts() -> Kind {
    Kind::Either(vec![Kind::Str, Kind::list(Kind::Str)])
}

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

const USERS: Key<Optional<Integer>> =
    key("users", integer(1..=1 << 31)).optional().doc("How many users there are.");
const ITEMS: Key<Optional<Integer>> =
    key("items", integer(1..=1 << 31)).optional().doc("How many items there are.");
const CATEGORIES: Key<Optional<Integer>> =
    key("categories", integer(1..=1 << 31)).optional().doc("How many categories of items there are.");
const COLUMNS: Key<Optional<List<Integer>>> = key("rows", list(integer(1..=1 << 31)))
    .optional()
    .doc("In place of these three: columns of categories, each with so many.");
const NUMBERS: Key<Optional<Integer>> = key("numbers", integer(1..=10_000))
    .optional()
    .doc("With `rows`: how many numbers a sample has beside them; 13 if nothing is said.");

const FOLDER: Key<Str> = key("folder", string()).example("\"train\"").doc("It has a folder for each class.");
const CHANNELS: Key<Integer> =
    key("channels", integer(1..=3)).default("3").doc("3 for red, green and blue, 1 for gray.");
const IMAGE_RESIZE: Key<Optional<ByHand>> = key("resize", by_hand(size)).optional().doc(
    "Brings the shorter side to a size, or both to height and width, bilinear and smoothed as Pillow does.",
);
const CROP: Key<Optional<ByHand>> = key("crop", by_hand(size))
    .optional()
    .doc("Cuts this much out of the middle: a size for both sides, or height and width.");
const RANDOM_CROP: Key<Flag> =
    key("random_crop", flag()).default("false").doc("Cuts it out anywhere, in training.");
const FLIP: Key<Flag> =
    key("flip", flag()).default("false").doc("Mirrors every other image, left to right, in training.");
const SHIFT: Key<Integer> = key("shift", integer(0..=16384))
    .default("0")
    .doc("Moves by so many pixels at most in either direction, in training; what comes in is black.");
const CACHE_MB: Key<Integer> = key("cache_mb", integer(0..=4096))
    .default("128")
    .doc("Decoded and resized images are kept, up to so many MiB for each thread, for the passes to come.");

fn size() -> Kind {
    let side = Kind::Integer { least: 1, most: 16384 };
    Kind::Either(vec![side.clone(), Kind::List { of: Box::new(side), count: Some(2), most: None }])
}

const TEXT_FILE: Key<ByHand> = key("file", by_hand(text_or_texts))
    .example("\"book.txt\"")
    .doc("The file, or several; the last part of a name may have `*` and `?`. No sample goes from one into the next.");
const LENGTH: Key<Integer> =
    key("length", integer(1..=1 << 24)).example("128").doc("How many numbers a sample has.");
const STRIDE: Key<Optional<Integer>> = key("stride", integer(1..=MOST))
    .optional()
    .doc("From one sample's beginning to the next one's; `length` without it.");
const UNIT: Key<Words<()>> = key("unit", words(&[("bytes", ()), ("characters", ()), ("tokens", ())]))
    .default("bytes")
    .doc(
        "What a number stands for: a byte (0 to 255, files of any size), a character of the training text (from 1, in the order \
         of Unicode; 0 is any other), or a token of `tokenizer`.",
    );
const TOKENIZER: Key<Optional<Str>> = key("tokenizer", string())
    .optional()
    .doc("A tokenizer.json, for `tokens`: each line is tokenized by itself, without special tokens.");

const LINES_FILE: Key<ByHand> = key("file", by_hand(text_or_texts))
    .example("\"train.txt\"")
    .doc("The file, or several, one after the other; the last part of a name may have `*` and `?`.");
const TABLE_ROWS: Key<ByHand> = key("rows", by_hand(table_rows))
    .example("100000")
    .doc("How many rows the tables have: a number for all columns, or 26, one for each.");

fn table_rows() -> Kind {
    let rows = Kind::Integer { least: 1, most: u32::MAX.into() };
    Kind::Either(vec![rows.clone(), Kind::List { of: Box::new(rows), count: Some(26), most: None }])
}

const ARRAYS_FILE: Key<ByHand> =
    key("file", by_hand(text_or_texts)).example("\"train.npz\"").doc("The file, or several.");
const ARRAYS: Key<Optional<List<Str>>> = key("fields", list(string()))
    .optional()
    .doc("The arrays that are wanted, in order; all of them without it.");

const PARQUET_FIELDS: Key<Optional<ByHand>> =
    key("fields", by_hand(|| Kind::list(Kind::Table(PARQUET_FIELD)))).optional().doc(
        "Fields of any names. Each has `name`, `columns` (one, or a list), and may have `dtype` and `missing`, a number that \
         stands where there is no value.",
    );
static PARQUET_FIELD: &[&dyn AnyKey] = &[&FIELD_NAME, &PARQUET_COLUMNS, &FIELD_DTYPE, &PARQUET_MISSING];
const PARQUET_COLUMNS: Key<ByHand> = key("columns", by_hand(text_or_texts))
    .example("[\"age\"]")
    .doc("Its columns; one that is in no list is a scalar.");
const PARQUET_MISSING: Key<Optional<Number>> = key("missing", number())
    .optional()
    .doc("What stands where there is no value; without it that is an error.");
const GROUPS_MB: Key<Integer> = key("in_memory_mb", integer(0..=4096)).default("64").doc(
    "Row groups of so many MiB of numbers stay in memory, at least one; others are read again when they are asked for.",
);
