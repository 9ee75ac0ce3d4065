//! Updates of single rows of a table, by PyTorch's rules for sparse gradients. The other rows are neither read nor
//! written; they are not even in memory before they are used, which is why this works on slices of the table and not, as
//! [`Optimizer`](super::Optimizer) does, on tensors.

use std::ops::Range;

use super::average::{AVERAGE, RowAverages};
use super::rule::{Slot, each};
use super::{Hindered, Optimization, OptimizerSpec};

/// What updates a table, and what it remembers of each row.
#[derive(Debug)]
pub struct RowOptimizer {
    spec: OptimizerSpec,
    /// Each with a vector as long as the table, in its order.
    slots: Vec<Slot>,
    values: Vec<Vec<f32>>,
    /// Steps so far, of the table as a whole: also those that touched no row of this rank.
    steps: u64,
    /// The largest number that a gradient may have.
    clip_value: Option<f32>,
    averages: Option<RowAverages>,
}

impl RowOptimizer {
    /// For a table of so many numbers, `dim` in each row. `optimization`: of its clipping and averages.
    ///
    /// # Errors
    /// The optimizer, or one of its options, updates more than the rows that have gradients.
    pub fn new(
        spec: OptimizerSpec,
        optimization: &Optimization,
        dim: usize,
        numbers: usize,
    ) -> Result<RowOptimizer, Hindered> {
        spec.refuses_rows().map_or(Ok(()), Err)?;
        let slots = spec.rule().slots();
        let values = slots.iter().map(|slot| vec![slot.first as f32; numbers]).collect();
        let clip_value = optimization.clip_value.map(|limit| limit as f32);
        let averages = optimization.ema.map(|decay| RowAverages::new(decay, dim, numbers));
        Ok(RowOptimizer { spec, slots, values, steps: 0, clip_value, averages })
    }

    /// The table has become longer.
    pub fn grow(&mut self, numbers: usize) {
        for (slot, values) in self.slots.iter().zip(&mut self.values) {
            values.resize(numbers, slot.first as f32);
        }
        if let Some(averages) = &mut self.averages {
            averages.grow(numbers);
        }
    }

    /// Other rows stand where these numbers of the table are.
    pub fn forget(&mut self, numbers: Range<usize>) {
        for (slot, values) in self.slots.iter().zip(&mut self.values) {
            values[numbers.clone()].fill(slot.first as f32);
        }
    }

    /// The row that starts at number `at` of the table has been written, by no step: its average is what it is.
    pub fn written(&mut self, at: usize, row: &[f32]) {
        if let Some(averages) = &mut self.averages {
            averages.begin(at, row, self.steps);
        }
    }

    /// Are there averages?
    pub fn averages(&self) -> bool {
        self.averages.is_some()
    }

    /// Brings the average of a row, which starts at number `at` of the table, up to the steps that were taken.
    pub fn settle(&mut self, at: usize, row: &[f32]) {
        if let Some(averages) = &mut self.averages {
            averages.settle(at, row, self.steps);
        }
    }

    /// A row's average, settled before, becomes the row, and the row the average.
    pub fn swap_average(&mut self, at: usize, row: &mut [f32]) {
        if let Some(averages) = &mut self.averages {
            averages.row_mut(at..at + row.len()).swap_with_slice(row);
        }
    }

    /// Begins a step, of which rows are updated next, at the learning rate times `lr_factor`.
    pub fn begin(&mut self, lr_factor: f64) -> RowStep<'_> {
        self.steps += 1;
        let rule = self.spec.rule().row_rule().expect("was asked when this was made");
        // Each rule is odd in the gradient.
        let sign = if self.spec.maximizes() { -1.0 } else { 1.0 };
        let rate = rule.rate(self.steps, self.spec.lr() * lr_factor);
        let clip = self.clip_value.map(|limit| (limit, Vec::new()));
        let averages = self.averages.as_mut().map(|averages| (averages, self.steps));
        RowStep { rate: sign * rate as f32, rule, values: &mut self.values, clip, averages }
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The slots by PyTorch's names, and their numbers, which stand as those of the table do.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, &[f32])> {
        let of_rule = self.slots.iter().copied().zip(self.values.iter().map(Vec::as_slice));
        of_rule.chain(self.averages.iter().map(|averages| (each(AVERAGE, 0.0), averages.numbers.as_slice())))
    }

    /// As [`RowOptimizer::slots`], for whoever goes on from another's state.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = (Slot, &mut [f32])> {
        let of_rule = self.slots.iter().copied().zip(self.values.iter_mut().map(Vec::as_mut_slice));
        let averages = self.averages.iter_mut();
        of_rule.chain(averages.map(|averages| (each(AVERAGE, 0.0), averages.numbers.as_mut_slice())))
    }

    /// Goes on from so many steps, of which the averages are.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
        if let Some(averages) = &mut self.averages {
            averages.set_steps(steps);
        }
    }
}

/// One step of a table.
pub struct RowStep<'a> {
    rule: &'a dyn super::RowRule,
    /// What a row moves by for each unit that the rule gives, against the gradient.
    rate: f32,
    values: &'a mut [Vec<f32>],
    /// The limit, and room for a row's gradient within it.
    clip: Option<(f32, Vec<f32>)>,
    /// And which step this is.
    averages: Option<(&'a mut RowAverages, u64)>,
}

impl RowStep<'_> {
    /// Updates the row that starts at number `at` of the table.
    pub fn row(&mut self, at: usize, row: &mut [f32], gradient: &[f32]) {
        let gradient = match &mut self.clip {
            None => gradient,
            Some((limit, clipped)) => {
                clipped.clear();
                clipped.extend(gradient.iter().map(|number| number.clamp(-*limit, *limit)));
                clipped.as_slice()
            }
        };
        if let Some((averages, step)) = &mut self.averages {
            averages.settle(at, row, *step - 1);
        }
        self.rule.row(self.rate, row, gradient, self.values, at);
        if let Some((averages, step)) = &mut self.averages {
            averages.follow(at, row, *step);
        }
    }
}
