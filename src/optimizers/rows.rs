//! Updates of single rows of a table, by PyTorch's rules for sparse gradients. The other rows are neither read nor
//! written; they are not even in memory before they are used, which is why this works on slices of the table and not, as
//! [`Optimizer`](super::Optimizer) does, on tensors.

use std::ops::Range;

use super::OptimizerSpec;
use super::rule::Slot;

/// What updates a table, and what it remembers of each row.
#[derive(Debug)]
pub struct RowOptimizer {
    spec: OptimizerSpec,
    /// Each with a vector as long as the table, in its order.
    slots: Vec<Slot>,
    values: Vec<Vec<f32>>,
    /// Steps so far, of the table as a whole: also those that touched no row of this rank.
    steps: u64,
    /// Of gradients.
    clip_value: Option<f32>,
}

impl RowOptimizer {
    /// For a table of so many numbers.
    ///
    /// # Errors
    /// The optimizer, or one of its options, updates more than the rows that have gradients: what stands behind its name
    /// in a message.
    pub fn new(
        spec: OptimizerSpec,
        clip_value: Option<f64>,
        numbers: usize,
    ) -> Result<RowOptimizer, &'static str> {
        spec.rule().rows().map(drop)?;
        let slots = spec.rule().slots();
        let values = slots.iter().map(|slot| vec![slot.first as f32; numbers]).collect();
        let clip_value = clip_value.map(|limit| limit as f32);
        Ok(RowOptimizer { spec, slots, values, steps: 0, clip_value })
    }

    /// The table has become longer.
    pub fn grow(&mut self, numbers: usize) {
        for (slot, values) in self.slots.iter().zip(&mut self.values) {
            values.resize(numbers, slot.first as f32);
        }
    }

    /// Other rows stand where these numbers of the table are.
    pub fn forget(&mut self, numbers: Range<usize>) {
        for (slot, values) in self.slots.iter().zip(&mut self.values) {
            values[numbers.clone()].fill(slot.first as f32);
        }
    }

    /// Begins a step, of which rows are updated next, at the learning rate times `lr_factor`.
    pub fn begin(&mut self, lr_factor: f64) -> RowStep<'_> {
        self.steps += 1;
        let rule = self.spec.rule().rows().expect("was asked when this was made");
        // Each rule is odd in the gradient.
        let sign = if self.spec.maximizes() { -1.0 } else { 1.0 };
        let rate = rule.rate(self.steps, self.spec.lr() * lr_factor);
        let clip = self.clip_value.map(|limit| (limit, Vec::new()));
        RowStep { rate: sign * rate as f32, rule, values: &mut self.values, clip }
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The slots by PyTorch's names, and their numbers, which stand as those of the table do.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, &[f32])> {
        self.slots.iter().copied().zip(self.values.iter().map(Vec::as_slice))
    }

    /// As [`RowOptimizer::slots`], for whoever goes on from another's state.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = (Slot, &mut [f32])> {
        self.slots.iter().copied().zip(self.values.iter_mut().map(Vec::as_mut_slice))
    }

    /// Goes on from so many steps.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
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
        self.rule.row(self.rate, row, gradient, self.values, at);
    }
}
