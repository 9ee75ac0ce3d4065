//! The state of a model: taken from its owners while they train, given to others, gone on from.

mod statistics;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pstrain::optimizers::{OPTIMIZERS, OptimizerSpec};
use pstrain::parallel::{Entry, Extent, ModuleState, RowChoice, StateKey, StateSnapshot};
use pstrain::topology::Rank;
use tch::Tensor;

use crate::parallel::collected;
use crate::support::runs_by_default;
use world::{Trainer, World};

const STEPS: u64 = 40;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Remote,
    Stages,
    Rows,
    Hash,
    /// By hash, and rows come and go.
    Living,
    /// Two columns with tables of their own, cut so.
    ColumnRows,
    ColumnHash,
    ColumnLiving,
    Caller,
    Replicas,
    RemoteReplicas,
}

/// A job of two trainers and so many servers.
fn job(place: Place, servers: u32, consistency: &str) -> String {
    let dense = r#"input = [6]
        layers = [{ type = "linear", in_features = 6, out_features = 5 }, { type = "batch_norm1d", num_features = 5 },
            "tanh", { type = "dropout", p = 0.2 }, { type = "linear", in_features = 5, out_features = 3 }]"#;
    let cut = |table: &str, behind: &str, shards: &str| {
        format!(
            r#"[modules.table]
            place = "server"
            shards = "{shards}
            input = [2]
            input_dtype = "int64"
            layers = [{{ {table}, embedding_dim = 6 }}]
            [modules.net]
            place = "behind"
            layers = [{behind}]"#
        )
    };
    let table = |shards: &str| {
        let bags = r#"type = "embedding_bag", num_embeddings = 90, mode = "sum""#;
        cut(bags, r#"{ type = "linear", in_features = 6, out_features = 3 }"#, shards)
    };
    let columns = |shards: &str| {
        let tables = r#"type = "embedding", num_embeddings = [60, 30]"#;
        cut(tables, r#""flatten", { type = "linear", in_features = 12, out_features = 3 }"#, shards)
    };
    let living = "hash\"\nadmit_after = 2\nevict_after = 3";
    let (roles, modules): (String, String) = match place {
        Place::Remote => ("server = 1".into(), format!("[modules.net]\nplace = \"server\"\n{dense}")),
        Place::Stages => {
            ("front = 1\nback = 1".into(), format!("[modules.net]\nplace = [\"front\", \"back\"]\n{dense}"))
        }
        Place::RemoteReplicas => ("server = 2".into(), format!("[modules.net]\nplace = \"server\"\n{dense}")),
        Place::Replicas => ("".into(), format!("[modules.net]\nplace = \"trainer\"\n{dense}")),
        Place::Caller => (
            format!("server = {servers}"),
            format!("[modules.net]\nplace = \"server\"\nrun = \"caller\"\n{dense}"),
        ),
        Place::Rows => (format!("server = {servers}\nbehind = 1"), table("rows\"")),
        Place::Hash => (format!("server = {servers}\nbehind = 1"), table("hash\"")),
        Place::Living => (format!("server = {servers}\nbehind = 1"), table(living)),
        Place::ColumnRows => (format!("server = {servers}\nbehind = 1"), columns("rows\"")),
        Place::ColumnHash => (format!("server = {servers}\nbehind = 1"), columns("hash\"")),
        Place::ColumnLiving => (format!("server = {servers}\nbehind = 1"), columns(living)),
    };
    let rounds = matches!(place, Place::Replicas | Place::RemoteReplicas);
    let consistency = if rounds { String::new() } else { format!("consistency = \"{consistency}\"") };
    let forward = if modules.contains("shards = ") { "[\"table\", \"net\"]" } else { "[\"net\"]" };
    format!(
        "name = \"state\"\nseed = 3\n[roles]\ntrainer = 2\n{roles}\n{modules}\n[data]\nplugin = \"own.wasm\"\n\
         [loss]\nplugin = \"mse\"\n[optimizer]\ntype = \"sgd\"\n\
         [train]\nrole = \"trainer\"\nforward = {forward}\n{consistency}\n"
    )
}

fn options(json: serde_json::Value) -> OptimizerSpec {
    serde_json::from_value(json).unwrap()
}

fn optimizers() -> Vec<OptimizerSpec> {
    let decay = 0.01;
    let adam = |name: &str, amsgrad: bool| {
        options(serde_json::json!({ "type": name, "lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-8,
            "weight_decay": decay, "amsgrad": amsgrad, "maximize": false }))
    };
    vec![
        options(serde_json::json!({ "type": "sgd", "lr": 0.05, "momentum": 0.9, "dampening": 0.1,
            "weight_decay": decay, "nesterov": false, "maximize": false })),
        adam("adam", true),
        adam("adamw", false),
        options(serde_json::json!({ "type": "adagrad", "lr": 0.05, "lr_decay": 0.01, "weight_decay": decay,
            "initial_accumulator_value": 0.1, "eps": 1e-10, "maximize": false })),
        options(serde_json::json!({ "type": "adadelta", "lr": 1.0, "rho": 0.9, "eps": 1e-6,
            "weight_decay": decay, "maximize": false })),
        options(serde_json::json!({ "type": "adamax", "lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-8,
            "weight_decay": decay, "maximize": false })),
        options(serde_json::json!({ "type": "rmsprop", "lr": 0.01, "alpha": 0.9, "eps": 1e-8,
            "weight_decay": decay, "momentum": 0.5, "centered": true, "maximize": false })),
        options(serde_json::json!({ "type": "rprop", "lr": 0.01, "etas": [0.5, 1.2],
            "step_sizes": [1e-6, 50.0], "maximize": false })),
        options(serde_json::json!({ "type": "nadam", "lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-8,
            "weight_decay": decay, "momentum_decay": 4e-3, "decoupled_weight_decay": false, "maximize": false })),
        options(serde_json::json!({ "type": "radam", "lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-8,
            "weight_decay": decay, "decoupled_weight_decay": true, "maximize": false })),
        options(serde_json::json!({ "type": "lion", "lr": 0.01, "betas": [0.9, 0.99], "weight_decay": decay,
            "maximize": false })),
    ]
}

/// Those that can update single rows.
fn row_optimizers() -> Vec<OptimizerSpec> {
    vec![
        options(serde_json::json!({ "type": "sgd", "lr": 0.05, "momentum": 0.0, "dampening": 0.0,
            "weight_decay": 0.0, "nesterov": false, "maximize": false })),
        options(serde_json::json!({ "type": "adagrad", "lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.0,
            "initial_accumulator_value": 0.1, "eps": 1e-10, "maximize": false })),
        options(serde_json::json!({ "type": "adam", "lr": 0.05, "betas": [0.9, 0.99], "eps": 1e-8,
            "weight_decay": 0.0, "amsgrad": false, "maximize": false })),
    ]
}

/// The numbers of a state by tensor and slot; of a table in the order of the ids, and with them.
fn numbers(state: &ModuleState) -> BTreeMap<String, Vec<f64>> {
    let in_order = |key: &StateKey, value: &Tensor| match state.ids(key) {
        Some(ids) => {
            let order = ids.argsort(0, false);
            let ids = ids.index_select(0, &order).to_kind(tch::Kind::Double).unsqueeze(1);
            Tensor::cat(&[ids, value.index_select(0, &order).to_kind(tch::Kind::Double)], 1)
        }
        None => value.shallow_clone(),
    };
    let numbers =
        |value: Tensor| Vec::<f64>::try_from(value.to_kind(tch::Kind::Double).reshape([-1])).unwrap();
    let named = state.tensors().map(|(key, value)| {
        let StateKey { tensor, slot, lane } = key;
        let name = format!("{tensor} {} {lane:?}", slot.as_deref().unwrap_or(""));
        (name, numbers(in_order(key, value)))
    });
    named.collect()
}

#[track_caller]
fn assert_goes_on(optimizer: &OptimizerSpec, before: (Place, u32), after: (Place, u32)) {
    if !runs_by_default() {
        return;
    }
    // A module draws its dropout for itself, so other stages draw others.
    let dropout = if before.0 == after.0 { "p = 0.2" } else { "p = 0.0" };
    let world = |(place, servers)| World::start(&job(place, servers, "bsp").replace("p = 0.2", dropout));
    let whole = world(before);
    let mut states = whole.train(optimizer, 0, &[STEPS / 2, STEPS], None);
    whole.end();
    let (expected, state) = (states.pop().unwrap(), states.pop().unwrap());
    let second = world(after);
    let reached = second.train(optimizer, STEPS / 2, &[STEPS], Some(state)).pop().unwrap();
    second.end();
    for ((module, expected), (_, reached)) in expected.iter().zip(&reached) {
        let (wanted, got) = (numbers(expected), numbers(reached));
        assert_eq!(
            wanted.keys().collect::<Vec<_>>(),
            got.keys().collect::<Vec<_>>(),
            "{before:?} to {after:?}, {optimizer:?}: {module}"
        );
        for (name, wanted) in &wanted {
            let same = wanted.iter().zip(&got[name]).all(|(one, other)| one.to_bits() == other.to_bits());
            assert!(same, "{before:?} to {after:?}, {optimizer:?}: `{name}` of {module} differs");
        }
        assert_eq!(expected.counters.steps, reached.counters.steps, "{before:?} to {after:?}");
    }
}

#[test]
fn a_state_goes_on_elsewhere_as_if_training_had_never_stopped() {
    let names =
        |optimizers: &[OptimizerSpec]| optimizers.iter().map(OptimizerSpec::name).collect::<BTreeSet<_>>();
    let all: BTreeSet<&str> = OPTIMIZERS.iter().map(|entry| entry.name).collect();
    assert_eq!(names(&optimizers()), all, "each optimizer has a case here");
    for optimizer in optimizers() {
        assert_goes_on(&optimizer, (Place::Remote, 1), (Place::Remote, 1));
        assert_goes_on(&optimizer, (Place::Stages, 1), (Place::Stages, 1));
        assert_goes_on(&optimizer, (Place::Caller, 2), (Place::Caller, 3));
        assert_goes_on(&optimizer, (Place::Replicas, 0), (Place::Replicas, 0));
        assert_goes_on(&optimizer, (Place::RemoteReplicas, 2), (Place::RemoteReplicas, 2));
    }
}

#[test]
fn rows_go_on_at_another_number_of_owners() {
    for optimizer in row_optimizers() {
        assert_goes_on(&optimizer, (Place::Rows, 2), (Place::Rows, 3));
        assert_goes_on(&optimizer, (Place::Hash, 3), (Place::Hash, 2));
        assert_goes_on(&optimizer, (Place::Living, 3), (Place::Living, 2));
        assert_goes_on(&optimizer, (Place::ColumnRows, 2), (Place::ColumnRows, 3));
        assert_goes_on(&optimizer, (Place::ColumnHash, 3), (Place::ColumnHash, 2));
        assert_goes_on(&optimizer, (Place::ColumnRows, 3), (Place::ColumnHash, 2));
        assert_goes_on(&optimizer, (Place::ColumnLiving, 3), (Place::ColumnLiving, 2));
    }
}

#[test]
fn a_module_goes_on_under_another_placement() {
    for optimizer in &optimizers()[..2] {
        assert_goes_on(optimizer, (Place::Remote, 1), (Place::Stages, 1));
        assert_goes_on(optimizer, (Place::Stages, 1), (Place::Remote, 1));
    }
}

/// Without order every trainer has an optimizer of its own. What two runs come to is not the same there.
#[test]
fn a_state_without_order_comes_back_with_the_optimizer_of_each_trainer() {
    for place in [Place::Remote, Place::Caller] {
        let text = job(place, 1, "hogwild");
        let (first, second) = (World::start(&text), World::start(&text));
        let optimizer = &optimizers()[1];
        let taken = first.train(optimizer, 0, &[5], None).pop().unwrap();
        first.end();
        let before: Vec<_> = taken.iter().map(|(_, state)| numbers(state)).collect();
        for rank in [0, 1] {
            let lane = format!("0.weight exp_avg Some(Rank({rank}))");
            assert!(before[0].contains_key(&lane), "{place:?}: {:?}", before[0].keys());
        }
        let given = second.train(optimizer, 5, &[5], Some(taken)).pop().unwrap();
        assert_eq!(given.iter().map(|(_, state)| numbers(state)).collect::<Vec<_>>(), before, "{place:?}");
        second.end();
    }
}

/// What a snapshot has stays as it is however often it is read, and whatever is updated meanwhile.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_snapshot_holds_still_under_load() {
    let cases = [
        (Place::Remote, "net", optimizers().remove(1)),
        (Place::Caller, "net", optimizers().remove(1)),
        (Place::Rows, "table", row_optimizers().remove(2)),
        (Place::Hash, "table", row_optimizers().remove(1)),
        (Place::Living, "table", row_optimizers().remove(1)),
        (Place::ColumnHash, "table", row_optimizers().remove(2)),
    ];
    for (place, module, optimizer) in cases {
        let world = World::start(&job(place, 1, "async"));
        let (stop, owner) = (AtomicBool::new(false), Rank(2));
        let mut trainers: Vec<Trainer<'_>> =
            (0..2).map(|position| Trainer::new(&world, position, &optimizer)).collect();
        trainers.iter_mut().for_each(|trainer| trainer.step(0));
        thread::scope(|scope| {
            for trainer in &mut trainers {
                let stop = &stop;
                scope.spawn(move || {
                    (1..).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|step| trainer.step(step))
                });
            }
            let read = |snapshot: &StateSnapshot| numbers(&collected(std::slice::from_ref(snapshot)));
            let take =
                || StateSnapshot::take(&world.ranks[0].autograd, owner, module, RowChoice::Used).unwrap();
            let mut changed = 0;
            for _ in 0..20 {
                let snapshot = take();
                let first = read(&snapshot);
                while take().counters.updates < snapshot.counters.updates + 4 {
                    thread::yield_now();
                }
                assert_eq!(read(&snapshot), first, "{place:?}");
                changed += usize::from(read(&take()) != first);
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(changed, 20, "{place:?}: nothing was updated");
        });
        drop(trainers);
        world.end();
    }
}

/// The rows of each value and slot by their ids; what is no row is left out.
fn rows(state: &ModuleState) -> BTreeMap<StateKey, BTreeMap<i64, Vec<f64>>> {
    let of = |key: &StateKey, value: &Tensor| {
        let ids = Vec::<i64>::try_from(state.ids(key)?).unwrap();
        let row = |at: usize| Vec::<f64>::try_from(value.get(at as i64).to_kind(tch::Kind::Double)).unwrap();
        Some(ids.into_iter().enumerate().map(|(at, id)| (id, row(at))).collect())
    };
    state.tensors().filter_map(|(key, value)| Some((key.clone(), of(key, value)?))).collect()
}

/// ST-4: rows that come and go, those of several tables, and moving averages, which move without being written.
#[test]
fn rows_written_since_a_snapshot_are_with_those_of_the_snapshot_the_rows_of_now() {
    let averaged = |job: String| job + "[ema]\ndecay = 0.9\n";
    let plain = |job: String| job;
    let cases: [(Place, &dyn Fn(String) -> String); 6] = [
        (Place::Rows, &plain),
        (Place::Hash, &averaged),
        (Place::Living, &plain),
        (Place::Living, &averaged),
        (Place::ColumnRows, &plain),
        (Place::ColumnLiving, &averaged),
    ];
    for (place, adjust) in cases {
        // Of a row's steps there are twelve or so from one to the next.
        let job = adjust(job(place, 1, "async")).replace("evict_after = 3", "evict_after = 14");
        let world = World::start(&job);
        let mut trainer = Trainer::new(&world, 0, &row_optimizers()[1]);
        let take = |which| StateSnapshot::take(&world.ranks[0].autograd, Rank(2), "table", which).unwrap();
        let read = |snapshot: &StateSnapshot| rows(&collected(std::slice::from_ref(snapshot)));
        let is_partial = |snapshot: &StateSnapshot| {
            snapshot.entries.iter().any(|entry| matches!(entry.extent, Extent::Rows { changed: true, .. }))
        };
        let (mut came, mut gone) = (0, 0);
        (0..40).for_each(|step| trainer.step(step));
        assert!(!is_partial(&take(RowChoice::Since(0))), "{place:?}: nobody has said that it would be asked");
        let mut step = 40;
        for _ in 0..3 {
            let base = take(RowChoice::Base);
            assert!(!is_partial(&base));
            let before = read(&base);
            for _ in 0..3 {
                trainer.step(step);
                step += 1;
                let (since, now) = (take(RowChoice::Since(base.version)), read(&take(RowChoice::Used)));
                assert!(is_partial(&since), "{place:?}");
                let is_whole = |entry: &&Entry| matches!(entry.extent, Extent::Rows { changed: false, .. });
                let whole = since.entries.iter().filter(is_whole).map(Entry::key);
                let whole: BTreeSet<StateKey> = whole.collect();
                let since = read(&since);
                for (key, now) in &now {
                    if whole.contains(key) {
                        assert_eq!(&since[key], now, "{place:?}: {key}");
                        continue;
                    }
                    let alive = since.get(&StateKey { slot: Some("age".into()), ..key.clone() });
                    let is_alive = |id: &i64| alive.is_none_or(|alive| alive.contains_key(id));
                    let mut over = before[key].clone();
                    over.retain(|id, _| is_alive(id));
                    over.extend(since[key].clone());
                    assert_eq!(&over, now, "{place:?}: {key}");
                    assert!(since[key].len() < now.len(), "{place:?}: {} of {}", since[key].len(), now.len());
                    came += now.keys().filter(|id| !before[key].contains_key(id)).count();
                    gone += before[key].keys().filter(|id| !now.contains_key(id)).count();
                }
            }
        }
        let lives = matches!(place, Place::Living | Place::ColumnLiving);
        assert!((came > 0 && gone > 0) == lives, "{place:?}: {came} came, {gone} went");
        drop(trainer);
        world.end();
    }
}

/// A replica's parameters are written in place.
#[test]
fn a_snapshot_of_a_replica_holds_still_while_it_steps() {
    let world = World::start(&job(Place::Replicas, 0, ""));
    let optimizer = optimizers().remove(1);
    let run = |position: usize| {
        let mut trainer = Trainer::new(&world, position, &optimizer);
        (0..5).for_each(|step| trainer.step(step));
        let snapshot = trainer.optimizer.snapshot("net").unwrap();
        let read = || numbers(&collected(std::slice::from_ref(&snapshot)));
        let first = read();
        (5..10).for_each(|step| trainer.step(step));
        assert_eq!(read(), first);
        let now = trainer.optimizer.snapshot("net").unwrap();
        assert_ne!(numbers(&collected(&[now])), first);
    };
    thread::scope(|scope| {
        let run = &run;
        let running = [0, 1].map(|position| scope.spawn(move || run(position)));
        running.into_iter().for_each(|trainer| trainer.join().unwrap());
    });
    world.end();
}
