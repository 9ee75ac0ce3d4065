//! Whatever mixture of placements a model has, it trains to the numbers of one process: every pair, and triples. Real
//! processes; the model of one process is written down with libtorch's plain operations.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::program::*;
use crate::support::times;
use pstrain::job::{self, Job, JobText, Sources};
use pstrain::model::{self, Module};
use pstrain::plugin::Host;
use pstrain::runner::loader::Schedule;
use pstrain::runner::samples::Split;
use tch::{Kind, Tensor, no_grad};

const STEPS: usize = 20;
const LR: f64 = 0.1;
const TRAINERS: u32 = 2;

/// The model, layer by layer: a sample is a bag of indices.
const LAYERS: [&str; 4] = [
    r#"{ type = "embedding_bag", num_embeddings = 100, embedding_dim = 16, mode = "sum" }"#,
    r#"{ type = "linear", in_features = 16, out_features = 12 }"#,
    r#""tanh""#,
    r#"{ type = "linear", in_features = 12, out_features = 8 }"#,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// On one rank that both trainers call.
    Remote,
    /// On each trainer.
    Replicas,
    /// On two ranks, each called by one trainer.
    RemoteReplicas,
    /// Two stages on two ranks.
    Stages,
    /// Two stages, of which each has two replicas.
    ReplicatedStages,
    /// Two stages whose activations are computed again in the backward.
    RecomputedStages,
    /// A table cut over two ranks, by ranges of rows.
    Rows,
    /// By a hash of the index.
    Hash,
    /// Computed by each trainer, with parameters on two servers.
    Caller,
}

/// Where any part of the model may be.
const PLACES: [Place; 6] = [
    Place::Remote,
    Place::Replicas,
    Place::RemoteReplicas,
    Place::Stages,
    Place::ReplicatedStages,
    Place::Caller,
];
/// Where its embedding may be besides.
const TABLES: [Place; 2] = [Place::Rows, Place::Hash];

impl Place {
    /// The role of each stage of the `nth` module, with its ranks, and the lines that place the module there.
    fn written(self, nth: usize) -> (Vec<(String, u32)>, String) {
        let name = |stage: &str| format!("owner-{}-{stage}", ["a", "b", "c"][nth]);
        let role = |stage: &str, ranks| (name(stage), ranks);
        let stages = |ranks| {
            let place = format!("[\"{}\", \"{}\"]", name("front"), name("back"));
            (vec![role("front", ranks), role("back", ranks)], place)
        };
        let (roles, place) = match self {
            Place::Remote => (vec![role("whole", 1)], format!("\"{}\"", name("whole"))),
            Place::RemoteReplicas => (vec![role("whole", 2)], format!("\"{}\"", name("whole"))),
            Place::Replicas => (Vec::new(), "\"trainer\"".into()),
            Place::Stages | Place::RecomputedStages => stages(1),
            Place::ReplicatedStages => stages(2),
            Place::Rows | Place::Hash | Place::Caller => {
                (vec![role("whole", 2)], format!("\"{}\"", name("whole")))
            }
        };
        let more = match self {
            Place::RecomputedStages => "recompute = true",
            Place::Rows => "shards = \"rows\"",
            Place::Hash => "shards = \"hash\"",
            Place::Caller => "run = \"caller\"",
            _ => "",
        };
        (roles, format!("place = {place}\n{more}"))
    }

    fn least_layers(self) -> usize {
        match self {
            Place::Stages | Place::ReplicatedStages | Place::RecomputedStages => 2,
            _ => 1,
        }
    }
}

/// Part of the model, and where it is.
type Part = (std::ops::Range<usize>, Place);

/// A job whose trainers are its first ranks.
fn job_of(parts: &[Part], schedule: &str) -> String {
    let (mut roles, mut modules, mut forward) = (String::new(), String::new(), String::new());
    for (nth, (layers, place)) in parts.iter().enumerate() {
        let (own, place) = place.written(nth);
        for (role, ranks) in own {
            writeln!(roles, "{role} = {ranks}").unwrap();
        }
        let input = if nth == 0 { "input = [10]\ninput_dtype = \"int64\"" } else { "" };
        let layers = LAYERS[layers.clone()].join(", ");
        writeln!(modules, "[modules.m{nth}]\n{place}\n{input}\nlayers = [{layers}]").unwrap();
        write!(forward, "\"m{nth}\", ").unwrap();
    }
    let job = format!(
        "name = \"mixture\"\nseed = 3\n[roles]\ntrainer = {TRAINERS}\n{roles}{modules}\n\
         [pipeline]\nmicro_batches = 2\nschedule = \"{schedule}\"\n\
         [data]\nplugin = \"bags\"\nshuffle = false\nfractions = [0.5, 0.5]\n\
         [data.train]\nsamples = 160\nrows = 100\nbags = 8\nclasses = 8\nseed = 0\n\
         [loss]\nplugin = \"cross_entropy\"\n[optimizer]\ntype = \"sgd\"\nlr = {LR}\n\
         [train]\nrole = \"trainer\"\nforward = [{forward}]\nepochs = 2\nsteps = {STEPS}\nbatch_size = 8\n"
    );
    let rounds = parts
        .iter()
        .all(|(_, place)| matches!(place, Place::Replicas | Place::RemoteReplicas | Place::ReplicatedStages));
    // Where all is replicated every step is a round anyway.
    if rounds { job } else { job + "consistency = \"bsp\"\n" }
}

fn load(text: &str) -> Job {
    job::load(&Sources { file: JobText { name: "job.toml", text }, env: Vec::new(), overrides: &[] })
        .unwrap()
        .job
}

/// The model in this process, on both trainers' batches at once. `parts` decide the first parameters, each of which is
/// drawn for its module as a whole.
fn one_process(parts: &[Part]) -> Vec<Tensor> {
    let whole: Vec<Part> = parts.iter().map(|(layers, _)| (layers.clone(), Place::Remote)).collect();
    let job = load(&job_of(&whole, "1f1b"));
    let training = job.training().unwrap();
    let first = training.modules.iter().enumerate().flat_map(|(position, spec)| {
        let module = Module::build(spec, &[tch::Device::Cpu], training.module_seed(position)).unwrap();
        module.initial_parameters().unwrap()
    });
    let mut parameters: Vec<Tensor> = first.collect();
    if TABLES.contains(&parts[0].1) {
        parameters[0] = first_rows(parts);
    }
    let mut parameters: Vec<Tensor> =
        parameters.into_iter().map(|tensor| tensor.set_requires_grad(true)).collect();

    let host = Host::new(None).unwrap();
    let mut split = Split::open(&host, training, Path::new(".")).unwrap();
    let schedules: Vec<Schedule> = (0..TRAINERS)
        .map(|trainer| Schedule::for_training(training, split.samples(), trainer).unwrap())
        .collect();
    let mut batches: Vec<_> = schedules.iter().map(Schedule::batches).collect();
    for _ in 0..STEPS {
        let indices = batches.iter_mut().flat_map(|batches| batches.next().unwrap().indices);
        let samples = split.batch(&indices.collect::<Vec<u64>>()).unwrap();
        let [table, w1, b1, w2, b2] = &parameters[..] else { panic!("an embedding and two linear layers") };
        let there = samples.fields[0].ge(0).unsqueeze(-1);
        let rows = Tensor::embedding(table, &samples.fields[0].clamp_min(0), -1, false, false);
        let bags = (rows * there).sum_dim_intlist([-2].as_slice(), false, Kind::Float);
        let hidden = (bags.matmul(&w1.transpose(0, 1)) + b1).tanh();
        let scores = hidden.matmul(&w2.transpose(0, 1)) + b2;
        scores.cross_entropy_for_logits(&samples.fields[1]).backward();
        for parameter in &mut parameters {
            let mut gradient = parameter.grad();
            no_grad(|| {
                let _ = parameter.g_sub_(&(&gradient * LR));
                let _ = gradient.zero_();
            });
        }
    }
    parameters
}

/// The rows that a sharded table starts from: what the job leaves when nothing is learnt.
fn first_rows(parts: &[Part]) -> Tensor {
    let left = train(parts, "1f1b", &["optimizer.lr=1e-30"]);
    let mut table = Tensor::zeros([100, 16], (Kind::Float, tch::Device::Cpu));
    let weight = tensor(&left, "m0.0.weight");
    match left.iter().find(|(name, _)| name == "m0.0.ids") {
        Some((_, ids)) => table.index_copy(0, ids, weight),
        None => {
            table.copy_(weight);
            table
        }
    }
}

fn train(parts: &[Part], schedule: &str, settings: &[&str]) -> Vec<(String, Tensor)> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job_of(parts, schedule)).unwrap();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), settings)), 0);
    model::load(&model(folder.path())).unwrap()
}

fn tensor<'a>(state: &'a [(String, Tensor)], name: &str) -> &'a Tensor {
    let found = state.iter().find(|(found, _)| found == name);
    &found.unwrap_or_else(|| panic!("{name} is not among {:?}", state.iter().map(|(name, _)| name))).1
}

/// Names of the model's parameters as a job of these parts saves them.
fn names(parts: &[Part]) -> Vec<String> {
    let mut names = Vec::new();
    for (nth, (layers, _)) in parts.iter().enumerate() {
        let module = if parts.len() > 1 { format!("m{nth}.") } else { String::new() };
        for (at, layer) in layers.clone().enumerate() {
            match layer {
                0 => names.push(format!("{module}{at}.weight")),
                1 | 3 => names.extend(["weight", "bias"].map(|name| format!("{module}{at}.{name}"))),
                _ => {}
            }
        }
    }
    names
}

#[track_caller]
fn assert_trains_as_one_process(parts: &[Part], schedule: &str) {
    let trained = train(parts, schedule, &[]);
    let hashed = parts[0].1 == Place::Hash;
    let names = names(parts);
    assert_eq!(trained.len(), names.len() + usize::from(hashed), "{parts:?}");
    for (nth, (name, mut expected)) in names.iter().zip(one_process(parts)).enumerate() {
        if nth == 0 && hashed {
            expected = expected.index_select(0, tensor(&trained, "m0.0.ids"));
        }
        let difference = (tensor(&trained, name) - &expected).abs().max().double_value(&[]);
        assert!(difference <= 1e-5, "{parts:?}, {schedule}, {name}: {difference}");
    }
}

/// The first module ends, and the second begins, at a layer that gives both as many as they need.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn every_pair_of_placements_trains_as_one_process() {
    for (nth, first) in PLACES.into_iter().chain(TABLES).enumerate() {
        // Of each row and each column some, by either schedule; all of them take minutes.
        let part = |(mth, _): &(usize, Place)| (nth + mth) % 5 < times(1, 5);
        for (mth, second) in PLACES.into_iter().enumerate().filter(part) {
            let cut = first.least_layers();
            let schedule = if (nth + mth) % 2 == 0 { "1f1b" } else { "gpipe" };
            assert_trains_as_one_process(&[(0..cut, first), (cut..4, second)], schedule);
        }
    }
}

#[test]
fn a_placement_alone_trains_as_one_process() {
    for place in PLACES.into_iter().chain([Place::RecomputedStages]) {
        assert_trains_as_one_process(&[(0..4, place)], "1f1b");
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn triples_of_placements_train_as_one_process() {
    use Place::{Caller, Remote, Replicas, ReplicatedStages, Rows, Stages};
    let triple = |first, second, third| [(0..1, first), (1..3, second), (3..4, third)];
    assert_trains_as_one_process(&triple(Remote, Replicas, Remote), "1f1b");
    assert_trains_as_one_process(&triple(Replicas, ReplicatedStages, Replicas), "gpipe");
    assert_trains_as_one_process(&triple(Remote, Stages, Replicas), "1f1b");
    assert_trains_as_one_process(&triple(Rows, Caller, Replicas), "gpipe");
    assert_trains_as_one_process(&triple(Replicas, Caller, Replicas), "1f1b");
}
