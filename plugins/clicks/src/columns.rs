//! The log with numbers and columns of categories, in the fields of Criteo's.

use crate::{BIAS, Random, effect, hash};

/// Kinds of categories in a column: what goes with what, column by column.
const KINDS: u64 = 4;
/// Numbers that stand for what an effect is of, beside those of users and items.
const CATEGORY: u64 = 1 << 32;
const NUMBER: u64 = 2 << 32;
const KIND: u64 = 3 << 32;
const PAIR: u64 = 4 << 32;

pub(crate) struct Columns {
    /// The rows of each column's table.
    pub rows: Vec<u64>,
    /// How many numbers a sample has.
    pub numbers: u64,
    pub seed: u64,
}

/// One line of the log.
pub(crate) struct Line {
    pub dense: Vec<f32>,
    pub categories: Vec<i64>,
    pub click: f32,
}

impl Columns {
    /// The line that `random` draws.
    pub fn line(&self, random: &mut Random) -> Line {
        let categories: Vec<u64> = self.rows.iter().map(|rows| random.frequent(*rows)).collect();
        // Numbers as a logarithm of counts has them: none is below 0, a few are large.
        let dense: Vec<f64> = (0..self.numbers).map(|_| -(1.0 - random.next()).ln()).collect();
        let score = BIAS + self.of_categories(&categories) + self.of_numbers(&dense);
        Line {
            dense: dense.into_iter().map(|number| number as f32).collect(),
            categories: categories.into_iter().map(|category| category as i64).collect(),
            click: random.click(score),
        }
    }

    /// An effect of each, and of each pair of kinds in neighbouring columns. Of any number of columns about as much.
    fn of_categories(&self, categories: &[u64]) -> f64 {
        let own = (0..).zip(categories).map(|(column, id)| effect(self.seed, [CATEGORY + column, *id]));
        let kinds = (0..).zip(categories).map(|(column, id)| hash(self.seed, [KIND + column, *id]) % KINDS);
        let kinds: Vec<u64> = kinds.collect();
        let pairs = (0..)
            .zip(kinds.windows(2))
            .map(|(column, pair)| effect(self.seed, [PAIR + column, pair[0] * KINDS + pair[1]]));
        (own.sum::<f64>() + pairs.sum::<f64>()) / (categories.len() as f64).sqrt()
    }

    fn of_numbers(&self, numbers: &[f64]) -> f64 {
        let parts = (0..).zip(numbers).map(|(nth, number)| effect(self.seed, [NUMBER, nth]) * (number - 1.0));
        parts.sum::<f64>() / (numbers.len().max(1) as f64).sqrt()
    }
}
