//! Made-up bags of indices for an embedding bag, as in PyTorch's tutorial "Combining Distributed DataParallel with
//! Distributed RPC Framework". Sample i, one bag, is the same however and wherever it is asked for.
//!
//! | field | |
//! |---|---|
//! | `bags` | int64 [10]: 1 to 10 indices below `rows`, then -1 |
//! | `target` | int64: a class, drawn without regard to the bag |
//!
//! Bags come in groups of `bags`, one after the other, and a group has 20 to 50 indices. A group is a batch of the
//! tutorial: a job takes `bags` as its batch size and does not shuffle.

use std::ops::RangeInclusive;

use pstrain_plugin::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Places in a bag.
const LENGTH: u64 = 10;
/// Indices in a group.
const IN_A_GROUP: RangeInclusive<u64> = 20..=50;
const EMPTY: i64 = -1;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Bags in all.
    samples: u64,
    /// Indices are below it.
    #[serde(default = "hundred")]
    rows: u64,
    /// In a group.
    #[serde(default = "eight")]
    bags: u64,
    #[serde(default = "eight")]
    classes: u64,
    #[serde(default)]
    seed: u64,
}

fn hundred() -> u64 {
    100
}

fn eight() -> u64 {
    8
}

type Bag = ([i64; LENGTH as usize], i64);

struct Bags {
    config: Config,
    /// The group that was asked for last: the next sample is mostly of the same.
    group: Option<(u64, Vec<Bag>)>,
}

impl Dataset for Bags {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let Config { samples, rows, bags, classes, .. } = config;
        for (key, value) in [("samples", samples), ("rows", rows), ("classes", classes)] {
            ensure!(value > 0, "`{key}` = 0: there should be at least one");
            ensure!(i64::try_from(value).is_ok(), "`{key}` = {value} is too large");
        }
        let (least, most) = (IN_A_GROUP.start().div_ceil(LENGTH), *IN_A_GROUP.end());
        ensure!(
            (least..=most).contains(&bags),
            "`bags` = {bags}: a group of {} to {} indices has {least} to {most} bags of 1 to {LENGTH}",
            IN_A_GROUP.start(),
            IN_A_GROUP.end()
        );
        Ok(Bags { config, group: None })
    }

    fn len(&self) -> u64 {
        self.config.samples
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("bags", DType::Int64, [LENGTH]), Field::new("target", DType::Int64, [])]
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        let mut targets = Vec::with_capacity(batch.indices().len());
        batch.fill(0, |index, row: &mut [i64]| {
            let (indices, target) = self.bag(index);
            row.copy_from_slice(&indices);
            targets.push(target);
            Ok(())
        })?;
        batch.emit(1, &targets)
    }
}

impl Bags {
    fn bag(&mut self, index: u64) -> Bag {
        let (number, place) = (index / self.config.bags, (index % self.config.bags) as usize);
        if let Some((of, bags)) = &self.group
            && *of == number
        {
            return bags[place];
        }
        let bags = group(&self.config, number);
        let bag = bags[place];
        self.group = Some((number, bags));
        bag
    }
}

/// Each group is drawn from a stream of its own.
fn group(config: &Config, number: u64) -> Vec<Bag> {
    let mut random = ChaCha8Rng::seed_from_u64(config.seed);
    random.set_stream(number);
    let mut draw = || {
        let mut row = [EMPTY; LENGTH as usize];
        row.fill_with(|| random.random_range(0..config.rows) as i64);
        (row, random.random_range(0..config.classes) as i64)
    };
    let mut bags: Vec<Bag> = (0..config.bags).map(|_| draw()).collect();
    for ((row, _), size) in bags.iter_mut().zip(sizes(config.bags, &mut random)) {
        row[size as usize..].fill(EMPTY);
    }
    bags
}

/// How many indices each bag of a group has.
fn sizes(bags: u64, random: &mut ChaCha8Rng) -> Vec<u64> {
    let (least, most) = (bags.max(*IN_A_GROUP.start()), (bags * LENGTH).min(*IN_A_GROUP.end()));
    let mut sizes = vec![1; bags as usize];
    let mut left = random.random_range(least..=most) - bags;
    while left > 0 {
        let size = &mut sizes[random.random_range(0..bags) as usize];
        if *size < LENGTH {
            *size += 1;
            left -= 1;
        }
    }
    sizes
}

export_dataset!(Bags);

#[cfg(test)]
mod tests {
    use super::*;
    use pstrain_plugin::testing::{self, Emitted};

    fn open(json: &str) -> Result<Bags> {
        testing::open(json)
    }

    fn batch(json: &str, indices: &[u64]) -> Vec<Emitted> {
        testing::batch(&mut open(json).unwrap(), indices).unwrap()
    }

    #[test]
    fn a_group_has_20_to_50_indices_in_bags_of_1_to_10() {
        for bags in [2, 8, 37, 50] {
            let all = batch(
                &format!(r#"{{"samples": {}, "bags": {bags}, "rows": 30, "classes": 4}}"#, 40 * bags),
                &(0..40 * bags).collect::<Vec<_>>(),
            );
            let (indices, targets) = (all[0].values::<i64>(), all[1].values::<i64>());
            assert!(targets.iter().all(|class| (0..4).contains(class)));
            for group in indices.chunks((LENGTH * bags) as usize) {
                let there = group.iter().filter(|&&index| index >= 0).count() as u64;
                assert!(IN_A_GROUP.contains(&there), "{there} indices in {bags} bags");
                for bag in group.chunks(LENGTH as usize) {
                    let size = bag.iter().take_while(|index| (0..30).contains(*index)).count();
                    assert!(size >= 1 && bag[size..].iter().all(|&index| index == EMPTY), "{bag:?}");
                }
            }
        }
    }

    #[test]
    fn a_sample_is_the_same_in_any_batch_and_another_for_another_seed() {
        let of =
            |seed: u64, indices: &[u64]| batch(&format!(r#"{{"samples": 80, "seed": {seed}}}"#), indices);
        let (one, many) = (of(1, &[41]), of(1, &[7, 41, 79, 41]));
        for (one, many) in one.iter().zip(&many) {
            let size = one.bytes.len();
            assert_eq!(one.bytes, many.bytes[size..2 * size]);
            assert_eq!(one.bytes, many.bytes[3 * size..]);
        }
        assert_ne!(of(1, &[41])[0], of(2, &[41])[0]);
    }

    #[test]
    fn impossible_groups_are_refused() {
        let error = |json: &str| open(json).err().unwrap().to_string();
        assert_eq!(
            error(r#"{"samples": 10, "bags": 51}"#),
            "`bags` = 51: a group of 20 to 50 indices has 2 to 50 bags of 1 to 10"
        );
        assert_eq!(error(r#"{"samples": 10, "rows": 0}"#), "`rows` = 0: there should be at least one");
    }
}
