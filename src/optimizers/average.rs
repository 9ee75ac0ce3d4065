//! The exponential moving average of weights that an optimizer keeps beside what it remembers: torch's
//! `AveragedModel` with `get_ema_multi_avg_fn(decay)`, whose `update_parameters` is called after each step.
//!
//! The first step's weights are the first average; each later step moves it by `1 - decay` towards its weights, those of parameters
//! without a gradient, too.

use std::ops::Range;

use tch::{TchError, Tensor, no_grad};

/// The slot of an average, in a snapshot.
pub const AVERAGE: &str = "ema";
/// The slot of how many steps it is of, as `AveragedModel` calls it.
pub(super) const AVERAGED: &str = "n_averaged";

/// The moving average of one parameter.
#[derive(Debug)]
pub(super) struct Average {
    pub mean: Tensor,
    /// Steps that it is of.
    pub steps: u64,
}

impl Average {
    pub fn of(param: &Tensor) -> Result<Average, TchError> {
        Ok(Average { mean: no_grad(|| param.f_zeros_like())?, steps: 0 })
    }

    /// A step has made `param` what it is.
    pub fn follow(&mut self, param: &Tensor, decay: f64) -> Result<(), TchError> {
        match self.steps {
            0 => self.mean.f_copy_(param)?,
            _ => drop(self.mean.f_lerp_(param, 1.0 - decay)?),
        }
        self.steps += 1;
        Ok(())
    }

    /// The average becomes the parameter, and the parameter the average.
    pub fn swap(&mut self, param: &Tensor) -> Result<(), TchError> {
        if self.steps > 0 {
            let mean = self.mean.f_detach_copy()?;
            self.mean.f_copy_(param)?;
            param.shallow_clone().f_copy_(&mean)?;
        }
        Ok(())
    }
}

/// The moving averages of a table's rows. A row that steps leave as it is has its average brought up to date when it is next
/// looked at.
#[derive(Debug)]
pub(super) struct RowAverages {
    decay: f64,
    /// Numbers of a row.
    dim: usize,
    /// As long as the table, in its order.
    pub numbers: Vec<f32>,
    /// The table's step up to which each row's average is.
    settled: Vec<u64>,
}

impl RowAverages {
    /// The averages of a table of so many numbers.
    pub fn new(decay: f64, dim: usize, numbers: usize) -> RowAverages {
        RowAverages { decay, dim, numbers: vec![0.0; numbers], settled: vec![0; numbers / dim] }
    }

    pub fn grow(&mut self, numbers: usize) {
        self.numbers.resize(numbers, 0.0);
        self.settled.resize(numbers / self.dim, 0);
    }

    /// A row begins, or has been written from outside, after so many steps.
    pub fn begin(&mut self, at: usize, row: &[f32], steps: u64) {
        self.numbers[at..at + self.dim].copy_from_slice(row);
        self.settled[at / self.dim] = steps;
    }

    /// All averages are those after so many steps.
    pub fn set_steps(&mut self, steps: u64) {
        self.settled.fill(steps);
    }

    /// Brings the average of the row at `at`, which has been `row` since it was last settled, up to step `steps`.
    pub fn settle(&mut self, at: usize, row: &[f32], steps: u64) {
        let settled = &mut self.settled[at / self.dim];
        let missed = steps - std::mem::replace(settled, steps);
        if missed > 0 {
            let left = self.decay.powf(missed as f64) as f32;
            for (mean, weight) in self.numbers[at..at + self.dim].iter_mut().zip(row) {
                *mean = weight + (*mean - weight) * left;
            }
        }
    }

    /// Step `steps` has made the row, settled up to the one before, what it is.
    pub fn follow(&mut self, at: usize, row: &[f32], steps: u64) {
        if steps == 1 {
            self.begin(at, row, steps);
        } else {
            self.settled[at / self.dim] = steps;
            let weight = (1.0 - self.decay) as f32;
            for (mean, number) in self.numbers[at..at + self.dim].iter_mut().zip(row) {
                *mean += weight * (number - *mean);
            }
        }
    }

    pub fn row_mut(&mut self, row: Range<usize>) -> &mut [f32] {
        &mut self.numbers[row]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_left_alone_are_averaged_as_if_they_were_looked_at_in_each_step() {
        let (decay, dim) = (0.9, 2);
        let mut lazy = RowAverages::new(decay, dim, 4);
        let mut each = [[1.0f64, -2.0], [3.0, 0.5]];
        let mut rows = [[1.0f32, -2.0], [3.0, 0.5]];
        rows.iter().enumerate().for_each(|(at, row)| lazy.begin(at * dim, row, 0));
        // Row 1 is written by the 7th and the 20th step only, row 0 by all.
        for step in 1..=40u64 {
            for (at, (row, mean)) in rows.iter_mut().zip(&mut each).enumerate() {
                if at == 0 || step == 7 || step == 20 {
                    lazy.settle(at * dim, row, step - 1);
                    row.iter_mut().for_each(|number| *number = *number * 0.5 + step as f32);
                    lazy.follow(at * dim, row, step);
                }
                for (mean, number) in mean.iter_mut().zip(row) {
                    let number = f64::from(*number);
                    *mean = if step == 1 { number } else { *mean + (1.0 - decay) * (number - *mean) };
                }
            }
        }
        for (at, (row, mean)) in rows.iter().zip(&each).enumerate() {
            lazy.settle(at * dim, row, 40);
            for (lazy, mean) in lazy.numbers[at * dim..].iter().zip(mean) {
                assert!((f64::from(*lazy) - mean).abs() < 1e-5 * mean.abs(), "row {at}: {lazy}, {mean}");
            }
        }
    }
}
