//! Steps that are left out because their loss or gradients are not finite (`train.on_nan = "skip"`, and where losses are scaled): how
//! many, and when it is no training any more. Pure.

use anyhow::{Result, ensure};

const HINT: &str = "lower optimizer.lr, and look at the data of these steps";

/// The skipped steps of one trainer.
#[derive(Debug)]
pub struct Skipped {
    all: u64,
    in_a_row: u64,
    /// So many one after another, and the parameters are no numbers themselves: no step to come will be better.
    most_in_a_row: u64,
}

impl Skipped {
    pub fn new(most_in_a_row: u64) -> Skipped {
        Skipped { all: 0, in_a_row: 0, most_in_a_row }
    }

    pub fn all(&self) -> u64 {
        self.all
    }

    pub fn taken(&mut self) {
        self.in_a_row = 0;
    }

    /// # Errors
    /// When there were too many without one in between that was taken.
    pub fn another(&mut self) -> Result<()> {
        self.all += 1;
        self.in_a_row += 1;
        ensure!(
            self.in_a_row < self.most_in_a_row,
            "the loss or gradients were not finite in train.most_skipped = {} steps one after another, which were \
             all left out\n  hint: {HINT}",
            self.most_in_a_row
        );
        Ok(())
    }

    /// After all of the trainer's `steps`.
    ///
    /// # Errors
    /// When more were left out than taken.
    pub fn judge(&self, steps: u64) -> Result<()> {
        ensure!(
            2 * self.all <= steps,
            "the loss or gradients were not finite in {} of {steps} steps, which were left out: that is no trained \
             model\n  hint: {HINT}",
            self.all
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_taken_begins_the_count_anew() {
        const MOST: u64 = 20;
        let mut skipped = Skipped::new(MOST);
        for _ in 0..3 {
            (1..MOST).for_each(|_| skipped.another().unwrap());
            skipped.taken();
        }
        assert_eq!(skipped.all(), 3 * (MOST - 1));
        (1..MOST).for_each(|_| skipped.another().unwrap());
        let said = skipped.another().unwrap_err().to_string();
        assert!(
            said.starts_with(
                "the loss or gradients were not finite in train.most_skipped = 20 steps one after another"
            ),
            "{said}"
        );
    }

    #[test]
    fn half_of_the_steps_may_be_left_out_and_not_more() {
        let skipped = Skipped { all: 5, ..Skipped::new(20) };
        skipped.judge(10).unwrap();
        let said = skipped.judge(9).unwrap_err().to_string();
        assert!(said.starts_with("the loss or gradients were not finite in 5 of 9 steps"), "{said}");
        Skipped::new(20).judge(0).unwrap();
    }
}
