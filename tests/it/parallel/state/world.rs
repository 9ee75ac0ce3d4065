//! Worlds in this process: trainers that train a job's model on made-up batches, and the owners of its parts.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use pstrain::autograd::Autograd;
use pstrain::job::{self, Job, JobText, ModuleSpec, Placement, Source, Sources, Training};
use pstrain::layers::{Columns, RowTable};
use pstrain::optimizers::OptimizerSpec;
use pstrain::parallel::{
    DistributedOptimizer, Exchanged, Forward, GradientSync, Groups, Hosting, MicroBatch, ModuleHandle,
    ModuleServer, ModuleState, Passage, Pulled, RangeServer, RemoteModule, Replica, RowChoice, ShardServer,
    ShardedModule, StateServer, StateSnapshot, Walk,
};
use pstrain::rpc::{Mesh, Methods};
use pstrain::topology::Rank;
use tch::{Device, Kind, Tensor};

use crate::parallel::collected;
use crate::support;

const CPU: [Device; 1] = [Device::Cpu];

/// By the name that a module is written under.
pub type States = Vec<(String, ModuleState)>;

pub struct World {
    pub job: Job,
    pub ranks: Vec<Node>,
    /// Where the trainers meet.
    barrier: Barrier,
}

pub struct Node {
    mesh: Mesh,
    pub autograd: Arc<Autograd>,
    modules: Arc<ModuleServer>,
    groups: Groups,
}

impl World {
    pub fn start(text: &str) -> World {
        let file = JobText { name: "job.toml", text };
        let job = job::load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap().job;
        let training = job.training().unwrap();
        let parts = Mutex::new(Vec::new());
        let methods = |rank: u32| {
            let rank = Rank(rank);
            let (autograd, mut methods) = (Autograd::new(), Methods::new());
            autograd.register(&mut methods);
            let trainers = training.train.trainers.ranks.clone();
            let consistency = training.train.consistency;
            let placed = |kind: fn(Placement) -> bool| -> Vec<(ModuleSpec, u64)> {
                let modules = training.modules.iter().enumerate();
                let here =
                    modules.filter(|(_, spec)| kind(spec.placement) && spec.place.ranks.contains(&rank));
                here.map(|(nth, spec)| (spec.clone(), training.module_seed(nth))).collect()
            };
            let hosting = |(spec, seed): (ModuleSpec, u64)| {
                let consistency = if spec.is_replicated() { job::Consistency::Bsp } else { consistency };
                Hosting { trainers: training.callers(&spec, rank), consistency, seed, spec }
            };
            let hosted =
                placed(|placement| placement == Placement::Remote).into_iter().map(hosting).collect();
            let modules = ModuleServer::new(hosted, CPU.to_vec());
            modules.register(&autograd, &mut methods);
            let tables = placed(|placement| matches!(placement, Placement::Shards(_)));
            let shards = ShardServer::new(rank, tables, trainers.clone(), consistency);
            shards.register(&autograd, &mut methods);
            let ranges = placed(|placement| placement == Placement::Caller);
            let ranges = RangeServer::new(ranges, trainers, consistency, training.pull_push.filter);
            ranges.register(&autograd, &mut methods);
            StateServer::new(&modules, &shards, &ranges).register(&autograd, &mut methods);
            let groups = Groups::new(&job.cluster, Device::Cpu);
            Groups::register(&mut methods);
            parts.lock().unwrap().push((autograd, modules, groups));
            methods
        };
        let meshes = support::world(job.cluster.world_size.0, methods);
        let parts = parts.into_inner().unwrap();
        let node = |(mesh, (autograd, modules, groups)): (Mesh, (Arc<Autograd>, _, _))| {
            autograd.bind(mesh.clone());
            Node { mesh, autograd, modules, groups }
        };
        let ranks: Vec<Node> = meshes.into_iter().zip(parts).map(node).collect();
        thread::scope(|scope| {
            for node in &ranks {
                scope.spawn(move || node.modules.join_replicas(&node.mesh, &node.groups).unwrap());
            }
        });
        let barrier = Barrier::new(job.training().unwrap().train.trainers.ranks.len());
        World { job, ranks, barrier }
    }

    /// Waits until all trainers have come here.
    pub fn barrier(&self) {
        self.barrier.wait();
    }

    pub fn training(&self) -> &Training {
        self.job.training().unwrap()
    }

    /// Trains on all trainers at once, from step `from` on, from a state if one is given, and takes the state before each
    /// of the steps `at`; the last one is where it ends.
    pub fn train(
        &self,
        optimizer: &OptimizerSpec,
        from: u64,
        at: &[u64],
        before: Option<States>,
    ) -> Vec<States> {
        let before = before.map(Mutex::new);
        let run = |position: usize| {
            let mut trainer = Trainer::new(self, position, optimizer);
            if let Some(before) = &before {
                self.barrier();
                if position == 0 {
                    self.restore(&before.lock().unwrap());
                }
                self.barrier();
                trainer.go_on_from(&before.lock().unwrap(), from);
            }
            let (mut states, mut step) = (Vec::new(), from);
            for &stop in at {
                (step..stop).for_each(|step| trainer.step(step));
                step = stop;
                self.barrier();
                states.extend((position == 0).then(|| trainer.collect()));
                self.barrier();
            }
            states
        };
        let run = &run;
        let trainers = self.training().train.trainers.ranks.len();
        thread::scope(|scope| {
            let running: Vec<_> = (0..trainers).map(|position| scope.spawn(move || run(position))).collect();
            running.into_iter().flat_map(|trainer| trainer.join().unwrap()).collect()
        })
    }

    /// Gives the owners what they have of each module.
    fn restore(&self, states: &States) {
        for spec in &self.training().modules {
            let (_, state) = states.iter().find(|(name, _)| name == spec.written_name()).unwrap();
            let owners = if spec.placement == Placement::Replicas { &[][..] } else { &spec.place.ranks };
            for &owner in owners {
                state.restore(&self.ranks[0].autograd, owner, &spec.name).unwrap();
            }
        }
    }

    pub fn end(self) {
        let meshes = self.ranks.into_iter().map(|node| node.mesh.clone()).collect();
        support::shut_down(meshes);
    }
}

pub struct Trainer<'a> {
    training: &'a Training,
    autograd: Arc<Autograd>,
    rank: Rank,
    modules: Vec<ModuleHandle>,
    sync: Option<GradientSync>,
    pub optimizer: DistributedOptimizer,
}

impl<'a> Trainer<'a> {
    pub fn new(world: &'a World, position: usize, optimizer: &OptimizerSpec) -> Trainer<'a> {
        let training = world.training();
        let rank = training.train.trainers.ranks[position];
        let node = &world.ranks[rank.index()];
        let autograd = &node.autograd;
        let handle = |(nth, spec): (usize, &ModuleSpec)| match spec.placement {
            Placement::Remote => {
                ModuleHandle::Remote(RemoteModule::get(autograd, spec.host_of(position), &spec.name).unwrap())
            }
            Placement::Replicas => ModuleHandle::Replica(Box::new(
                Replica::build(spec, &CPU, training.module_seed(nth)).unwrap(),
            )),
            Placement::Shards(_) => {
                ModuleHandle::Sharded(Box::new(ShardedModule::get(autograd, spec).unwrap()))
            }
            Placement::Caller => {
                let filter = training.pull_push.filter;
                let exchanged = Exchanged { filter, local_steps: 1, takes_turns: false };
                ModuleHandle::Pulled(Box::new(Pulled::build(autograd, spec, &CPU, 0, exchanged).unwrap()))
            }
        };
        let modules: Vec<ModuleHandle> = training.modules.iter().enumerate().map(handle).collect();
        let replicas: Vec<&Replica> = modules.iter().filter_map(ModuleHandle::replica).collect();
        let sync = (!replicas.is_empty()).then(|| {
            let group = node.groups.join(&node.mesh, "trainers", &training.train.trainers.ranks).unwrap();
            GradientSync::new(group, &[replicas], &training.replicas).unwrap()
        });
        let updated = |module: &ModuleHandle| (module.parameters().unwrap(), optimizer.clone().into());
        let optimizer = DistributedOptimizer::new(autograd, modules.iter().map(updated).collect()).unwrap();
        Trainer { training, autograd: autograd.clone(), rank, modules, sync, optimizer }
    }

    fn go_on_from(&mut self, states: &States, step: u64) {
        for (spec, module) in self.training.modules.iter().zip(&self.modules) {
            let (_, state) = states.iter().find(|(name, _)| name == spec.written_name()).unwrap();
            match module {
                ModuleHandle::Replica(_) => self.optimizer.restore(&spec.name, state).unwrap(),
                ModuleHandle::Pulled(pulled) => pulled.restore(state).unwrap(),
                ModuleHandle::Remote(_) | ModuleHandle::Sharded(_) => {}
            }
        }
        self.optimizer.refresh().unwrap();
        self.optimizer.go_on_from(step, None);
    }

    /// One step on a batch that is a function of this trainer and the step.
    pub fn step(&mut self, step: u64) {
        self.step_through(step, self.modules.len());
    }

    /// One that uses only the first modules.
    pub fn step_through(&mut self, step: u64, modules: usize) {
        let context = self.autograd.context();
        if let Some(sync) = &mut self.sync {
            sync.begin(&context, 1).unwrap();
        }
        let how = Forward {
            train: true,
            dropout_seed: step * 31 + u64::from(self.rank.0),
            after: self.optimizer.steps(),
        };
        let mut cut = self.training.clone();
        cut.modules.truncate(modules);
        cut.loss.from = vec![Source::Output { module: modules - 1, output: 0 }];
        let (walk, modules) = (Walk::new(&cut), &self.modules[..modules]);
        let forwards = vec![how; modules.len()];
        let passage = Passage { walk: &walk, modules, context: Some(&context), forwards };
        let (input, target) = self.batch(step);
        let outputs = MicroBatch::start(&passage, vec![input]).unwrap().finish(&passage).unwrap();
        let loss = (&outputs[0] - target).square().mean(Kind::Float);
        let backward = self.autograd.backward(&context, &[loss], false);
        let stepping = self.optimizer.step(&context, &backward, BATCH as u64).unwrap();
        backward.wait().unwrap();
        if let Some(sync) = &mut self.sync {
            sync.after_backward(&context).unwrap();
        }
        stepping.wait().unwrap();
    }

    pub fn batch(&self, step: u64) -> (Tensor, Tensor) {
        let number = |at: i64| (step as i64 * 37 + i64::from(self.rank.0) * 101 + at * 13) % 97;
        let target: Vec<f32> = (0..BATCH * 3).map(|at| number(at + 5) as f32 / 97.0).collect();
        let target = Tensor::from_slice(&target).view([BATCH, 3]);
        let input = match self.training.modules[0].rows() {
            Some(RowTable { table, columns, .. }) => {
                // Of one table, or of one for each of two columns.
                let columns: Vec<i64> =
                    columns.iter().flat_map(Columns::tables).map(|(_, rows)| rows.end - rows.start).collect();
                let rows = |at: i64| columns.get(at as usize % 2).copied().unwrap_or(table.rows);
                let ids: Vec<i64> = (0..BATCH * 2).map(|at| number(at) % rows(at)).collect();
                Tensor::from_slice(&ids).view([BATCH, 2])
            }
            _ => {
                let numbers: Vec<f32> = (0..BATCH * 6).map(|at| number(at) as f32 / 50.0 - 1.0).collect();
                Tensor::from_slice(&numbers).view([BATCH, 6])
            }
        };
        (input, target)
    }

    /// The state of each module, of all its owners, by the name that it is written under.
    pub fn collect(&mut self) -> States {
        let mut snapshots: Vec<(String, Vec<StateSnapshot>)> = Vec::new();
        for (spec, module) in self.training.modules.iter().zip(&self.modules) {
            let mut taken: Vec<StateSnapshot> = match module {
                ModuleHandle::Replica(_) => vec![self.optimizer.snapshot(&spec.name).unwrap()],
                ModuleHandle::Pulled(pulled) => vec![pulled.snapshot().unwrap()],
                ModuleHandle::Remote(_) | ModuleHandle::Sharded(_) => Vec::new(),
            };
            if spec.placement != Placement::Replicas {
                let take =
                    |&owner: &Rank| StateSnapshot::take(&self.autograd, owner, &spec.name, RowChoice::Used);
                taken.extend(spec.place.ranks.iter().map(|owner| take(owner).unwrap()));
            }
            match snapshots.iter_mut().find(|(name, _)| name == spec.written_name()) {
                Some((_, stages)) => stages.extend(taken),
                None => snapshots.push((spec.written_name().into(), taken)),
            }
        }
        snapshots.into_iter().map(|(name, taken)| (name, collected(&taken))).collect()
    }
}

const BATCH: i64 = 4;
