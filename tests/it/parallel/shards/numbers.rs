//! The same numbers as one process's, however many owners there are.

use std::collections::BTreeSet;

use pstrain::job::shards::RowLife;
use pstrain::optimizers::{Adagrad, Adam};

use super::*;

/// Different rows that the samples may ask for.
const KNOWN: i64 = 40;
const STEPS: u64 = 20;
/// The samples of each trainer's batch: different sizes.
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
    /// As `Hash` without padding, and rows come and go.
    Living { admit_after: u64, evict_after: u64 },
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
            Case::Living { admit_after, evict_after } => {
                let row_life = RowLife { admit_after, evict_after: Some(evict_after) };
                ModuleSpec { row_life, ..sharded("hash", owners, "[6]", &embedding(KNOWN)) }
            }
        }
    }

    /// From the numbers of known rows to ids.
    fn ids(self, numbers: &Tensor) -> Tensor {
        match self {
            Case::Rows => numbers.shallow_clone(),
            Case::Hash | Case::Living { .. } => numbers * 1_000_000_000_039i64,
        }
    }

    fn asked(self, step: u64, trainer: u32) -> Tensor {
        asked(step, trainer, if matches!(self, Case::Rows) { -1 } else { 0 })
    }

    /// The layer's output by plain operations.
    fn output(self, table: &Tensor, numbers: &Tensor) -> Tensor {
        let rows = table.index_select(0, &numbers.clamp_min(0).view(-1)).view([-1, LENGTH, DIM]);
        match self {
            Case::Hash | Case::Living { .. } => rows,
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
    let rows = world.module(0).predict(&[case.ids(&known()).unsqueeze(-1)]).unwrap().view([KNOWN, DIM]);
    world.end();
    rows
}

/// Which rows a table has, told from all steps so far by what `admit_after` and `evict_after` promise.
struct History {
    /// By row: how often a step has asked for it since it was forgotten last, and the step that did so last.
    seen: Vec<(u64, u64)>,
}

impl History {
    /// The rows that are forgotten before `step`.
    fn forget(&mut self, step: u64, evict_after: u64) -> Vec<i64> {
        let over =
            |(_, (sightings, last)): &(i64, &mut (u64, u64))| *sightings > 0 && step - *last > evict_after;
        let forgotten = (0..).zip(&mut self.seen).filter(over);
        forgotten
            .map(|(row, seen)| {
                *seen = (0, 0);
                row
            })
            .collect()
    }

    fn see(&mut self, step: u64, asked: &Tensor) {
        let asked: BTreeSet<i64> = Vec::try_from(asked.view(-1)).unwrap().into_iter().collect();
        for row in asked {
            let (sightings, last) = &mut self.seen[row as usize];
            (*sightings, *last) = (*sightings + 1, step);
        }
    }

    fn live(&self, admit_after: u64) -> Vec<i64> {
        let rows = (0..).zip(&self.seen).filter(|(_, (sightings, _))| *sightings >= admit_after);
        rows.map(|(row, _)| row).collect()
    }
}

/// torch's rules written down: `SGD`, `Adagrad`, and `SparseAdam` on the rows that have gradients.
fn one_process(case: Case, optimizer: &OptimizerSpec) -> Outcome {
    let initial = initial_rows(case);
    let table = initial.copy().set_requires_grad(true);
    let mut history = History { seen: vec![(0, 0); KNOWN as usize] };
    let mut live: Vec<i64> = (0..KNOWN).collect();
    let [mut sums, mut means, mut squares] =
        [0.1, 0.0, 0.0].map(|first| Tensor::full([KNOWN, DIM], first, FLOAT));
    let mut losses = Vec::new();
    for step in 0..STEPS {
        if let Case::Living { admit_after, evict_after } = case {
            for row in history.forget(step, evict_after) {
                table.detach().select(0, row).copy_(&initial.select(0, row));
                let _ = sums.select(0, row).fill_(0.1);
                let _ = (means.select(0, row).zero_(), squares.select(0, row).zero_());
            }
            (0..TRAINERS).for_each(|trainer| history.see(step, &case.asked(step, trainer)));
            live = history.live(admit_after);
        }
        let numbers = Tensor::cat(&[case.asked(step, 0), case.asked(step, 1)], 0);
        let loss = loss(&case.output(&table, &numbers));
        losses.push(loss.double_value(&[]));
        let gradient = Tensor::run_backward(&[&loss], &[&table], false, false).swap_remove(0);
        let touched = Tensor::zeros([KNOWN, 1], FLOAT).index_fill(0, &numbers.clamp_min(0).view(-1), 1.0);
        let padded = matches!(case, Case::Hash);
        let count = (step + 1) as f64;
        let is_live = Tensor::zeros([KNOWN, 1], FLOAT).index_fill(0, &Tensor::from_slice(&live), 1.0);
        let (gradient, touched) = (gradient * &is_live, touched * &is_live);
        no_grad(|| {
            if padded {
                let _ = gradient.select(0, 0).zero_();
            }
            let change = match optimizer {
                OptimizerSpec::Sgd(options) => &gradient * options.lr,
                &OptimizerSpec::Adagrad(Adagrad { lr, lr_decay, eps, .. }) => {
                    sums += &gradient * &gradient;
                    &gradient / (sums.sqrt() + eps) * (lr / (1.0 + (count - 1.0) * lr_decay))
                }
                &OptimizerSpec::Adam(Adam { lr, betas: [first, second], eps, .. }) => {
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
    if let Case::Living { admit_after, evict_after } = case {
        history.forget(STEPS, evict_after);
        live = history.live(admit_after);
    }
    let rows = table.detach().index_select(0, &Tensor::from_slice(&live));
    Outcome { losses, rows: Vec::try_from(rows).unwrap() }
}

fn assert_owners_do_not_matter(case: Case, optimizer: &OptimizerSpec) {
    let one = with_owners(case, 1, optimizer);
    for owners in [2, 3] {
        let more = with_owners(case, owners, optimizer);
        assert_eq!(more.losses, one.losses, "{owners} owners, {optimizer:?}: the same bits");
        assert_eq!(more.rows, one.rows, "{owners} owners, {optimizer:?}: the same bits");
    }
    let expected = one_process(case, optimizer);
    match case {
        Case::Rows | Case::Hash => {
            assert!(expected.losses[STEPS as usize - 1] < 0.8 * expected.losses[0], "{:?}", expected.losses);
            assert_eq!(one.rows.len(), KNOWN as usize, "each row was asked for");
        }
        Case::Living { .. } => {
            assert!((1..KNOWN as usize).contains(&one.rows.len()), "{} rows", one.rows.len());
        }
    }
    assert_eq!(one.rows.len(), expected.rows.len(), "{optimizer:?}: rows that there are");
    for (step, (ours, theirs)) in one.losses.iter().zip(&expected.losses).enumerate() {
        assert!(
            (ours - theirs).abs() < 1e-5 * theirs.max(1.0),
            "{optimizer:?}, step {step}: {ours}, {theirs}"
        );
    }
    for (row, (ours, theirs)) in one.rows.iter().zip(&expected.rows).enumerate() {
        for (ours, theirs) in ours.iter().zip(theirs) {
            let near = 1e-5 * theirs.abs().max(1.0);
            assert!((ours - theirs).abs() < near, "{optimizer:?}, row {row}: {ours}, {theirs}");
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

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn rows_that_come_and_go_do_so_on_one_two_and_three_ranks_as_the_job_says() {
    for (admit_after, evict_after) in [(3, 4), (1, 2), (30, 100)] {
        for optimizer in [sgd(0.5), adagrad(), adam()] {
            assert_owners_do_not_matter(Case::Living { admit_after, evict_after }, &optimizer);
        }
    }
}

#[test]
fn rows_that_could_go_and_do_not_have_the_bits_of_those_that_stay() {
    let life = Case::Living { admit_after: 1, evict_after: STEPS };
    let spec = |row_life| ModuleSpec { row_life, ..life.spec(2) };
    let run = |spec: &ModuleSpec| {
        let world = World::start(spec, Consistency::Bsp);
        let train = move |rank, mut trainer: Trainer| {
            let step = |step| trainer.step(&life.ids(&life.asked(step, rank)), loss).0;
            let losses: Vec<f64> = (0..STEPS).map(step).collect();
            trainer.module.leave().unwrap();
            losses
        };
        let losses = world.train(train, &adam());
        let rows = world.rows();
        world.end();
        (losses, rows)
    };
    assert!(run(&life.spec(2)) == run(&spec(RowLife::FOR_EVER)));
}
