//! Tables that are cut over several ranks: against the same table in one process, and what they cost in bytes.

mod jobs;
mod numbers;
mod steps;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pstrain::autograd::{Autograd, Context};
use pstrain::job::{self, Consistency, Filter, JobText, ModuleSpec, Sources};
use pstrain::model;
use pstrain::optimizers::OptimizerSpec;
use pstrain::parallel::{
    DistributedOptimizer, ModuleServer, Parameters, Piece, RangeServer, RowChoice, ShardServer,
    ShardedModule, StateServer, StateSnapshot,
};
use pstrain::rpc::{Mesh, Message, Methods, Value};
use pstrain::topology::Rank;
use tch::{Device, Kind, Tensor, no_grad};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const TRAINERS: u32 = 2;
const DIM: i64 = 5;

/// The layer's output for a batch.
fn look_up(module: &ShardedModule, context: &Context, ids: &[Tensor]) -> anyhow::Result<Tensor> {
    module.look_up(context, ids, 0)?.wait()
}

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
        plugin = "own.wasm"
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
            let modules = ModuleServer::new(Vec::new(), Vec::new());
            let ranges = RangeServer::new(Vec::new(), Vec::new(), consistency, Filter::None);
            StateServer::new(&modules, &server, &ranges).register(&autograd, &mut methods);
            parts.lock().unwrap().push((autograd, server));
            methods
        };
        let meshes = crate::support::world(TRAINERS + spec.place.ranks.len() as u32, methods);
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
        let parameters = Parameters::Sharded(self.module(trainer).updated().to_vec());
        let updated = vec![(parameters, optimizer.clone().into())];
        DistributedOptimizer::new(&self.autograds[trainer as usize], updated).unwrap()
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
            crate::support::later(move || train(rank, trainer))
        };
        let running: Vec<_> = (0..TRAINERS).map(start).collect();
        running.into_iter().map(crate::support::within).collect()
    }

    /// All rows that there are, by id.
    fn rows(&self) -> BTreeMap<i64, Vec<f32>> {
        let mut all = BTreeMap::new();
        for owner in &self.spec.place.ranks {
            let state =
                StateSnapshot::take(&self.autograds[0], *owner, &self.spec.name, RowChoice::All).unwrap();
            for piece in state.pieces(0) {
                let Piece { ids, values } = piece.unwrap();
                let ids = Vec::<i64>::try_from(ids.unwrap()).unwrap();
                assert!(ids.is_sorted());
                all.extend(ids.into_iter().zip(Vec::<Vec<f32>>::try_from(values).unwrap()));
            }
        }
        all
    }

    fn end(self) {
        let World { meshes, autograds, servers, .. } = self;
        drop((autograds, servers));
        crate::support::shut_down(meshes);
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
        let loss = loss(&look_up(&self.module, &context, std::slice::from_ref(ids)).unwrap());
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

/// A loss that treats no number of a row like another.
fn loss(output: &Tensor) -> Tensor {
    let weights = Tensor::arange(DIM, FLOAT) - 1.5;
    let scores = (output * weights).sum_dim_intlist([-1].as_slice(), false, Kind::Float);
    (scores - 1.0).square().mean(Kind::Float)
}
