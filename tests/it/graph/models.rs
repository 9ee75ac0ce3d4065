//! The models of `tests/data/graph.py` as jobs, with their modules placed here and there.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::program::*;

/// Where a module lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
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
pub struct Model {
    pub name: &'static str,
    pub modules: &'static [(&'static str, &'static str)],
    pub samples: Samples,
}

/// Which samples a model has, and its loss.
#[derive(Clone, Copy, PartialEq)]
pub enum Samples {
    /// `features`, four ids, and `target`, four numbers.
    Numbers,
    /// Criteo's: `dense`, `ids` of a column each, and `click`; also bags and their weights, and an `image` of the first numbers.
    Clicks,
    /// `numbers`, four, and two targets: `turned`, the same the other way round, and `half` of them.
    Halves,
}

pub const DLRM: Model = Model {
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
pub const COLUMNS: Model = Model {
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
pub const BAGS: Model = Model {
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

pub const TOWERS: Model = Model {
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
pub const DIAMOND: Model = Model {
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
pub const CONV: Model = Model {
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
pub const HEADS: Model = Model {
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
pub const SCRIPT: Model = Model {
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

pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub fn job_of(model: &Model, places: &[Place]) -> String {
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

/// The last module by AdamW without decay of its biases, the others by SGD with twice the rate for biases; all rates warm up and
/// follow a cosine, and gradients are clipped by their norm.
pub fn tuned(model: &Model) -> Vec<String> {
    let (last, _) = model.modules.last().unwrap();
    let own = "type=\"adamw\", lr=0.01, eps=1e-4, weight_decay=0.1, groups=[{match=[\"*.bias\"], weight_decay=0.0}]";
    vec![
        "optimizer.groups=[{match=[\"*.bias\"], lr=0.2}]".into(),
        format!("modules.{last}.optimizer={{{own}}}"),
        "optimizer.clip_norm=0.15".into(),
        "optimizer.schedule={type=\"cosine\", warmup_steps=5, warmup_from=0.2, end_factor=0.1}".into(),
    ]
}

/// So that eleven or twelve of fifty steps overflow and are left out: the first ones, and whenever the scale has grown too far.
pub const SCALED: [&str; 3] =
    ["precision.autocast=fp16", "precision.init_scale=16777216", "precision.growth_interval=7"];

/// Leaves the run folder in the one that is returned.
pub fn run(model: &Model, places: &[Place], settings: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job_of(model, places)).unwrap();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), settings)), 0);
    folder
}

/// The places of convolutions and their head: hosted, replicas, pulled, on two hosts, cut into stages, and mixed.
pub const CONV_PLACES: [[Place; 2]; 7] = [
    [Remote, Remote],
    [Remote, With("convs")],
    [Replicas, Replicas],
    [Caller, Caller],
    [RemoteReplicas, Replicas],
    [Stages, Caller],
    [Replicas, Remote],
];
