//! Tables that are cut over several ranks: against the same table in one process, and what they cost in bytes.

#![allow(clippy::unwrap_used, reason = "a test may stop where it stands")]

mod program;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pstrain::autograd::{Autograd, Context};
use pstrain::job::optimizer::OptimizerSpec;
use pstrain::job::{self, Consistency, JobText, ModuleSpec, Sources};
use pstrain::model;
use pstrain::parallel::{DistributedOptimizer, Parameters, Piece, ShardServer, ShardedModule};
use pstrain::rpc::{Mesh, Methods, Value};
use pstrain::topology::Rank;
use tch::{Device, Kind, Tensor, no_grad};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const TRAINERS: u32 = 2;
const DIM: i64 = 5;

/// The first module of a job: `layer` on a role of so many ranks behind the trainers'.
fn sharded(shards: &str, owners: u32, input: &str, layer: &str) -> ModuleSpec {
    let text = format!(
        r#"name = "x"
        [roles]
        trainer = {TRAINERS}
        server = {owners}
        [modules.table]
        place = "server"
        shards = "{shards}"
        input = {input}
        input_dtype = "int64"
        layers = [{layer}]
        [data]
        plugin = "bags"
        [loss]
        plugin = "mse"
        [optimizer]
        type = "sgd""#
    );
    let file = JobText { name: "x.toml", text: &text };
    let job = job::load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap().job;
    job.training().unwrap().modules[0].clone()
}

fn embedding(rows: i64) -> String {
    format!(r#"{{ type = "embedding", num_embeddings = {rows}, embedding_dim = {DIM} }}"#)
}

/// Ranks in this process: trainers, then owners.
struct World {
    meshes: Vec<Mesh>,
    autograds: Vec<Arc<Autograd>>,
    servers: Vec<Arc<ShardServer>>,
    spec: ModuleSpec,
}

impl World {
    fn start(spec: &ModuleSpec, consistency: Consistency) -> World {
        let parts = Mutex::new(Vec::new());
        let methods = |rank| {
            let (autograd, mut methods) = (Autograd::new(), Methods::new());
            autograd.register(&mut methods);
            let placed = if rank < TRAINERS { Vec::new() } else { vec![(spec.clone(), 7)] };
            let trainers = (0..TRAINERS).map(Rank).collect();
            let server = ShardServer::new(Rank(rank), placed, trainers, consistency);
            server.register(&autograd, &mut methods);
            parts.lock().unwrap().push((autograd, server));
            methods
        };
        let meshes = support::world(TRAINERS + spec.place.ranks.len() as u32, methods);
        let (autograds, servers): (Vec<_>, Vec<_>) = parts.into_inner().unwrap().into_iter().unzip();
        for (autograd, mesh) in autograds.iter().zip(&meshes) {
            autograd.bind(mesh.clone());
        }
        World { meshes, autograds, servers, spec: spec.clone() }
    }

    fn module(&self, trainer: u32) -> ShardedModule {
        ShardedModule::get(&self.autograds[trainer as usize], &self.spec).unwrap()
    }

    fn optimizer(&self, trainer: u32, optimizer: &OptimizerSpec) -> DistributedOptimizer {
        let parameters = Parameters::Sharded(self.module(trainer).shards().to_vec());
        DistributedOptimizer::new(&self.autograds[trainer as usize], optimizer, vec![parameters]).unwrap()
    }

    /// Runs `train` on each trainer at once, each on a thread of its own.
    fn train<T: Send + 'static>(
        &self,
        train: impl Fn(u32, Trainer) -> T + Clone + Send + 'static,
        by: &OptimizerSpec,
    ) -> Vec<T> {
        let start = |rank: u32| {
            let autograd = self.autograds[rank as usize].clone();
            let trainer =
                Trainer { autograd, module: self.module(rank), optimizer: self.optimizer(rank, by) };
            let train = train.clone();
            support::later(move || train(rank, trainer))
        };
        let running: Vec<_> = (0..TRAINERS).map(start).collect();
        running.into_iter().map(support::within).collect()
    }

    /// All rows that there are, by id.
    fn rows(&self) -> BTreeMap<i64, Vec<f32>> {
        let mut all = BTreeMap::new();
        for mut listing in self.module(0).listings().unwrap() {
            while let Some(Piece { ids, rows }) = listing.next_piece().unwrap() {
                let ids = Vec::<i64>::try_from(ids).unwrap();
                assert!(ids.is_sorted());
                all.extend(ids.into_iter().zip(Vec::<Vec<f32>>::try_from(rows).unwrap()));
            }
        }
        all
    }

    fn end(self) {
        let World { meshes, autograds, servers, .. } = self;
        drop((autograds, servers));
        support::shut_down(meshes);
    }
}

struct Trainer {
    autograd: Arc<Autograd>,
    module: ShardedModule,
    optimizer: DistributedOptimizer,
}

impl Trainer {
    /// Forward, `loss`, backward and update. Gives the loss and the staleness.
    fn step(&mut self, ids: &Tensor, loss: impl Fn(&Tensor) -> Tensor) -> (f64, u64) {
        let context = self.autograd.context();
        let loss = loss(&self.module.forward(&context, ids).unwrap());
        (loss.double_value(&[]), self.finish(&context, &loss, ids.size()[0] as u64))
    }

    fn finish(&mut self, context: &Context, loss: &Tensor, samples: u64) -> u64 {
        let backward = self.autograd.backward(context, &[loss.shallow_clone()], false);
        let stepping = self.optimizer.step(context, &backward, samples).unwrap();
        backward.wait().unwrap();
        stepping.wait().unwrap().staleness
    }
}

fn options(json: serde_json::Value) -> OptimizerSpec {
    serde_json::from_value(json).unwrap()
}

fn sgd(lr: f64) -> OptimizerSpec {
    options(
        serde_json::json!({ "type": "sgd", "lr": lr, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0,
        "nesterov": false, "maximize": false }),
    )
}

fn adagrad() -> OptimizerSpec {
    options(serde_json::json!({ "type": "adagrad", "lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.0,
        "initial_accumulator_value": 0.1, "eps": 1e-10, "maximize": false }))
}

fn adam() -> OptimizerSpec {
    options(
        serde_json::json!({ "type": "adam", "lr": 0.05, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.0,
        "amsgrad": false, "maximize": false }),
    )
}

// ---- The same numbers as one process's, however many owners there are ----

/// Different rows that the samples may ask for.
const KNOWN: i64 = 40;
const STEPS: u64 = 20;
/// Of each trainer: of different sizes.
const BATCHES: [i64; 2] = [12, 4];
/// Ids in a sample.
const LENGTH: i64 = 6;

/// Which of the known rows a trainer's batch asks for: always the same ones, some of them several times; a negative one is none.
fn asked(step: u64, trainer: u32, least: i64) -> Tensor {
    let size = BATCHES[trainer as usize] * LENGTH;
    let number = |at: i64| {
        let mixed = job::shards::mix((step << 32) ^ ((u64::from(trainer)) << 24) ^ at as u64);
        // The squares of a small range: low ones come often.
        (mixed % 7 * (mixed >> 8) % KNOWN as u64) as i64 - i64::from(mixed >> 60 == 0) * KNOWN
    };
    let numbers: Vec<i64> = (0..size).map(|at| number(at).max(least)).collect();
    Tensor::from_slice(&numbers).view([-1, LENGTH])
}

/// A loss that treats no number of a row like another.
fn loss(output: &Tensor) -> Tensor {
    let weights = Tensor::arange(DIM, FLOAT) - 1.5;
    let scores = (output * weights).sum_dim_intlist([-1].as_slice(), false, Kind::Float);
    (scores - 1.0).square().mean(Kind::Float)
}

/// What a run or its reference comes to: the loss of each step over both trainers' samples, and the known rows.
struct Outcome {
    losses: Vec<f64>,
    rows: Vec<Vec<f32>>,
}

/// A way to cut a table, with a layer that has something of its own to get wrong.
#[derive(Clone, Copy)]
enum Case {
    /// Bags with empty places.
    Rows,
    /// Ids that are far apart, the first of which is padding.
    Hash,
}

impl Case {
    fn spec(self, owners: u32) -> ModuleSpec {
        match self {
            Case::Rows => {
                let layer = format!(
                    r#"{{ type = "embedding_bag", num_embeddings = {KNOWN}, embedding_dim = {DIM} }}"#
                );
                sharded("rows", owners, "[6]", &layer)
            }
            Case::Hash => {
                let layer = format!(
                    r#"{{ type = "embedding", num_embeddings = {KNOWN}, embedding_dim = {DIM}, padding_idx = 0 }}"#
                );
                sharded("hash", owners, "[6]", &layer)
            }
        }
    }

    /// From the numbers of known rows to ids.
    fn ids(self, numbers: &Tensor) -> Tensor {
        match self {
            Case::Rows => numbers.shallow_clone(),
            Case::Hash => numbers * 1_000_000_000_039i64,
        }
    }

    fn asked(self, step: u64, trainer: u32) -> Tensor {
        asked(step, trainer, if matches!(self, Case::Rows) { -1 } else { 0 })
    }

    /// The layer's output by plain operations.
    fn output(self, table: &Tensor, numbers: &Tensor) -> Tensor {
        let rows = table.index_select(0, &numbers.clamp_min(0).view(-1)).view([-1, LENGTH, DIM]);
        match self {
            Case::Hash => rows,
            Case::Rows => {
                let there = numbers.ge(0).unsqueeze(-1);
                let counts = there.sum_dim_intlist([1].as_slice(), false, Kind::Float).clamp_min(1);
                (rows * &there).sum_dim_intlist([1].as_slice(), false, Kind::Float) / counts
            }
        }
    }
}

fn known() -> Tensor {
    Tensor::arange(KNOWN, (Kind::Int64, Device::Cpu))
}

fn with_owners(case: Case, owners: u32, optimizer: &OptimizerSpec) -> Outcome {
    let world = World::start(&case.spec(owners), Consistency::Bsp);
    let losses = world.train(
        move |rank, mut trainer| {
            let step = |step| trainer.step(&case.ids(&case.asked(step, rank)), loss).0;
            let losses: Vec<f64> = (0..STEPS).map(step).collect();
            trainer.module.leave().unwrap();
            losses
        },
        optimizer,
    );
    let mean = |(one, other): (&f64, &f64)| (12.0 * one + 4.0 * other) / 16.0;
    let losses = losses[0].iter().zip(&losses[1]).map(mean).collect();
    let rows = world.rows();
    let ids = Vec::<i64>::try_from(case.ids(&known())).unwrap();
    let rows = ids.iter().filter_map(|id| rows.get(id).cloned()).collect();
    world.end();
    Outcome { losses, rows }
}

/// The rows before any step, as evaluation sees them.
fn initial_rows(case: Case) -> Tensor {
    let world = World::start(&case.spec(2), Consistency::Bsp);
    let rows = world.module(0).predict(&case.ids(&known()).unsqueeze(-1)).unwrap().view([KNOWN, DIM]);
    world.end();
    rows
}

/// torch's rules written down: `SGD`, `Adagrad`, and `SparseAdam` on the rows that have gradients.
fn one_process(case: Case, optimizer: &OptimizerSpec) -> Outcome {
    let table = initial_rows(case).set_requires_grad(true);
    let [mut sums, mut means, mut squares] =
        [0.1, 0.0, 0.0].map(|first| Tensor::full([KNOWN, DIM], first, FLOAT));
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let numbers = Tensor::cat(&[case.asked(step, 0), case.asked(step, 1)], 0);
        let loss = loss(&case.output(&table, &numbers));
        losses.push(loss.double_value(&[]));
        let gradient = Tensor::run_backward(&[&loss], &[&table], false, false).swap_remove(0);
        let touched = Tensor::zeros([KNOWN, 1], FLOAT).index_fill(0, &numbers.clamp_min(0).view(-1), 1.0);
        let padded = matches!(case, Case::Hash);
        let count = (step + 1) as f64;
        no_grad(|| {
            if padded {
                let _ = gradient.select(0, 0).zero_();
            }
            let change = match *optimizer {
                OptimizerSpec::Sgd { lr, .. } => &gradient * lr,
                OptimizerSpec::Adagrad { lr, lr_decay, eps, .. } => {
                    sums += &gradient * &gradient;
                    &gradient / (sums.sqrt() + eps) * (lr / (1.0 + (count - 1.0) * lr_decay))
                }
                OptimizerSpec::Adam { lr, betas: [first, second], eps, .. } => {
                    // An empty place of a bag touches no row; its gradient is zero, as is that of the row it stands for here.
                    let touched = touched * gradient.abs().amax([1].as_slice(), true).gt(0.0);
                    means += (&gradient - &means) * (1.0 - first) * &touched;
                    squares += (&gradient * &gradient - &squares) * (1.0 - second) * &touched;
                    let rate = lr * (1.0 - second.powf(count)).sqrt() / (1.0 - first.powf(count));
                    &means / (squares.sqrt() + eps) * rate * touched
                }
                _ => unreachable!("three are tested"),
            };
            let _ = table.detach().g_sub_(&change);
        });
    }
    Outcome { losses, rows: Vec::try_from(table.detach()).unwrap() }
}

fn assert_owners_do_not_matter(case: Case, optimizer: &OptimizerSpec) {
    let one = with_owners(case, 1, optimizer);
    for owners in [2, 3] {
        let more = with_owners(case, owners, optimizer);
        assert_eq!(more.losses, one.losses, "{owners} owners, {optimizer:?}: the same bits");
        assert_eq!(more.rows, one.rows, "{owners} owners, {optimizer:?}: the same bits");
    }
    let expected = one_process(case, optimizer);
    assert!(expected.losses[STEPS as usize - 1] < 0.8 * expected.losses[0], "{:?}", expected.losses);
    for (step, (ours, theirs)) in one.losses.iter().zip(&expected.losses).enumerate() {
        assert!(
            (ours - theirs).abs() < 1e-5 * theirs.max(1.0),
            "{optimizer:?}, step {step}: {ours}, {theirs}"
        );
    }
    assert_eq!(one.rows.len(), KNOWN as usize, "each row was asked for");
    for (row, (ours, theirs)) in one.rows.iter().zip(&expected.rows).enumerate() {
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!((ours - theirs).abs() < 1e-5, "{optimizer:?}, row {row}: {ours}, {theirs}");
        }
    }
}

#[test]
fn ranges_of_rows_on_one_two_and_three_ranks_train_as_one_table_in_one_process() {
    for optimizer in [sgd(0.5), adagrad(), adam()] {
        assert_owners_do_not_matter(Case::Rows, &optimizer);
    }
}

#[test]
fn hashed_rows_on_one_two_and_three_ranks_train_as_one_table_in_one_process() {
    for optimizer in [sgd(0.5), adagrad(), adam()] {
        assert_owners_do_not_matter(Case::Hash, &optimizer);
    }
}

// ---- What travels ----

#[test]
fn bytes_grow_with_the_rows_of_a_batch_and_not_with_the_table() {
    let sent = |rows: i64, ids: i64| -> u64 {
        let world = World::start(&sharded("rows", 2, "[1]", &embedding(rows)), Consistency::Async);
        world.train(
            move |rank, mut trainer| {
                // As many at each end of the table.
                let half = Tensor::arange(ids / 2, (Kind::Int64, Device::Cpu));
                let ids = Tensor::cat(&[&half, &(&half + (rows - ids / 2))], 0).unsqueeze(-1);
                for _ in 0..3 + rank {
                    trainer.step(&ids, loss);
                }
            },
            &sgd(0.1),
        );
        let sent = world.meshes.iter().flat_map(|mesh| mesh.payload_bytes_sent()).sum();
        world.end();
        sent
    };
    let (small, large) = (sent(1_000, 64), sent(10_000_000, 64));
    assert_eq!(small, large, "a table of ten thousand times the rows");
    // 7 steps; a row travels as an id, as numbers, and as their gradients.
    let row = 8 + 2 * 4 * DIM as u64;
    assert_eq!(sent(1_000, 128) - small, 7 * 64 * row);
}

// ---- How steps meet ----

#[test]
fn no_update_of_fifty_asynchronous_steps_of_two_trainers_is_lost() {
    const STEPS: i64 = 50;
    const ROWS: i64 = 30;
    for shards in ["rows", "hash"] {
        let world = World::start(&sharded(shards, 2, "[1]", &embedding(ROWS)), Consistency::Async);
        let all = Tensor::arange(ROWS, (Kind::Int64, Device::Cpu)).unsqueeze(-1);
        let before = world.module(0).predict(&all).unwrap();
        world.train(
            move |_, mut trainer| {
                let ids = Tensor::arange(ROWS, (Kind::Int64, Device::Cpu)).unsqueeze(-1);
                for _ in 0..STEPS {
                    // Its gradient is 1 for each number, whatever the row holds by then.
                    trainer.step(&ids, |rows| rows.sum(Kind::Float));
                }
            },
            &sgd(0.125),
        );
        for server in &world.servers[TRAINERS as usize..] {
            assert_eq!(server.shards()[0].updates().0, 100, "{shards}");
        }
        let after = world.module(0).predict(&all).unwrap();
        let difference: Tensor = before - after - 2.0 * STEPS as f64 * 0.125;
        assert!(difference.abs().max().double_value(&[]) < 1e-4, "{shards}");
        world.end();
    }
}

#[test]
fn an_update_never_breaks_the_backward_of_another_trainer_and_counts_as_its_staleness() {
    let world = World::start(&sharded("rows", 2, "[1]", &embedding(10)), Consistency::Async);
    let trainer = |rank: u32| Trainer {
        autograd: world.autograds[rank as usize].clone(),
        module: world.module(rank),
        optimizer: world.optimizer(rank, &sgd(0.1)),
    };
    let (mut slow, mut fast) = (trainer(0), trainer(1));
    let ids = Tensor::from_slice(&[1i64, 2, 9]).unsqueeze(-1);
    let context = slow.autograd.context();
    let output = slow.module.forward(&context, &ids).unwrap();
    let read = output.detach().copy();
    assert_eq!(fast.step(&ids, |rows| rows.square().sum(Kind::Float)).1, 0);
    // The gradient of a square is twice what was read.
    assert_eq!(slow.finish(&context, &output.square().sum(Kind::Float), 3), 1);
    let expected: Tensor = &read - 0.1 * 2.0 * &read * 2.0;
    let difference = (world.module(0).predict(&ids).unwrap() - expected).abs().max().double_value(&[]);
    assert!(difference < 1e-6, "{difference}");
    drop((context, slow, fast));
    world.end();
}

#[test]
fn evaluation_sees_the_first_values_of_rows_and_makes_none() {
    let world = World::start(&sharded("hash", 2, "[1]", &embedding(10)), Consistency::Async);
    let (seen, unseen) =
        (Tensor::from_slice(&[5i64, 1 << 40]).unsqueeze(-1), Tensor::from_slice(&[77i64]).unsqueeze(-1));
    let module = world.module(0);
    let first = module.predict(&seen).unwrap();
    let _ = module.predict(&unseen).unwrap();
    assert!(world.rows().is_empty());
    let context = world.autograds[0].context();
    assert_eq!(module.forward(&context, &seen).unwrap().detach(), first);
    assert_eq!(world.rows().into_keys().collect::<Vec<_>>(), [5, 1 << 40]);
    drop((context, module));
    world.end();
}

// ---- What is refused ----

#[test]
fn an_id_that_has_no_row_is_named_with_the_limit_and_the_module() {
    let world = World::start(&sharded("rows", 2, "[1]", &embedding(10)), Consistency::Async);
    let module = world.module(0);
    let said = |ids: &[i64]| {
        let context = world.autograds[0].context();
        format!("{:#}", module.forward(&context, &Tensor::from_slice(ids).unsqueeze(-1)).unwrap_err())
    };
    assert!(said(&[3, 10]).starts_with("module `table`: id 10 is not below num_embeddings = 10\n"));
    assert!(said(&[-2]).starts_with("module `table`: id -2 is negative\n"));
    drop(module);
    world.end();
}

#[test]
fn a_table_that_is_full_says_so_and_makes_no_row() {
    let world = World::start(&sharded("hash", 1, "[1]", &embedding(3)), Consistency::Async);
    let module = world.module(0);
    let look_up = |ids: &[i64]| {
        let context = world.autograds[0].context();
        module.forward(&context, &Tensor::from_slice(ids).unsqueeze(-1))
    };
    let _ = look_up(&[1, 2]).unwrap();
    let said = format!("{:#}", look_up(&[1, 2, 300, 400]).unwrap_err());
    let expected = "module `table`: there is no room for the row of id 400: this rank holds num_embeddings = 3 rows at most";
    assert!(said.contains(expected), "{said}");
    assert_eq!(world.rows().len(), 2);
    let _ = look_up(&[2, 300]).unwrap();
    drop(module);
    world.end();
}

#[test]
fn what_no_sharded_module_would_send_is_refused_by_the_owner() {
    let world = World::start(&sharded("rows", 2, "[1]", &embedding(10)), Consistency::Async);
    let module = world.module(0);
    let said = |method: &str, values: Vec<Value>| {
        let values = std::iter::once(module.shards()[0].clone().into()).chain(values).collect();
        world.autograds[0].call(Rank(2), method, values, None).wait().unwrap_err().message
    };
    let ids = |ids: &[i64]| vec![Value::Int(0), Tensor::from_slice(ids).into()];
    assert!(
        said("shard.rows", ids(&[7])).contains("id 7 is not among the rows of this rank, from 0 to below 5")
    );
    assert!(said("shard.rows", ids(&[i64::MIN, i64::MAX])).contains("is not among the rows"));
    assert!(said("shard.rows", ids(&[2, 1])).contains("ids are to ascend"));
    assert!(said("shard.rows", ids(&[1, 1])).contains("ids are to ascend"));
    assert!(
        said("shard.rows", vec![Value::Int(0), Tensor::from_slice(&[1.0f32]).into()])
            .contains("ids are int64 [n]")
    );
    let momentum = r#"{"type": "sgd", "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": false, "maximize": false}"#;
    assert!(
        said("shard.optimize", vec![momentum.into()]).contains("sgd with momentum cannot update single rows")
    );
    drop(module);
    world.end();
}

// ---- Whole jobs ----

const RECOMMENDER: &str = include_str!("../jobs/recommender.toml");

/// A small table, in 40 rounds.
const SMALL: [&str; 12] = [
    "modules.table.layers[0].num_embeddings=3_050",
    "data.train.users=2_000",
    "data.train.items=1_000",
    "data.train.categories=50",
    "data.train.samples=20_480",
    "data.test.users=2_000",
    "data.test.items=1_000",
    "data.test.categories=50",
    "data.test.samples=1_000",
    "train.batch_size=256",
    "train.consistency=bsp",
    "log.every=1",
];

/// By rank and step.
type Losses = BTreeMap<(u64, u64), f64>;

/// Spawns the recommender with more settings; its losses by step and rank, and the trained tensors.
fn recommend(folder: &Path, more: &[&str]) -> (Losses, Vec<(String, Tensor)>) {
    fs::write(folder.join("job.toml"), RECOMMENDER).unwrap();
    let settings: Vec<&str> = SMALL.iter().chain(more).copied().collect();
    program::assert_code(&program::finish(&mut program::spawn(folder, Some("job.toml"), &settings)), 0);
    let metrics = fs::read_to_string(folder.join("RUN/metrics.jsonl")).unwrap();
    let loss = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| record[key].as_u64().unwrap();
        ((number("step"), number("rank")), record["loss"].as_f64().unwrap())
    };
    (metrics.lines().map(loss).collect(), model::load(&program::model(folder)).unwrap())
}

#[test]
fn the_recommender_comes_to_the_same_loss_with_one_two_and_three_servers() {
    let run = |servers: u32| {
        let folder = tempfile::tempdir().unwrap();
        recommend(folder.path(), &[&format!("roles.server={servers}")])
    };
    let (losses, tensors) = run(1);
    assert_eq!(losses.len(), 80, "two trainers' 40 steps");
    let (_, table) = tensors.iter().find(|(name, _)| name == "table.0.weight").expect("PyTorch's name");
    assert_eq!(table.size(), [3_050, 16]);
    for servers in [2, 3] {
        let more = run(servers);
        assert_eq!(more.0, losses, "{servers} servers: the same bits");
        assert_eq!(more.1, tensors, "{servers} servers: the same bits");
    }
}

#[test]
fn a_table_cut_by_hash_is_saved_with_its_ids_and_holds_the_same_rows() {
    let (by_rows, by_hash) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (losses, all) = recommend(by_rows.path(), &[]);
    let (hashed_losses, listed) = recommend(by_hash.path(), &["modules.table.shards=hash", "roles.server=3"]);
    assert_eq!(hashed_losses, losses, "the same bits");
    let tensor = |tensors: &[(String, Tensor)], wanted: &str| {
        let found = tensors.iter().find(|(name, _)| name == wanted);
        found.unwrap_or_else(|| panic!("there is no {wanted}")).1.shallow_clone()
    };
    let ids = tensor(&listed, "table.0.ids");
    let list = Vec::<i64>::try_from(&ids).unwrap();
    assert!(list.is_sorted() && list.len() > 1_000, "{} rows", list.len());
    assert_eq!(tensor(&listed, "table.0.weight"), tensor(&all, "table.0.weight").index_select(0, &ids));
    assert_eq!(program::summary(by_hash.path())["eval"], program::summary(by_rows.path())["eval"]);
}

#[test]
fn the_loss_of_the_recommender_falls() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["train.consistency=async", "train.epochs=8"];
    let (losses, _) = recommend(folder.path(), &more);
    let mean = |steps: std::ops::Range<u64>| {
        let of: Vec<f64> =
            losses.iter().filter(|((step, _), _)| steps.contains(step)).map(|(_, loss)| *loss).collect();
        of.iter().sum::<f64>() / of.len() as f64
    };
    let (first, last) = (mean(1..10), mean(310..321));
    assert!(last < 0.8 * first, "{first}, {last}");
    let summary = program::summary(folder.path());
    assert!(summary["eval"]["accuracy"].as_f64().unwrap() > 0.68, "{summary}");
}
