//! The first values of rows: N(0, 1), as `torch.nn.Embedding` draws them, but each row by itself.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

/// A generator with random access: ChaCha with 8 rounds (Bernstein, "ChaCha, a variant of Salsa20", 2008), keyed by the
/// seed, with the row's id as the number of the stream.
pub(super) struct Initial {
    generator: ChaCha8Rng,
    /// The id whose row is zero.
    pub padding: Option<i64>,
}

impl Initial {
    pub fn new(seed: u64, padding: Option<i64>) -> Initial {
        Initial { generator: ChaCha8Rng::seed_from_u64(seed), padding }
    }

    /// Writes the first value of row `id`.
    pub fn draw(&self, id: i64, row: &mut [f32]) {
        if self.padding == Some(id) {
            return row.fill(0.0);
        }
        let mut generator = self.generator.clone();
        generator.set_stream(id as u64);
        row.fill_with(|| StandardNormal.sample(&mut generator));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(seed: u64, ids: impl Iterator<Item = i64>) -> Vec<f32> {
        let initial = Initial::new(seed, Some(3));
        ids.flat_map(|id| {
            let mut row = [1.0; 15];
            initial.draw(id, &mut row);
            row
        })
        .collect()
    }

    #[test]
    fn a_row_depends_on_the_seed_and_its_id_alone() {
        let all = rows(1, 0..8);
        assert_eq!(rows(1, 5..6), all[75..90]);
        assert_ne!(rows(2, 5..6), all[75..90]);
        assert_ne!(rows(1, 6..7), all[75..90]);
        assert_eq!(rows(1, 3..4), [0.0; 15], "the padding's");
    }

    #[test]
    fn values_are_normally_distributed() {
        let values = rows(9, 10..20_010);
        let count = values.len() as f64;
        let moment = |power: i32| values.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / count;
        // Five standard errors: of the k-th moment sqrt((E x^2k - (E x^k)^2) / n).
        for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let error = (moment(power) - expected).abs();
            assert!(error < 5.0 * (variance / count).sqrt(), "moment {power}: {}", moment(power));
        }
        // Neighbours, and the same place of rows that follow one another.
        for lag in [1, 15] {
            let products = values.iter().zip(&values[lag..]).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            assert!((products / count).abs() < 5.0 / count.sqrt(), "lag {lag}");
        }
    }
}
