//! Running statistics, and modules that a step does not use.

use std::thread;

use pstrain::parallel::ModuleState;
use tch::{Kind, Tensor};

use super::world::{Trainer, World};
use super::{numbers, row_optimizers};
use crate::parallel::collected;

const TAIL: &str = "[data]\nplugin = \"own.wasm\"\n[loss]\nplugin = \"mse\"\n[optimizer]\ntype = \"sgd\"\n\
    [train]\nrole = \"trainer\"\n";

/// Trains the first steps of a job by plain SGD, and takes what that leaves of its only module.
fn trained(text: &str, steps: u64) -> ModuleState {
    let world = World::start(text);
    let mut states = world.train(&row_optimizers()[0], 0, &[steps], None);
    world.end();
    states.remove(0).remove(0).1
}

fn tensor<'a>(state: &'a ModuleState, name: &str) -> &'a Tensor {
    state.value(name).unwrap_or_else(|| panic!("`{name}` is not in the state"))
}

/// Under `bsp` statistics are folded when a round ends. A module without parameters has rounds, too, if it has statistics.
#[test]
fn a_module_of_nothing_but_running_statistics_keeps_them_in_rounds() {
    const ROUNDS: i64 = 5;
    let norm = r#"{ type = "batch_norm1d", num_features = 6, affine = false }"#;
    let linear = r#"{ type = "linear", in_features = 6, out_features = 3 }"#;
    let alone = |made_of: &str| {
        format!(
            "[modules.norm]\nplace = \"front\"\ninput = [6]\n{made_of}\n\
             [modules.net]\nplace = \"back\"\nlayers = [{linear}]\n"
        )
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/torchscript/statistics.pt");
    let (layers, script) =
        (format!("layers = [{norm}]"), format!("torchscript = \"{script}\"\noutput = [6]"));
    let (layers, script) = (alone(&layers), alone(&script));
    let stages = format!(
        "[modules.norm]\nplace = [\"front\", \"back\"]\nstages = [\"1\"]\ninput = [6]\nlayers = [{norm}, {linear}]\n"
    );
    // Each host folds what its own trainers have seen.
    for (hosts, folded) in [(1, 2 * ROUNDS), (2, ROUNDS)] {
        let both = "\"norm\", \"net\"";
        for (modules, forward) in [(&layers, both), (&script, both), (&stages, "\"norm\"")] {
            let text = format!(
                "name = \"x\"\nseed = 3\n[roles]\ntrainer = 2\nfront = {hosts}\nback = {hosts}\n{modules}{TAIL}\
                 forward = [{forward}]\n{}",
                if hosts == 1 { "consistency = \"bsp\"\n" } else { "" }
            );
            let state = trained(&text, ROUNDS as u64);
            assert_eq!(tensor(&state, "0.num_batches_tracked").int64_value(&[]), folded, "{text}");
            assert!(tensor(&state, "0.running_mean").abs().max().double_value(&[]) > 0.01, "{text}");
        }
    }
}

/// As of DistributedDataParallel with `broadcast_buffers`: every forward begins with the first replica's.
#[test]
fn of_replicas_the_first_ones_running_statistics_are_saved() {
    const STEPS: u64 = 4;
    let text = format!(
        "name = \"x\"\nseed = 3\n[roles]\ntrainer = 2\n[modules.net]\nplace = \"trainer\"\ninput = [6]\n\
         layers = [{{ type = \"batch_norm1d\", num_features = 6 }}, {{ type = \"linear\", in_features = 6, out_features = 3 }}]\n{TAIL}"
    );
    let world = World::start(&text);
    let optimizer = &row_optimizers()[0];
    let run = |position: usize| {
        let mut trainer = Trainer::new(&world, position, optimizer);
        let mut running = Tensor::zeros([6], (Kind::Float, tch::Device::Cpu));
        for step in 0..STEPS {
            let (input, _) = trainer.batch(step);
            let mean = input.mean_dim([0i64].as_slice(), false, Kind::Float);
            let _ = running.lerp_(&mean, 0.1);
            trainer.step(step);
        }
        (position == 0).then(|| {
            let snapshot = trainer.optimizer.snapshot("net").unwrap();
            (collected(&[snapshot]), running)
        })
    };
    let run = &run;
    let (state, expected) = thread::scope(|scope| {
        let running = [0, 1].map(|position| scope.spawn(move || run(position)));
        running.into_iter().filter_map(|trainer| trainer.join().unwrap()).next().unwrap()
    });
    let difference = (tensor(&state, "0.running_mean") - expected).abs().max().double_value(&[]);
    assert!(difference < 1e-6, "{difference}");
    assert_eq!(tensor(&state, "0.num_batches_tracked").int64_value(&[]), STEPS as i64);
    world.end();
}

/// PyTorch's optimizer leaves parameters without gradients alone, also what it remembers of them.
#[test]
fn a_step_leaves_a_module_alone_that_it_did_not_use() {
    let linear = |inputs: i64| {
        format!("layers = [{{ type = \"linear\", in_features = {inputs}, out_features = 3 }}]\n")
    };
    let every = ["async", "bsp", "ssp", "hogwild", "sequential"];
    let remote = every.map(|consistency| (1, "", consistency));
    // Under `sequential` a pull waits for the other trainer's step, which here waits for this one.
    let pulled = every[..4].iter().map(|consistency| (1, "run = \"caller\"\n", *consistency));
    for (hosts, caller, consistency) in remote.into_iter().chain(pulled).chain([(2, "", "bsp")]) {
        let text = format!(
            "name = \"x\"\nseed = 3\n[roles]\ntrainer = 2\nfront = {hosts}\nback = {hosts}\n\
             [modules.net]\nplace = \"front\"\ninput = [6]\n{caller}{}[modules.more]\nplace = \"back\"\n{caller}{}{TAIL}\
             forward = [\"net\", \"more\"]\nconsistency = \"{consistency}\"\n{}",
            linear(6),
            linear(3),
            if consistency == "ssp" { "staleness = 2\n" } else { "" }
        );
        let world = World::start(&text);
        let optimizer = &super::optimizers()[1];
        let run = |position: usize| {
            let mut trainer = Trainer::new(&world, position, optimizer);
            trainer.step(0);
            // Both have come so far before either is looked at.
            world.barrier();
            let before = (position == 0).then(|| trainer.collect());
            world.barrier();
            (1..4).for_each(|step| trainer.step_through(step, 1));
            world.barrier();
            let after = (position == 0).then(|| trainer.collect());
            world.barrier();
            trainer.step(4);
            before.zip(after)
        };
        let run = &run;
        let (before, after) = thread::scope(|scope| {
            let running = [0, 1].map(|position| scope.spawn(move || run(position)));
            running.into_iter().filter_map(|trainer| trainer.join().unwrap()).next().unwrap()
        });
        let [used, unused] = [0, 1].map(|at| (numbers(&before[at].1), numbers(&after[at].1)));
        assert_ne!(used.0, used.1, "{caller}{consistency}, {hosts} hosts");
        assert_eq!(unused.0, unused.1, "{caller}{consistency}, {hosts} hosts");
        world.end();
    }
}
