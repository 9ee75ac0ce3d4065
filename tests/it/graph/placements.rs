//! A DLRM, two towers, a diamond and a ConvNet, each under many placements, of which a third run by default. Real processes.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::program::*;
use crate::support::runs_by_default;
use pstrain::model;
use tch::{Kind, Tensor};

/// Below it two sums of the same numbers in other orders stay, over 50 steps.
const CLOSE: f64 = 1e-5;

/// Where a module lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// On one rank of its own, which both trainers call.
    Remote,
    /// On the rank of the module that is called so, too.
    With(&'static str),
    /// On two ranks, each called by one trainer.
    RemoteReplicas,
    /// Two stages on two ranks.
    Stages,
    Replicas,
    /// A table cut over two ranks.
    Rows,
    Hash,
    /// Computed by each trainer, with parameters on two servers.
    Caller,
}
use Place::{Caller, Hash, Remote, RemoteReplicas, Replicas, Rows, Stages, With};

impl Place {
    /// The roles of a module, and the lines that place it there.
    fn written(self, module: &str) -> (Vec<(String, u32)>, String) {
        let own = |ranks| vec![(module.to_owned(), ranks)];
        let on = format!("place = \"{module}\"");
        match self {
            Remote => (own(1), on),
            With(other) => (Vec::new(), format!("place = \"{other}\"")),
            RemoteReplicas => (own(2), on),
            Replicas => (Vec::new(), "place = \"trainer\"".into()),
            Stages => {
                let stages = ["front", "back"].map(|stage| format!("{module}-{stage}"));
                let place = format!("place = [\"{}\", \"{}\"]", stages[0], stages[1]);
                (stages.into_iter().map(|role| (role, 1)).collect(), place)
            }
            Rows => (own(2), format!("{on}\nshards = \"rows\"")),
            Hash => (own(2), format!("{on}\nshards = \"hash\"")),
            Caller => (own(2), format!("{on}\nrun = \"caller\"")),
        }
    }
}

/// A model as `graph.py` has it: each module's name, and what it takes and is made of.
pub(super) struct Model {
    pub name: &'static str,
    modules: &'static [(&'static str, &'static str)],
    samples: Samples,
}

/// Which samples a model has, and its loss.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Samples {
    /// `features`, four ids, and `target`, four numbers.
    Numbers,
    /// Criteo's: `dense`, `ids` of a column each, and `click`; also bags and their weights, and an `image` of the first numbers.
    Clicks,
    /// `numbers`, four, and two targets: `turned`, the same the other way round, and `half` of them.
    Halves,
}

pub(super) const DLRM: Model = Model {
    name: "dlrm",
    modules: &[
        (
            "bottom",
            "from = \"target\"\ninput = [4]\nlayers = [{ type = \"linear\", in_features = 4, out_features = 8 }, \"relu\"]",
        ),
        (
            "tables",
            "from = \"features\"\ninput = [4]\ninput_dtype = \"int64\"\n\
             layers = [{ type = \"embedding\", num_embeddings = 60, embedding_dim = 8 }]",
        ),
        (
            "top",
            "from = [\"bottom\", \"tables\"]\nlayers = [\"dot_interaction\", \
             { type = \"linear\", in_features = 18, out_features = 6 }, \"tanh\", \
             { type = \"linear\", in_features = 6, out_features = 4 }]",
        ),
    ],
    samples: Samples::Numbers,
};

/// A DLRM of Criteo's shape, with a table for each column.
pub(super) const COLUMNS: Model = Model {
    name: "columns",
    modules: &[
        (
            "bottom",
            "from = \"dense\"\ninput = [13]\nlayers = [{ type = \"linear\", in_features = 13, out_features = 8 }, \"relu\", \
             { type = \"linear\", in_features = 8, out_features = 4 }]",
        ),
        (
            "tables",
            "from = \"ids\"\ninput = [26]\ninput_dtype = \"int64\"\n\
             layers = [{ type = \"embedding\", embedding_dim = 4, num_embeddings = \
             [12, 3, 40, 7, 1, 25, 9, 30, 2, 18, 5, 33, 11, 4, 21, 6, 14, 2, 28, 8, 3, 16, 10, 37, 13, 5] }]",
        ),
        (
            "top",
            "from = [\"bottom\", \"tables\"]\nlayers = [\"dot_interaction\", \
             { type = \"linear\", in_features = 355, out_features = 6 }, \"tanh\", \
             { type = \"linear\", in_features = 6, out_features = 1 }]",
        ),
    ],
    samples: Samples::Clicks,
};

/// Bags whose weights another module gives, and a bag for each of two columns, with weights among the samples.
pub(super) const BAGS: Model = Model {
    name: "bags",
    modules: &[
        (
            "mix",
            "from = \"dense\"\ninput = [13]\nlayers = [{ type = \"linear\", in_features = 13, out_features = 3 }, \"tanh\"]",
        ),
        (
            "bag",
            "from = [\"bag0\", \"mix\"]\ninputs = { bag0 = { shape = [3], dtype = \"int64\" } }\n\
             layers = [{ type = \"embedding_bag\", num_embeddings = 20, embedding_dim = 4, mode = \"sum\", \
             per_sample_weights = true }]",
        ),
        (
            "columns",
            "from = [\"bag0\", \"bag1\", \"weights0\", \"weights1\"]\n\
             inputs = { bag0 = { shape = [3], dtype = \"int64\" }, bag1 = { shape = [2], dtype = \"int64\" }, \
             weights0 = { shape = [3] }, weights1 = { shape = [2] } }\n\
             layers = [{ type = \"embedding_bag\", num_embeddings = [20, 11], embedding_dim = 4, mode = \"sum\", \
             per_sample_weights = true }]",
        ),
        (
            "top",
            "from = [\"bag\", \"columns\"]\nlayers = [\"dot_interaction\", \
             { type = \"linear\", in_features = 7, out_features = 1 }]",
        ),
    ],
    samples: Samples::Clicks,
};

pub(super) const TOWERS: Model = Model {
    name: "towers",
    modules: &[
        (
            "user",
            "from = \"features\"\ninput = [4]\ninput_dtype = \"int64\"\n\
             layers = [{ type = \"embedding_bag\", num_embeddings = 60, embedding_dim = 8, mode = \"sum\" }, \
             { type = \"linear\", in_features = 8, out_features = 8 }, \"tanh\"]",
        ),
        (
            "item",
            "from = \"target\"\ninput = [4]\nlayers = [{ type = \"linear\", in_features = 4, out_features = 6 }, \"tanh\", \
             { type = \"linear\", in_features = 6, out_features = 8 }]",
        ),
        (
            "head",
            "from = [\"user\", \"item\"]\nlayers = [\"mul\", { type = \"linear\", in_features = 8, out_features = 4 }]",
        ),
    ],
    samples: Samples::Numbers,
};

/// The output of `a` has three consumers.
pub(super) const DIAMOND: Model = Model {
    name: "diamond",
    modules: &[
        (
            "a",
            "from = \"target\"\ninput = [4]\nlayers = [{ type = \"linear\", in_features = 4, out_features = 8 }, \"tanh\"]",
        ),
        ("b", "from = \"a\"\nlayers = [{ type = \"linear\", in_features = 8, out_features = 8 }, \"tanh\"]"),
        ("c", "from = \"a\"\nlayers = [{ type = \"linear\", in_features = 8, out_features = 5 }, \"relu\"]"),
        (
            "d",
            "from = [\"b\", \"c\", \"a\"]\nlayers = [\"concat\", { type = \"linear\", in_features = 21, out_features = 4 }]",
        ),
    ],
    samples: Samples::Numbers,
};

/// Twelve numbers as an image of one channel.
pub(super) const CONV: Model = Model {
    name: "conv",
    modules: &[
        (
            "convs",
            "from = \"image\"\ninput = [12]\nlayers = [{ type = \"reshape\", shape = [1, 3, 4] }, \
             { type = \"conv2d\", in_channels = 1, out_channels = 4, kernel_size = 3, padding = 1 }, \"relu\", \
             { type = \"max_pool2d\", kernel_size = 2, stride = 1 }, \
             { type = \"conv2d\", in_channels = 4, out_channels = 3, kernel_size = 2 }, \"tanh\", \"flatten\"]",
        ),
        (
            "head",
            "from = \"convs\"\nlayers = [{ type = \"linear\", in_features = 6, out_features = 5 }, \"tanh\", \
             { type = \"linear\", in_features = 5, out_features = 1 }]",
        ),
    ],
    samples: Samples::Clicks,
};

/// Two outputs, each with a target.
pub(super) const HEADS: Model = Model {
    name: "heads",
    modules: &[
        (
            "body",
            "from = \"numbers\"\ninput = [4]\nlayers = [{ type = \"linear\", in_features = 4, out_features = 8 }, \"tanh\"]",
        ),
        (
            "left",
            "from = \"body\"\nlayers = [{ type = \"linear\", in_features = 8, out_features = 6 }, \"tanh\", \
             { type = \"linear\", in_features = 6, out_features = 4 }]",
        ),
        ("right", "from = \"body\"\nlayers = [{ type = \"linear\", in_features = 8, out_features = 2 }]"),
    ],
    samples: Samples::Halves,
};

/// TorchScript that takes two fields and gives two outputs.
pub(super) const SCRIPT: Model = Model {
    name: "script",
    modules: &[
        (
            "both",
            "from = [\"features\", \"target\"]\n\
             inputs = { features = { shape = [4], dtype = \"int64\" }, target = { shape = [4] } }\n\
             torchscript = \"DATA/graph_crossed.pt\"\n\
             outputs = [{ name = \"product\", shape = [8] }, { name = \"mixed\", shape = [8] }]",
        ),
        (
            "head",
            "from = [\"both.product\", \"both.mixed\"]\nlayers = [\"concat\", \
             { type = \"linear\", in_features = 16, out_features = 6 }, \"tanh\", \
             { type = \"linear\", in_features = 6, out_features = 4 }]",
        ),
    ],
    samples: Samples::Numbers,
};

impl Samples {
    fn written(self) -> String {
        match self {
            Samples::Numbers => {
                "[data.train]\nfile = \"graph.csv\"\nfeatures = [\"id0\", \"id1\", \"id2\", \"id3\"]\n\
                 feature_dtype = \"int64\"\ntarget = [\"x0\", \"x1\", \"x2\", \"x3\"]\n\
                 [loss]\nplugin = \"mse\"\ntarget = \"target\"\n"
                    .into()
            }
            Samples::Halves => {
                let fields = "file = \"graph.csv\"\nfields = [{ name = \"numbers\", columns = [\"x0\", \"x1\", \"x2\", \"x3\"] }, \
                              { name = \"turned\", columns = [\"x3\", \"x2\", \"x1\", \"x0\"] }, \
                              { name = \"half\", columns = [\"x2\", \"x3\"] }]\n";
                format!(
                    "[data.train]\n{fields}[data.test]\n{fields}[loss]\nplugin = {:?}\n\
                     from = [\"left\", \"right\"]\ntarget = [\"turned\", \"half\"]\n",
                    heads()
                )
            }
            Samples::Clicks => {
                let columns = |letter: char, count: usize| {
                    (0..count).map(|nth| format!("{letter}{nth}")).collect::<Vec<String>>()
                };
                let fields = format!(
                    "file = \"graph_columns.csv\"\nfields = [{{ name = \"dense\", columns = {:?} }}, \
                     {{ name = \"ids\", columns = {:?}, dtype = \"int64\" }}, \
                     {{ name = \"image\", columns = {:?} }}, {{ name = \"bag0\", columns = [\"b0\", \"b1\", \"b2\"], dtype = \"int64\" }}, \
                     {{ name = \"bag1\", columns = [\"b3\", \"b4\"], dtype = \"int64\" }}, \
                     {{ name = \"weights0\", columns = [\"x0\", \"x1\", \"x2\"] }}, \
                     {{ name = \"weights1\", columns = [\"x3\", \"x4\"] }}, \
                     {{ name = \"click\", columns = [\"click\"] }}]\n",
                    columns('x', 13),
                    columns('c', 26),
                    columns('x', 12),
                );
                format!(
                    "[data.train]\n{fields}[data.test]\n{fields}\
                     [loss]\nplugin = \"bce_with_logits\"\ntarget = \"click\"\n"
                )
            }
        }
    }
}

/// The loss of several outputs.
fn heads() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("plugins/dist/testing_heads.wasm")
}

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub(super) fn job_of(model: &Model, places: &[Place]) -> String {
    let (mut roles, mut modules) = (String::new(), String::new());
    for ((name, made_of), place) in model.modules.iter().zip(places) {
        let (own, place) = place.written(name);
        for (role, ranks) in own {
            writeln!(roles, "{role} = {ranks}").unwrap();
        }
        let made_of = made_of.replace("DATA", &data("").display().to_string());
        writeln!(modules, "[modules.{name}]\n{place}\n{made_of}").unwrap();
    }
    let job = format!(
        "name = \"graph\"\nseed = 3\n[roles]\ntrainer = 2\n{roles}{modules}\n\
         [data]\nplugin = \"csv\"\nroot = {root:?}\nshuffle = false\nfractions = [0.5, 0.5]\n{data_and_loss}\
         [optimizer]\ntype = \"sgd\"\nlr = 0.1\n\
         [train]\nrole = \"trainer\"\nsteps = 50\nbatch_size = 8\n",
        root = data(""),
        data_and_loss = model.samples.written(),
    );
    let rounds = places.iter().all(|place| matches!(place, Replicas | RemoteReplicas));
    if rounds { job } else { job + "consistency = \"bsp\"\n" }
}

fn train(model: &Model, places: &[Place], settings: &[&str]) -> Vec<(String, Tensor)> {
    model::load(&crate::program::model(run(model, places, settings).path())).unwrap()
}

/// Leaves the run folder in the one that is returned.
pub(super) fn run(model: &Model, places: &[Place], settings: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job_of(model, places)).unwrap();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), settings)), 0);
    folder
}

#[track_caller]
fn assert_is_pytorchs(model: &Model, places: &[Place], settings: &[&str]) {
    assert_is(model, "", places, settings);
}

/// `how` it was trained there.
#[track_caller]
fn assert_is(model: &Model, how: &str, places: &[Place], settings: &[&str]) {
    if !runs_by_default() {
        return;
    }
    assert_are(model, how, places, settings, &train(model, places, settings));
}

#[track_caller]
fn assert_are(model: &Model, how: &str, places: &[Place], settings: &[&str], trained: &[(String, Tensor)]) {
    let (name, difference) = farthest(model, how, places, trained);
    assert!(difference <= CLOSE, "{}, {places:?}, {settings:?}, {name}: {difference}", model.name);
}

/// Which of the tensors is farthest from PyTorch's, and how far in a number.
#[track_caller]
fn farthest(model: &Model, how: &str, places: &[Place], trained: &[(String, Tensor)]) -> (String, f64) {
    let cut = places.iter().any(|place| matches!(place, Rows | Hash));
    let figures = model::load(&data("graph.safetensors")).unwrap();
    let of_model = format!("{}{}{how}/", model.name, if cut { "_rows" } else { "" });
    let figures: Vec<_> = figures
        .into_iter()
        .filter_map(|(name, figure)| Some((name.strip_prefix(&of_model)?.to_owned(), figure)))
        .collect();
    let is_ids = |name: &str| name.ends_with(".ids");
    let saved = trained.iter().filter(|(name, _)| !is_ids(name)).count();
    assert_eq!(saved, figures.len(), "{places:?}");
    let find = |wanted: &str| trained.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    let mut farthest = (String::new(), 0.0);
    for (name, mut figure) in figures {
        let found = find(&name).unwrap_or_else(|| panic!("{places:?}: {name} was not saved"));
        let ids = name.strip_suffix("weight").and_then(|table| find(&format!("{table}ids")));
        if let Some(ids) = ids {
            figure = figure.index_select(0, ids);
        }
        let difference = (found - figure).abs().max().double_value(&[]);
        if difference >= farthest.1 || difference.is_nan() {
            farthest = (name, difference);
        }
    }
    farthest
}

#[test]
fn a_dlrm_equals_one_process_under_every_placement() {
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Remote, Replicas],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, Rows, Caller],
        [Replicas, Hash, RemoteReplicas],
        [Replicas, Replicas, Replicas],
        [Remote, With("bottom"), Stages],
    ] {
        assert_is_pytorchs(&DLRM, &places, &[]);
    }
    assert_is_pytorchs(&DLRM, &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
}

#[test]
fn a_dlrm_with_a_table_for_each_column_equals_one_process_under_every_placement() {
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Remote, Replicas],
        [Replicas, Rows, Replicas],
        [Replicas, Hash, Remote],
        [Caller, Caller, Caller],
        [Replicas, Replicas, Replicas],
        [Caller, Hash, RemoteReplicas],
        [Remote, Rows, Caller],
    ] {
        assert_is_pytorchs(&COLUMNS, &places, &[]);
    }
    assert_is_pytorchs(&COLUMNS, &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
}

#[test]
fn weighted_bags_equal_one_process_under_every_placement() {
    // Tables that are cut start from rows of their own, so both are or none.
    for places in [
        [Remote, Remote, Remote, Remote],
        [Replicas, Rows, Hash, Replicas],
        [Remote, Hash, Rows, Replicas],
        [Caller, Hash, Hash, Caller],
        [Replicas, Remote, Caller, Remote],
        [Remote, With("mix"), Caller, Remote],
        [Caller, Rows, Rows, RemoteReplicas],
    ] {
        assert_is_pytorchs(&BAGS, &places, &[]);
    }
    assert_is_pytorchs(&BAGS, &[Remote, Rows, Rows, Remote], &["pipeline.micro_batches=4"]);
}

/// The last module by AdamW without decay of its biases, the others by SGD with twice the rate for biases; all rates warm up and
/// follow a cosine, and gradients are clipped by their norm.
#[test]
fn clipping_groups_two_optimizers_and_a_schedule_equal_one_process_under_every_placement() {
    let tuned = |model: &Model, places: &[Place]| {
        let (last, _) = model.modules.last().unwrap();
        let own = "type=\"adamw\", lr=0.01, eps=1e-4, weight_decay=0.1, groups=[{match=[\"*.bias\"], weight_decay=0.0}]";
        let settings = [
            "optimizer.groups=[{match=[\"*.bias\"], lr=0.2}]",
            &format!("modules.{last}.optimizer={{{own}}}"),
            "optimizer.clip_norm=0.15",
            "optimizer.schedule={type=\"cosine\", warmup_steps=5, warmup_from=0.2, end_factor=0.1}",
        ];
        assert_is(model, "_tuned", places, &settings);
    };
    tuned(&DLRM, &[Remote, Remote, Remote]);
    tuned(&DLRM, &[Replicas, Rows, Replicas]);
    tuned(&DLRM, &[Caller, Hash, Caller]);
    tuned(&DLRM, &[Remote, Caller, Replicas]);
    tuned(&DLRM, &[Remote, With("bottom"), Stages]);
    tuned(&DLRM, &[Replicas, Hash, RemoteReplicas]);
    tuned(&COLUMNS, &[Remote, Rows, Caller]);
    tuned(&COLUMNS, &[Replicas, Replicas, Replicas]);
    tuned(&TOWERS, &[Remote, Remote, Remote]);
    tuned(&TOWERS, &[Caller, Replicas, RemoteReplicas]);
    tuned(&TOWERS, &[Stages, Remote, With("item")]);
    tuned(&TOWERS, &[Replicas, Caller, Remote]);
    tuned(&TOWERS, &[Replicas, Replicas, Replicas]);
    tuned(&TOWERS, &[RemoteReplicas, Remote, Caller]);
    tuned(&DIAMOND, &[Remote, Remote, Remote, Remote]);
    tuned(&DIAMOND, &[Remote, Caller, Remote, Replicas]);
    tuned(&DIAMOND, &[Caller, Remote, Caller, RemoteReplicas]);
    tuned(&DIAMOND, &[Replicas, Replicas, Replicas, Replicas]);
    tuned(&DIAMOND, &[Stages, Remote, Replicas, Caller]);
    tuned(&DIAMOND, &[Remote, With("a"), Caller, Remote]);
    for places in CONV_PLACES {
        tuned(&CONV, &places);
    }
}

/// The places of convolutions and their head: hosted, replicas, pulled, on two hosts, cut into stages, and mixed.
pub(super) const CONV_PLACES: [[Place; 2]; 7] = [
    [Remote, Remote],
    [Remote, With("convs")],
    [Replicas, Replicas],
    [Caller, Caller],
    [RemoteReplicas, Replicas],
    [Stages, Caller],
    [Replicas, Remote],
];

#[test]
fn a_conv_net_equals_one_process_under_every_placement() {
    for places in CONV_PLACES {
        assert_is_pytorchs(&CONV, &places, &[]);
    }
    for average in ["all_reduce", "ring"] {
        assert_is_pytorchs(&CONV, &[Replicas, Replicas], &[&format!("replicas.average={average}")]);
    }
    assert_is_pytorchs(&CONV, &[Stages, Stages], &["pipeline.micro_batches=4"]);
}

#[test]
fn clipping_by_value_equals_one_process_under_every_placement() {
    let clipped = |model: &Model, places: &[Place]| {
        assert_is(model, "_clamped", places, &["optimizer.clip_value=0.002"]);
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, RemoteReplicas],
        [Remote, With("bottom"), Stages],
    ] {
        clipped(&DLRM, &places);
    }
    clipped(&COLUMNS, &[Remote, Rows, Caller]);
    clipped(&COLUMNS, &[Replicas, Replicas, Replicas]);
    clipped(&TOWERS, &[Caller, Replicas, RemoteReplicas]);
    clipped(&DIAMOND, &[Remote, Caller, Remote, Replicas]);
    for places in CONV_PLACES {
        clipped(&CONV, &places);
    }
}

/// Weights and averages, with validations in between in which they swap their places.
#[test]
fn averages_of_the_weights_equal_one_process_under_every_placement() {
    let averaged = |model: &Model, places: &[Place], more: &[&str]| {
        if !runs_by_default() {
            return;
        }
        let test = "data.test={file=\"graph.csv\", features=[\"id0\", \"id1\", \"id2\", \"id3\"], \
                    feature_dtype=\"int64\", target=[\"x0\", \"x1\", \"x2\", \"x3\"]}";
        let test = (model.samples == Samples::Numbers).then_some(test);
        let settings: Vec<&str> = ["ema.decay=0.9", "eval.every_steps=7"]
            .into_iter()
            .chain(test)
            .chain(more.iter().copied())
            .collect();
        let folder = run(model, places, &settings);
        let file = crate::program::model(folder.path());
        assert_are(model, "", places, &settings, &model::load(&file).unwrap());
        let averages = file.with_file_name("model-ema.safetensors");
        assert_are(model, "_averaged", places, &settings, &model::load(&averages).unwrap());
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, With("bottom"), Stages],
        [Replicas, Hash, RemoteReplicas],
    ] {
        averaged(&DLRM, &places, &[]);
    }
    averaged(&COLUMNS, &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
    averaged(&TOWERS, &[Caller, Replicas, RemoteReplicas], &[]);
    averaged(&DIAMOND, &[Remote, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    averaged(&SCRIPT, &[Remote, Caller], &[]);
    averaged(&SCRIPT, &[Replicas, RemoteReplicas], &["replicas.average=all_reduce"]);
}

/// As near to `torch.autocast` as float32 is to float32, and far from that. The gradients of an output that three take are added
/// up in bfloat16, in an order of their own: there it is a fraction of that.
#[test]
fn bf16_is_torchs_autocast_under_every_placement() {
    let cast = |model: &Model, places: &[Place], more: &[&str]| {
        assert_casts(model, places, "_bf16", &[&["precision.autocast=bf16"], more].concat());
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, With("bottom"), Stages],
        [Replicas, Hash, RemoteReplicas],
    ] {
        cast(&DLRM, &places, &[]);
    }
    cast(&COLUMNS, &[Replicas, Rows, Remote], &[]);
    cast(&TOWERS, &[Remote, Remote, Remote], &[]);
    cast(&TOWERS, &[Caller, Replicas, RemoteReplicas], &[]);
    cast(&DIAMOND, &[Remote, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    cast(&DIAMOND, &[Replicas, Replicas, Replicas, Replicas], &[]);
}

fn assert_casts(model: &Model, places: &[Place], way: &str, settings: &[&str]) {
    if !runs_by_default() {
        return;
    }
    let trained = train(model, places, settings);
    let (name, of_half) = farthest(model, way, places, &trained);
    let (_, of_float32) = farthest(model, "", places, &trained);
    let near = match way {
        _ if model.name == DIAMOND.name => of_float32 / 4.0,
        // A sum in float32 that another processor takes in another order may round to the next half: measured, 0.0002 of the
        // distance to float32, which is that of whole steps here.
        "_fp16" => CLOSE.max(of_float32 / 1000.0),
        _ => CLOSE,
    };
    assert!(of_half <= near, "{}, {places:?}, {name}: {of_half}", model.name);
    assert!(of_float32 > 20.0 * CLOSE, "{}, {places:?}: {of_float32}", model.name);
}

/// Eleven or twelve of fifty steps overflow and are left out: the first ones, and whenever the scale has grown too far. Where
/// another one did, the weights would differ by a whole step.
#[test]
fn fp16_is_torchs_autocast_and_grad_scaler_under_every_placement() {
    let scaled = ["precision.autocast=fp16", "precision.init_scale=16777216", "precision.growth_interval=7"];
    let cast = |model: &Model, places: &[Place], more: &[&str]| {
        assert_casts(model, places, "_fp16", &[&scaled, more].concat());
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, With("bottom"), Stages],
        [Replicas, Hash, RemoteReplicas],
    ] {
        cast(&DLRM, &places, &[]);
    }
    cast(&COLUMNS, &[Replicas, Rows, Remote], &[]);
    cast(&TOWERS, &[Remote, Remote, Remote], &[]);
    cast(&TOWERS, &[Caller, Replicas, RemoteReplicas], &[]);
    cast(&DIAMOND, &[Remote, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    cast(&DIAMOND, &[Replicas, Replicas, Replicas, Replicas], &[]);
    for places in CONV_PLACES {
        cast(&CONV, &places, &["optimizer.clip_norm=0.15"]);
    }
}

/// Nothing of one module is trained, and no bias of the last.
#[test]
fn frozen_modules_and_parameters_equal_one_process_under_every_placement() {
    let frozen = |model: &Model, module: &str, places: &[Place], more: &[&str]| {
        let (last, _) = model.modules.last().unwrap();
        let own =
            [format!("modules.{module}.freeze=true"), format!("modules.{last}.freeze=[\"{last}.*.bias\"]")];
        let settings: Vec<&str> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        assert_is(model, "_frozen", places, &settings);
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Rows, Caller],
        [Remote, Replicas, Caller],
        [Remote, With("bottom"), Stages],
        [Replicas, RemoteReplicas, RemoteReplicas],
    ] {
        frozen(&DLRM, "tables", &places, &[]);
    }
    frozen(&COLUMNS, "tables", &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
    frozen(&COLUMNS, "tables", &[Replicas, Replicas, Replicas], &[]);
    frozen(&TOWERS, "user", &[Remote, Caller, RemoteReplicas], &[]);
    frozen(&TOWERS, "user", &[Stages, Remote, With("item")], &[]);
    frozen(&TOWERS, "user", &[Replicas, Replicas, Remote], &["replicas.average=all_reduce"]);
    frozen(&DIAMOND, "a", &[Remote, Remote, Remote, Replicas], &[]);
    frozen(&DIAMOND, "a", &[Replicas, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    // What trains nothing is not on servers.
    for places in CONV_PLACES.into_iter().filter(|places| places[0] != Caller) {
        frozen(&CONV, "convs", &places, &[]);
    }
    frozen(&SCRIPT, "both", &[Remote, Replicas], &[]);
    frozen(&SCRIPT, "both", &[Replicas, Remote], &[]);
    frozen(&SCRIPT, "both", &[Replicas, Replicas], &[]);
}

/// Outputs meet their targets in the order in which the job names them, wherever they come from.
#[test]
fn a_loss_of_several_outputs_and_targets_equals_one_process_under_every_placement() {
    let afterwards = "replicas.average=all_reduce";
    for (places, settings) in [
        ([Remote, Remote, Remote], &[][..]),
        ([Replicas, Replicas, Replicas], &[]),
        ([Caller, Caller, Caller], &[]),
        ([Remote, Replicas, Remote], &[]),
        ([Replicas, Remote, RemoteReplicas], &[afterwards]),
        ([Remote, Stages, Caller], &[]),
        ([Remote, With("body"), Replicas], &["pipeline.micro_batches=2"]),
    ] {
        assert_is_pytorchs(&HEADS, &places, settings);
    }
}

/// What PyTorch has trained, as it names it, evaluated here.
#[test]
fn weights_of_pytorch_give_its_loss() {
    for model in [&COLUMNS, &HEADS] {
        let folder = tempfile::tempdir().unwrap();
        let figures = model::load(&data("graph.safetensors")).unwrap();
        let weights = folder.path().join("weights.safetensors");
        let prefix = format!("{}/", model.name);
        let own = |(name, value): (String, Tensor)| Some((name.strip_prefix(&prefix)?.to_owned(), value));
        model::save(&weights, &figures.into_iter().filter_map(own).collect::<Vec<_>>()).unwrap();
        fs::write(folder.path().join("job.toml"), job_of(model, &[Remote, Caller, Remote])).unwrap();
        let starts = model.modules.iter().map(|(name, _)| format!("modules.{name}.weights={weights:?}"));
        let settings: Vec<String> =
            starts.chain(["train.steps=1", "optimizer.lr=1e-30"].map(str::to_owned)).collect();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        let text = fs::read_to_string(data(&format!("graph_{}.json", model.name))).unwrap();
        let torchs = serde_json::from_str::<serde_json::Value>(&text).unwrap()["loss"].as_f64().unwrap();
        let ours = summary(folder.path())["eval"]["loss"].as_f64().unwrap();
        assert!((ours - torchs).abs() < 1e-6, "{}: {ours}, {torchs}", model.name);
    }
}

#[test]
fn two_towers_equal_one_process_under_every_placement() {
    for places in [
        [Remote, Remote, Remote],
        [Remote, Remote, Replicas],
        [Replicas, Remote, Replicas],
        [Caller, Remote, Caller],
        [Remote, Replicas, Remote],
        [Remote, Stages, Replicas],
        [RemoteReplicas, Remote, With("item")],
    ] {
        assert_is_pytorchs(&TOWERS, &places, &[]);
    }
    let afterwards = "replicas.average=all_reduce";
    assert_is_pytorchs(&TOWERS, &[Replicas, Replicas, Remote], &[afterwards]);
    let settings = ["pipeline.micro_batches=2", "pipeline.schedule=gpipe"];
    assert_is_pytorchs(&TOWERS, &[Remote, Remote, Replicas], &settings);
}

/// Gradients of one output come from three consumers, on as many ranks.
#[test]
fn a_diamond_over_three_roles_equals_one_process_under_every_placement() {
    let afterwards = "replicas.average=all_reduce";
    for (places, settings) in [
        ([Remote, Remote, Remote, Remote], &[][..]),
        ([Remote, Remote, Remote, Replicas], &[]),
        ([Replicas, Remote, Remote, Replicas], &[afterwards]),
        ([Replicas, Caller, Remote, Replicas], &[afterwards]),
        ([Caller, Remote, Replicas, Caller], &[]),
        ([Remote, With("a"), With("a"), Replicas], &[]),
        ([RemoteReplicas, Remote, Caller, With("b")], &[]),
        ([Replicas, Replicas, Replicas, Replicas], &[]),
        ([Remote, Stages, Remote, With("c")], &["pipeline.micro_batches=2"]),
    ] {
        assert_is_pytorchs(&DIAMOND, &places, settings);
    }
}

#[test]
fn torchscript_with_several_arguments_and_results_equals_one_process_under_every_placement() {
    for (places, settings) in [
        ([Remote, Remote], &[][..]),
        ([Remote, Replicas], &[]),
        ([Replicas, Replicas], &[]),
        ([Caller, Replicas], &["pipeline.micro_batches=2"]),
        ([Replicas, Remote], &["replicas.average=all_reduce"]),
        ([RemoteReplicas, Stages], &[]),
    ] {
        assert_is_pytorchs(&SCRIPT, &places, settings);
    }
}

/// What graph.py starts a table from that is cut over ranks: what the job leaves when nothing is learnt.
#[test]
fn first_rows_are_those_that_the_figures_start_from() {
    let remote_and_cut: [(&Model, &[Place], &str); 3] = [
        (&DLRM, &[Remote, Rows, Remote], "graph_rows"),
        (&COLUMNS, &[Remote, Rows, Remote], "graph_column_rows"),
        (&BAGS, &[Remote, Rows, Rows, Remote], "graph_bag_rows"),
    ];
    for (model, places, file) in remote_and_cut {
        let left = train(model, places, &["optimizer.lr=1e-30"]);
        let tables = model.modules.iter().zip(places).filter(|(_, place)| **place == Rows);
        let tables: Vec<String> = tables.map(|((name, _), _)| format!("{name}.")).collect();
        let of_table = |(name, _): &(String, Tensor)| tables.iter().any(|table| name.starts_with(table));
        let rows: Vec<(String, Tensor)> = left.into_iter().filter(of_table).collect();
        let file = data(&format!("{file}.safetensors"));
        if std::env::var_os("WRITE_FIRST_ROWS").is_some() {
            model::save(&file, &rows).unwrap();
        }
        let figures = model::load(&file).unwrap();
        assert_eq!(rows.len(), figures.len());
        for (name, rows) in &rows {
            let figure = &figures.iter().find(|(of, _)| of == name).unwrap().1;
            assert_eq!((rows - figure).abs().max().to_kind(Kind::Double).double_value(&[]), 0.0, "{name}");
        }
    }
}
