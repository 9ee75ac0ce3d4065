//! What travels between a trainer and the servers, and what either does when the other sends nonsense.

use std::sync::{Arc, Mutex};

use pstrain::autograd::Autograd;
use pstrain::job::{Consistency, Filter, ModuleSpec};
use pstrain::model::Module;
use pstrain::optimizers::{OptimizerSpec, Sgd};
use pstrain::parallel::calls::range;
use pstrain::parallel::{DistributedOptimizer, Exchanged, Forward, Outcome, Pulled, RangeServer, Traffic};
use pstrain::rpc::{Call, Mesh, Message, Methods, RRef, Value};
use pstrain::topology::Rank;
use tch::{Kind, Tensor};

use super::{JOB, training};
use crate::support::{shut_down, world};

const SEED: u64 = 7;
/// Ranks 0 and 1 are servers.
const TRAINER: usize = 2;

fn spec() -> ModuleSpec {
    training(JOB, &[]).modules[0].clone()
}

fn sgd(lr: f64) -> OptimizerSpec {
    let (momentum, dampening, weight_decay) = (0.0, 0.0, 0.0);
    OptimizerSpec::Sgd(Sgd { lr, momentum, dampening, weight_decay, nesterov: false, maximize: false })
}

/// Three ranks, of which the last trains.
struct World {
    meshes: Vec<Mesh>,
    autograds: Vec<Arc<Autograd>>,
}

impl World {
    /// `serve` adds a server's methods.
    fn new(serve: impl Fn(&Arc<Autograd>, &mut Methods)) -> World {
        let autograds = Mutex::new(Vec::new());
        let meshes = world(3, |rank| {
            let (autograd, mut methods) = (Autograd::new(), Methods::new());
            autograd.register(&mut methods);
            if (rank as usize) < TRAINER {
                serve(&autograd, &mut methods);
            }
            autograds.lock().unwrap().push(autograd);
            methods
        });
        let autograds: Vec<Arc<Autograd>> = autograds.into_inner().unwrap();
        for (autograd, mesh) in autograds.iter().zip(&meshes) {
            autograd.bind(mesh.clone());
        }
        World { meshes, autograds }
    }

    fn of_ranges(consistency: Consistency, filter: Filter) -> World {
        World::new(|autograd, methods| {
            let trainers = vec![Rank(TRAINER as u32)];
            RangeServer::new(vec![(spec(), SEED)], trainers, consistency, filter).register(autograd, methods);
        })
    }

    fn trainer(&self, filter: Filter) -> (Pulled, DistributedOptimizer) {
        let (pulled, optimizer) = self.try_trainer(filter);
        (pulled, optimizer.unwrap())
    }

    fn try_trainer(&self, filter: Filter) -> (Pulled, anyhow::Result<DistributedOptimizer>) {
        let autograd = &self.autograds[TRAINER];
        let exchanged = Exchanged { filter, local_steps: 1, takes_turns: false };
        let pulled = Pulled::build(autograd, &spec(), &[tch::Device::Cpu], 0, exchanged).unwrap();
        let parameters = pulled.parameters();
        let optimizer = parameters
            .and_then(|parameters| DistributedOptimizer::new(autograd, vec![(parameters, sgd(0.1).into())]));
        (pulled, optimizer)
    }

    /// A step whose loss is made of the `used` parameters alone: the sum of their squares.
    fn step(
        &self,
        (pulled, optimizer): &mut (Pulled, DistributedOptimizer),
        used: &[usize],
    ) -> anyhow::Result<Outcome> {
        let autograd = &self.autograds[TRAINER];
        let context = autograd.context();
        let input = Tensor::zeros([1, 64], (Kind::Float, tch::Device::Cpu));
        let _ = pulled.forward(&context, &[input], Forward { train: true, dropout_seed: 0, after: 0 })?;
        let leaves: Vec<Tensor> = pulled.copy().leaves().collect();
        let loss: Tensor = used.iter().map(|&at| leaves[at].square().sum(Kind::Float)).sum();
        let backward = autograd.backward(&context, &[loss], false);
        let stepping = optimizer.step(&context, &backward, 1)?;
        backward.wait()?;
        stepping.wait()
    }

    fn shut_down(self) {
        shut_down(self.meshes);
    }
}

fn values(pulled: &Pulled) -> Vec<Tensor> {
    pulled.copy().parameters().tensors.iter().map(Tensor::copy).collect()
}

fn moved(before: Traffic, after: Traffic) -> [u64; 2] {
    [after.pushed_bytes - before.pushed_bytes, after.pulled_bytes - before.pulled_bytes]
}

/// The first server has 1,205 of the 2,410 values, all of the first weight's 2,048 among them.
#[test]
fn only_what_changed_travels() {
    const FIRST_BIAS: u64 = 4 * 32;
    const SECOND_BIAS: u64 = 4 * 10;
    for consistency in [Consistency::Async, Consistency::Bsp, Consistency::Hogwild] {
        let world = World::of_ranges(consistency, Filter::None);
        let mut trainer = world.trainer(Filter::None);
        let traffic = |trainer: &(Pulled, DistributedOptimizer)| trainer.1.traffic()[0].1;
        let start = traffic(&trainer);
        assert_eq!((start.pushed_bytes, start.pulled_bytes), (0, 4 * 2410), "all of it, once");
        for (used, bytes) in [
            (&[1][..], FIRST_BIAS),
            (&[1, 3], FIRST_BIAS + SECOND_BIAS),
            (&[3], SECOND_BIAS),
            (&[0], 4 * 2048),
        ] {
            let before = traffic(&trainer);
            world.step(&mut trainer, used).unwrap();
            assert_eq!(moved(before, traffic(&trainer)), [bytes, bytes], "{consistency:?}, {used:?}");
        }
        drop(trainer);
        world.shut_down();
    }
}

/// With a rate of 0.1 a step takes a fifth of each value away.
#[test]
fn a_trainer_has_what_the_servers_have_after_each_step() {
    let first = Module::build(&spec(), &[tch::Device::Cpu], SEED).unwrap().initial_parameters().unwrap();
    for consistency in [Consistency::Async, Consistency::Ssp { staleness: 0 }, Consistency::Hogwild] {
        let world = World::of_ranges(consistency, Filter::None);
        let mut trainer = world.trainer(Filter::None);
        assert_eq!(values(&trainer.0), first);
        for _ in 0..3 {
            world.step(&mut trainer, &[0, 1, 2, 3]).unwrap();
        }
        for (now, first) in values(&trainer.0).iter().zip(&first) {
            let off = (now - first * 0.512).abs().max().double_value(&[]);
            assert!(off < 1e-6, "{consistency:?}: {off}");
        }
        let before = values(&trainer.0);
        trainer.1.refresh().unwrap();
        assert_eq!(values(&trainer.0), before, "{consistency:?}: nothing was left to pull");
        drop(trainer);
        world.shut_down();
    }
}

/// What a filter leaves out of a pull comes with later ones, though nothing changes any more.
#[test]
fn what_a_filter_left_out_comes_later() {
    let world = World::of_ranges(Consistency::Async, Filter::Int8);
    let mut trainer = world.trainer(Filter::Int8);
    world.step(&mut trainer, &[0, 2]).unwrap();
    let after_one = values(&trainer.0);
    let mut waiting = 0;
    loop {
        let before = trainer.1.traffic()[0].1;
        // The answer of a skipped step brings what there is, too.
        trainer.1.skip(&world.autograds[TRAINER].context()).wait().unwrap();
        if moved(before, trainer.1.traffic()[0].1)[1] == 0 {
            break;
        }
        waiting += 1;
    }
    assert!((1..=20).contains(&waiting), "{waiting}");
    let settled = values(&trainer.0);
    assert_ne!(settled, after_one);
    trainer.1.refresh().unwrap();
    for (settled, exact) in settled.iter().zip(values(&trainer.0)) {
        assert!((settled - exact).abs().max().double_value(&[]) < 1e-6);
    }
    drop(trainer);
    world.shut_down();
}

/// An error of the rank that is at fault, named.
#[track_caller]
fn assert_says<T: std::fmt::Debug>(result: anyhow::Result<T>, what: &str) {
    let said = format!("{:#}", result.unwrap_err());
    assert!(said.contains(what), "{said}");
}

/// A server that answers a pull, or a push, with `answer`.
fn lying(answer: fn() -> Vec<Value>) -> World {
    World::new(move |_, methods| {
        methods.add(range::Get::NAME, async |incoming| {
            Ok(Message::new(vec![incoming.mesh.objects().insert(Arc::new(())).into()]))
        });
        methods.add(range::Optimize::NAME, async |_| Ok(Message::default()));
        for method in [range::Pull::NAME, range::Push::NAME] {
            methods.add(method, move |_| std::future::ready(Ok(Message::new(answer()))));
        }
    })
}

#[test]
fn a_servers_nonsense_is_refused_with_its_name() {
    let refused = |answer: fn() -> Vec<Value>, filter, why: &str| {
        let world = lying(answer);
        let (pulled, optimizer) = world.try_trainer(filter);
        assert_says(optimizer.map(drop), why);
        drop(pulled);
        world.shut_down();
    };
    refused(Vec::new, Filter::None, "its reply: `version` is missing");
    refused(
        || vec![Value::Int(1), Value::Bytes(vec![1; 9])],
        Filter::None,
        "what rank 0 sent of module `net`: values of 9 segments came for 1",
    );
    refused(
        || vec![Value::Int(-1), Value::Bytes(vec![1])],
        Filter::None,
        "`range.pull` on rank 0: its reply: `version`: expected an integer of at least 0, found -1",
    );
    refused(|| vec![Value::Int(1), Value::Bytes(vec![1])], Filter::Int8, "less came than the filter sends");
    refused(
        || vec![Value::Int(1), Value::Bytes(vec![1]), Tensor::from_slice(&[1.0f32]).into()],
        Filter::None,
        "Float of shape [1] came where the filter sends 1205 of Float",
    );
    refused(
        || vec![Value::Int(1), Value::Bytes(vec![0]), Value::Text("values".into())],
        Filter::None,
        "`parts`: element 0: expected a tensor, found a text",
    );
}

#[test]
fn a_trainers_nonsense_is_refused_and_changes_nothing() {
    let filter = Filter::TopK { share: 0.01 };
    let world = World::of_ranges(Consistency::Async, filter);
    let mut trainer = world.trainer(filter);
    let (mesh, before) = (&world.meshes[TRAINER], values(&trainer.0));
    let call = |method: &'static str, values: Vec<Value>| {
        mesh.call(Rank(0), method, Message::new(values)).wait().map(|message| message.values)
    };
    let get =
        || -> RRef { call(range::Get::NAME, vec!["net".into()]).unwrap().remove(0).into_rref().unwrap() };
    let push_at = |lr_factor: f64, used: i64, marks: &[u8], parts: Vec<Tensor>| {
        let weight = Value::Float(8.0);
        let head = vec![get().into(), used.into(), weight, lr_factor.into(), Value::Bytes(marks.to_vec())];
        let parts = parts.into_iter().map(Value::from);
        call(range::Push::NAME, head.into_iter().chain(parts).collect())
            .map(drop)
            .map_err(anyhow::Error::from)
    };
    let push = |used: i64, marks: &[u8], parts: Vec<Tensor>| push_at(1.0, used, marks, parts);
    let kept = |counts: i32, offset: i16, value: f32| {
        let (offsets, values) = ([offset; 13], [value; 13]);
        vec![Tensor::from_slice(&[counts]), Tensor::from_slice(&offsets), Tensor::from_slice(&values)]
    };
    assert_says(
        call(range::Get::NAME, vec!["nut".into()]).map(drop).map_err(Into::into),
        "not a server of module `nut`",
    );
    assert_says(push(0, &[1, 1], kept(13, 0, 1.0)), "gradients of 2 segments came for 1");
    assert_says(push(0, &[1], kept(13, 0, 1.0)), "not ascending");
    assert_says(push(0, &[1], kept(i32::MAX, 0, 1.0)), "do not add up");
    assert_says(push(0, &[1], Vec::new()), "less came than the filter sends");
    assert_says(
        push(-5, &[1], kept(13, 0, 1.0)),
        "`range.push` on rank 0: the request of rank 2: `version`: expected an integer of at least 0, found -5",
    );
    for factor in [f64::NAN, f64::INFINITY, -1.0] {
        assert_says(push_at(factor, 0, &[1], kept(13, 0, 1.0)), "a learning rate is not multiplied by");
        let half = vec![get().into(), Value::Int(0), Value::Int(1), factor.into()];
        assert_says(
            call(range::PushMeasured::NAME, half).map(drop).map_err(Into::into),
            "gradients are not multiplied by",
        );
    }
    let half = vec![get().into(), Value::Int(0), Value::Int(1), 0.5.into()];
    assert_says(
        call(range::PushMeasured::NAME, half).map(drop).map_err(Into::into),
        "there are no rounds here",
    );
    let other = call(range::Optimize::NAME, vec![get().into(), "{\"type\":\"sgd\"}".into()]).map(drop);
    assert_says(other.map_err(Into::into), "the request of rank 2: `options`: missing field");
    trainer.1.refresh().unwrap();
    assert_eq!(values(&trainer.0), before);
    drop(trainer);
    world.shut_down();
}

#[test]
fn gradients_that_are_not_finite_are_not_pushed() {
    let world = World::of_ranges(Consistency::Async, Filter::Int8);
    let mut trainer = world.trainer(Filter::Int8);
    let pushed = |trainer: &(Pulled, DistributedOptimizer)| trainer.1.traffic()[0].1.pushed_bytes;
    let _ = trainer.0.copy().parameters().tensors[1].shallow_clone().fill_(f64::INFINITY);
    let before = pushed(&trainer);
    let not_finite = world.step(&mut trainer, &[1]).unwrap().not_finite.unwrap();
    assert!(not_finite.starts_with("module `net`: the gradient of parameter `"), "{not_finite}");
    assert!(not_finite.ends_with("is infinite"), "{not_finite}");
    assert_eq!(pushed(&trainer), before);
    drop(trainer);
    world.shut_down();
}
