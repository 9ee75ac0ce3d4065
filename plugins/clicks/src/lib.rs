//! A made-up log of clicks, for a recommender: who was shown what, and whether they clicked. Sample i is the same however
//! and wherever it is asked for.
//!
//! | field | |
//! |---|---|
//! | `ids` | int64 [3]: a user, an item and the item's category, numbered one after the other as rows of one table |
//! | `click` | float32 [1]: 1 or 0 |
//!
//! or, with `rows`, in the fields that Criteo's logs have:
//!
//! | field | |
//! |---|---|
//! | `dense` | float32 [numbers] |
//! | `categories` | int64 [columns], each below its column's rows |
//! | `click` | float32 [1]: 1 or 0 |
//!
//! A hidden model decides: every user, item and category has an effect, and so has each pair of a user's taste and a
//! category. Clicks are drawn with the logistic of their sum. As in real logs a few users and items come in very many
//! samples and most in hardly any: the k-th most frequent comes about 1/k times as often as the first (Zipf's law).

mod columns;

use columns::{Columns, Line};
use pstrain_plugin::prelude::*;

const IDS: u64 = 3;
/// Kinds of users, of whom each likes other categories.
const TASTES: u64 = 8;
/// What all samples have in common: fewer than half are clicks.
const BIAS: f64 = -1.0;
/// Bounds of one effect.
const EFFECT: f64 = 1.5;
/// Prime, and so without a common divisor with any number of users or items that is allowed: multiplying by it scatters them.
const SCATTER: u64 = 2_654_435_761;
const MOST: u64 = 1 << 31;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    samples: u64,
    users: Option<u64>,
    items: Option<u64>,
    categories: Option<u64>,
    /// The rows of each column's table.
    rows: Option<Vec<u64>>,
    numbers: Option<u64>,
    /// Another seed is another hidden model.
    #[serde(default)]
    seed: u64,
    /// Index of the first sample: a test set is the same seed behind the training set's samples.
    #[serde(default)]
    offset: u64,
}

struct Clicks {
    samples: u64,
    seed: u64,
    offset: u64,
    form: Form,
}

enum Form {
    Ids(Ids),
    Columns(Columns),
}

/// How many there are.
struct Ids {
    users: u64,
    items: u64,
    categories: u64,
}

/// As in Criteo's logs.
const NUMBERS: u64 = 13;
const MOST_NUMBERS: u64 = 10_000;

impl Dataset for Clicks {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let Config { samples, users, items, categories, rows, numbers, seed, offset } = config;
        let kinds = [("users", users), ("items", items), ("categories", categories)];
        let limited = |key: &str, value: u64| {
            ensure!(value > 0, "`{key}` = 0: there should be at least one");
            ensure!(value <= MOST, "`{key}` = {value} is more than {MOST}");
            Ok(value)
        };
        ensure!(samples > 0, "`samples` = 0: there should be at least one");
        let form = match rows {
            None => {
                ensure!(numbers.is_none(), "`numbers` goes with `rows`\nhint: leave it out");
                let given = |(key, value): (&str, Option<u64>)| match value {
                    Some(value) => limited(key, value),
                    None => bail!(
                        "`{key}` is missing\nhint: give users, items and categories, or `rows` for columns"
                    ),
                };
                let [users, items, categories] = kinds.map(given);
                Form::Ids(Ids { users: users?, items: items?, categories: categories? })
            }
            Some(rows) => {
                if let Some((key, _)) = kinds.iter().find(|(_, value)| value.is_some()) {
                    bail!("`{key}` does not go with `rows`\nhint: leave one of them out");
                }
                ensure!(
                    !rows.is_empty(),
                    "`rows` has no column\nhint: write how many rows each has, for example [1000, 50]"
                );
                rows.iter().try_for_each(|rows| limited("rows", *rows).map(drop))?;
                let numbers = numbers.unwrap_or(NUMBERS);
                let sound = (1..=MOST_NUMBERS).contains(&numbers);
                ensure!(sound, "`numbers` = {numbers} is not from 1 to {MOST_NUMBERS}");
                Form::Columns(Columns { rows, numbers, seed })
            }
        };
        Ok(Clicks { samples, seed, offset, form })
    }

    fn len(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> Vec<Field> {
        let click = Field::new("click", DType::Float32, [1]);
        match &self.form {
            Form::Ids(_) => vec![Field::new("ids", DType::Int64, [IDS]), click],
            Form::Columns(Columns { rows, numbers, .. }) => vec![
                Field::new("dense", DType::Float32, [*numbers]),
                Field::new("categories", DType::Int64, [rows.len() as u64]),
                click,
            ],
        }
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        let count = batch.indices().len();
        let mut clicks = Vec::with_capacity(count);
        match &self.form {
            Form::Ids(of) => {
                batch.fill(0, |index, row: &mut [i64]| {
                    let (ids, click) = of.sample(self.seed, self.random(index));
                    row.copy_from_slice(&ids);
                    clicks.push(click);
                    Ok(())
                })?;
                batch.emit(1, &clicks)
            }
            Form::Columns(columns) => {
                let lines: Vec<Line> =
                    batch.indices().iter().map(|&index| columns.line(&mut self.random(index))).collect();
                let all = |of: fn(&Line) -> &[f32]| lines.iter().flat_map(of).copied().collect::<Vec<f32>>();
                let categories: Vec<i64> = lines.iter().flat_map(|line| &line.categories).copied().collect();
                batch.emit(0, &all(|line| &line.dense))?;
                batch.emit(1, &categories)?;
                batch.emit(2, &all(|line| std::slice::from_ref(&line.click)))
            }
        }
    }
}

impl Clicks {
    fn random(&self, index: u64) -> Random {
        Random(mix(self.seed ^ mix(self.offset + index)))
    }
}

impl Ids {
    fn sample(&self, seed: u64, mut random: Random) -> ([i64; IDS as usize], f32) {
        let Ids { users, items, categories } = *self;
        let (user, item) = (random.frequent(users), random.frequent(items));
        let category = hash(seed, [0, item]) % categories;
        let taste = hash(seed, [1, user]) % TASTES;
        let effects = [[2, user], [3, item], [4, category], [5, taste * categories + category]];
        let score = BIAS + effects.iter().map(|&of| effect(seed, of)).sum::<f64>();
        let click = random.click(score);
        let ids = [user, users + item, users + items + category];
        (ids.map(|id| id as i64), click)
    }
}

/// The hidden model's part of one thing: a number of its kind.
fn effect(seed: u64, of: [u64; 2]) -> f64 {
    EFFECT * (2.0 * fraction(hash(seed, of)) - 1.0)
}

fn hash(seed: u64, of: [u64; 2]) -> u64 {
    of.into_iter().fold(mix(seed), |hash, part| mix(hash ^ part))
}

/// Between 0 and 1, without 1.
fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        fraction(mix(self.0))
    }

    /// 1 or 0, with the logistic of a score.
    fn click(&mut self, score: f64) -> f32 {
        if self.next() < 1.0 / (1.0 + (-score).exp()) { 1.0 } else { 0.0 }
    }

    /// One of `count`, by Zipf's law. Which are frequent has nothing to do with their numbers.
    fn frequent(&mut self, count: u64) -> u64 {
        // Place k has what lies from k to k + 1, also the last one.
        let place = ((count as f64 + 1.0).ln() * self.next()).exp() as u64;
        (place.min(count) * SCATTER) % count
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

export_dataset!(Clicks);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use pstrain_plugin::testing::{self, Emitted};

    const CONFIG: &str = r#"{"samples": 20000, "users": 500, "items": 300, "categories": 7}"#;

    fn batch(json: &str, indices: &[u64]) -> Vec<Emitted> {
        testing::batch(&mut testing::open::<Clicks>(json).unwrap(), indices).unwrap()
    }

    #[test]
    fn ids_number_users_items_and_categories_one_after_the_other() {
        let all = batch(CONFIG, &(0..20_000).collect::<Vec<_>>());
        let mut category_of = BTreeMap::new();
        for ids in all[0].values::<i64>().chunks(3) {
            assert!(
                (0..500).contains(&ids[0]) && (500..800).contains(&ids[1]) && (800..807).contains(&ids[2])
            );
            assert_eq!(*category_of.entry(ids[1]).or_insert(ids[2]), ids[2], "an item has one category");
        }
        let clicks = all[1].values::<f32>();
        let share = clicks.iter().sum::<f32>() / clicks.len() as f32;
        assert!((0.2..0.5).contains(&share), "{share}");
    }

    #[test]
    fn few_users_come_often_and_what_they_like_is_their_own() {
        let all = batch(CONFIG, &(0..20_000).collect::<Vec<_>>());
        let mut of_user: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
        for (ids, click) in all[0].values::<i64>().chunks(3).zip(all[1].values::<f32>()) {
            let (seen, clicks) = of_user.entry(ids[0]).or_default();
            (*seen, *clicks) = (*seen + 1.0, *clicks + f64::from(click));
        }
        let mut counts: Vec<_> = of_user.values().copied().collect();
        counts.sort_by(|a, b| b.0.total_cmp(&a.0));
        // ln 2 / ln 501 of the samples are the first user's, and as many those of the second and third.
        assert!((0.10..0.13).contains(&(counts[0].0 / 20_000.0)), "{counts:?}");
        let rates: Vec<f64> = counts[..10].iter().map(|(seen, clicks)| clicks / seen).collect();
        let (least, most) =
            rates.iter().fold((1.0, 0.0), |(a, b): (f64, f64), &rate| (a.min(rate), b.max(rate)));
        assert!(most - least > 0.2, "{rates:?}");
    }

    #[test]
    fn each_row_comes_as_often_as_its_place_says() {
        for count in 1..=5u64 {
            let mut seen = vec![0.0; count as usize];
            let mut random = Random(0);
            (0..20_000).for_each(|_| seen[random.frequent(count) as usize] += 1.0 / 20_000.0);
            for place in 1..=count {
                let expected = ((place + 1) as f64 / place as f64).ln() / ((count + 1) as f64).ln();
                let share = seen[(place * SCATTER % count) as usize];
                assert!((share - expected).abs() < 0.02, "{place} of {count}: {share}, and not {expected}");
            }
        }
    }

    /// `of`: samples of a log with more settings.
    #[track_caller]
    fn assert_same_anywhere(of: impl Fn(&str, &[u64]) -> Vec<Emitted>) {
        let (one, many) = (of("", &[41]), of("", &[7, 41, 98]));
        for (one, many) in one.iter().zip(&many) {
            let size = one.bytes.len();
            assert_eq!(one.bytes, many.bytes[size..2 * size]);
        }
        assert_eq!(one, of(r#", "offset": 40"#, &[1]));
        assert_ne!(of("", &[0, 1, 2, 3]), of(r#", "seed": 1"#, &[0, 1, 2, 3]));
    }

    #[test]
    fn a_sample_is_the_same_in_any_batch_and_behind_an_offset() {
        let of = |more: &str, indices: &[u64]| {
            batch(&format!(r#"{{"samples": 99, "users": 9, "items": 9, "categories": 2{more}}}"#), indices)
        };
        assert_same_anywhere(of);
    }

    #[test]
    fn impossible_logs_are_refused() {
        let error = |json: &str| testing::open::<Clicks>(json).err().unwrap().to_string();
        let zero = error(r#"{"samples": 1, "users": 0, "items": 1, "categories": 1}"#);
        assert_eq!(zero, "`users` = 0: there should be at least one");
        let missing = error(r#"{"samples": 1, "users": 1, "items": 1}"#);
        assert!(missing.starts_with("`categories` is missing\n"), "{missing}");
        let both = error(r#"{"samples": 1, "users": 1, "rows": [4]}"#);
        assert!(both.starts_with("`users` does not go with `rows`\n"), "{both}");
        assert_eq!(error(r#"{"samples": 1, "rows": [4, 0]}"#), "`rows` = 0: there should be at least one");
        assert!(error(r#"{"samples": 1, "rows": []}"#).starts_with("`rows` has no column\n"));
        let none = error(r#"{"samples": 1, "rows": [4], "numbers": 0}"#);
        assert_eq!(none, "`numbers` = 0 is not from 1 to 10000");
    }

    const COLUMNS: &str = r#"{"samples": 20000, "rows": [500, 3, 40], "numbers": 4}"#;

    #[test]
    fn columns_have_rows_of_their_own_and_decide_together() {
        let all = batch(COLUMNS, &(0..20_000).collect::<Vec<_>>());
        assert_eq!(all.iter().map(|field| field.shape[1]).collect::<Vec<_>>(), [4, 3, 1]);
        let clicks = all[2].values::<f32>();
        let share = clicks.iter().sum::<f32>() / clicks.len() as f32;
        assert!((0.2..0.5).contains(&share), "{share}");
        // Of those of the last column that come often.
        let mut rates = [(0.0, 0.0); 40];
        for (ids, click) in all[1].values::<i64>().chunks(3).zip(&clicks) {
            assert!((0..500).contains(&ids[0]) && (0..3).contains(&ids[1]) && (0..40).contains(&ids[2]));
            let (seen, clicked): &mut (f64, f64) = &mut rates[ids[2] as usize];
            (*seen, *clicked) = (*seen + 1.0, *clicked + f64::from(*click));
        }
        let often = rates.iter().filter(|(seen, _)| *seen > 400.0);
        let rates: Vec<f64> = often.map(|(seen, clicked)| clicked / seen).collect();
        let (least, most) = rates.iter().fold((1.0f64, 0.0f64), |(a, b), &rate| (a.min(rate), b.max(rate)));
        assert!(rates.len() > 5 && most - least > 0.1, "{rates:?}");
        assert!(all[0].values::<f32>().iter().all(|number| *number >= 0.0 && number.is_finite()));
    }

    #[test]
    fn a_line_of_columns_is_the_same_in_any_batch_and_behind_an_offset() {
        let of = |more: &str, indices: &[u64]| batch(&COLUMNS.replace('}', &format!("{more}}}")), indices);
        assert_same_anywhere(of);
    }
}
