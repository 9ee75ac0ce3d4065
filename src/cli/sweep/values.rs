//! What a sweep varies: values in a grid, values drawn at random, and every combination of the two. Pure.

use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::job::Override;

/// What of an option is wrong, and what helps.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\n  hint: {hint}")]
pub struct Wrong {
    problem: String,
    hint: String,
}

impl Wrong {
    pub fn new(problem: impl Into<String>, hint: impl Into<String>) -> Wrong {
        Wrong { problem: problem.into(), hint: hint.into() }
    }
}

/// The values that a key takes one after another: `--grid KEY=V1,V2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    pub key: String,
    /// Each as after `--set KEY=`.
    values: Vec<String>,
}

impl Axis {
    pub fn parse(text: &str) -> Result<Axis, Wrong> {
        const LIKE: &str = "write it as KEY=V1,V2, for example optimizer.lr=0.1,0.01";
        let (key, values) = key_and_rest(text, "--grid", LIKE)?;
        let values = listed(values);
        if values.iter().any(String::is_empty) {
            return Err(Wrong::new(format!("--grid {text}: a value is missing"), LIKE));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = values.iter().find(|value| !seen.insert(value.as_str())) {
            let problem = format!("--grid {text}: {twice} stands there twice");
            return Err(Wrong::new(
                problem,
                "a run with the same values comes to the same; vary seed to see how much chance there is in it",
            ));
        }
        Ok(Axis { key, values })
    }
}

/// A key whose values are drawn: `--random N KEY=LOW..HIGH[:log]` or `KEY=V1,V2`.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    pub key: String,
    from: Range,
}

#[derive(Clone, Debug, PartialEq)]
enum Range {
    /// Both ends belong to it.
    Whole {
        low: i64,
        high: i64,
        log: bool,
    },
    Numbers {
        low: f64,
        high: f64,
        log: bool,
    },
    Words(Vec<String>),
}

impl Drawn {
    pub fn parse(text: &str) -> Result<Drawn, Wrong> {
        const LIKE: &str = "write it as KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=V1,V2, for example optimizer.lr=1e-4..0.1:log";
        let (key, rest) = key_and_rest(text, "--random", LIKE)?;
        let (ends, log) = match rest.strip_suffix(":log") {
            Some(ends) => (ends, true),
            None => (rest, false),
        };
        let wrong = |problem: &str| Wrong::new(format!("--random {text}: {problem}"), LIKE);
        let Some((low, high)) = ends.split_once("..").filter(|_| !rest.contains(['"', '[', '{', '\'']))
        else {
            let words = listed(rest);
            return match words.iter().any(String::is_empty) || log {
                true => Err(wrong("there is no range")),
                false => Ok(Drawn { key, from: Range::Words(words) }),
            };
        };
        let from = match (low.trim().parse(), high.trim().parse()) {
            (Ok(low), Ok(high)) => Range::Whole { low, high, log },
            _ => {
                let number = |end: &str| end.trim().parse().ok().filter(|number: &f64| number.is_finite());
                let (Some(low), Some(high)) = (number(low), number(high)) else {
                    return Err(wrong("an end of the range is no number"));
                };
                Range::Numbers { low, high, log }
            }
        };
        let (low, high) = from.ends();
        match () {
            () if low >= high => Err(wrong("the range is empty")),
            () if log && low <= 0.0 => Err(wrong("on a logarithmic scale both ends are above 0")),
            () => Ok(Drawn { key, from }),
        }
    }
}

impl Range {
    fn ends(&self) -> (f64, f64) {
        match *self {
            Range::Whole { low, high, .. } => (low as f64, high as f64),
            Range::Numbers { low, high, .. } => (low, high),
            Range::Words(_) => (0.0, 1.0),
        }
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> String {
        // 53 bits, as many as a double has; from 0 to below 1.
        let share = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        match self {
            Range::Words(words) => words[(share * words.len() as f64) as usize % words.len()].clone(),
            &Range::Whole { low, high, log: false } => {
                let span = i128::from(high) - i128::from(low) + 1;
                let above = (share * span as f64) as i128;
                (i128::from(low) + above.min(span - 1)).to_string()
            }
            &Range::Whole { low, high, log: true } => {
                // A number gets what lies half a step around it, so that the ends are drawn as often as they should be.
                let (from, to) = ((low as f64 - 0.5).ln(), (high as f64 + 0.5).ln());
                let drawn = (from + share * (to - from)).exp().round() as i64;
                drawn.clamp(low, high).to_string()
            }
            &Range::Numbers { low, high, log } => {
                let drawn = match log {
                    true => (low.ln() + share * (high.ln() - low.ln())).exp(),
                    false => low + share * (high - low),
                };
                shown(drawn, low, high)
            }
        }
    }
}

/// Four digits of a number: nobody tells two learning rates apart that differ in the fifth. It stays within its range.
fn shown(drawn: f64, low: f64, high: f64) -> String {
    let rounded: f64 = format!("{drawn:.3e}").parse().unwrap_or(drawn);
    let rounded = rounded.clamp(low, high);
    match rounded.abs() {
        size if size == 0.0 || (1e-4..1e6).contains(&size) => format!("{rounded:?}"),
        _ => format!("{rounded:e}"),
    }
}

/// One combination: a value for each key, in the order of the keys.
pub type Values = Vec<Override>;

/// Everything that a sweep varies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Space {
    pub grid: Vec<Axis>,
    pub drawn: Vec<Drawn>,
    /// Draws; each goes with each combination of the grid.
    pub draws: u64,
    pub seed: u64,
}

impl Space {
    pub fn keys(&self) -> Vec<&str> {
        let grid = self.grid.iter().map(|axis| axis.key.as_str());
        grid.chain(self.drawn.iter().map(|drawn| drawn.key.as_str())).collect()
    }

    /// How many combinations there are; None: more than fit into a number.
    pub fn count(&self) -> Option<u64> {
        let draws = if self.drawn.is_empty() { 1 } else { self.draws };
        self.grid.iter().try_fold(draws, |count, axis| count.checked_mul(axis.values.len() as u64))
    }

    /// All combinations, the last key of the grid changing fastest, then the draws. The first draws of many are those of few.
    pub fn combinations(&self) -> Result<Vec<Values>, Wrong> {
        let mut all = vec![Values::new()];
        for axis in &self.grid {
            let with = |before: &Values| -> Vec<Values> {
                let each = axis.values.iter().map(|value| given("--grid", &axis.key, value));
                each.map(|value| before.iter().cloned().chain([value]).collect()).collect()
            };
            all = all.iter().flat_map(with).collect();
        }
        if self.drawn.is_empty() {
            return Ok(all);
        }
        let draws = self.draw()?;
        let with = |before: &Values| -> Vec<Values> {
            draws.iter().map(|draw| before.iter().chain(draw).cloned().collect()).collect()
        };
        Ok(all.iter().flat_map(with).collect())
    }

    /// Different draws.
    fn draw(&self) -> Result<Vec<Values>, Wrong> {
        /// So many in a row that were there before: it is likely that all were.
        const MOST_IN_VAIN: u32 = 10_000;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let (mut draws, mut seen, mut in_vain) = (Vec::new(), BTreeSet::new(), 0);
        while (draws.len() as u64) < self.draws {
            let texts: Vec<String> = self.drawn.iter().map(|drawn| drawn.from.draw(&mut rng)).collect();
            if !seen.insert(texts.clone()) {
                in_vain += 1;
                if in_vain == MOST_IN_VAIN {
                    let problem =
                        format!("--random {}: there are only {} different values", self.draws, draws.len());
                    return Err(Wrong::new(problem, "ask for fewer, or use --grid"));
                }
                continue;
            }
            in_vain = 0;
            draws.push(
                self.drawn
                    .iter()
                    .zip(&texts)
                    .map(|(drawn, text)| given("--random", &drawn.key, text))
                    .collect(),
            );
        }
        Ok(draws)
    }
}

fn given(option: &str, key: &str, value: &str) -> Override {
    Override { key: key.into(), value: value.into(), typed: format!("{option} {key}={value}") }
}

fn key_and_rest<'a>(text: &'a str, option: &str, like: &str) -> Result<(String, &'a str), Wrong> {
    match text.split_once('=') {
        Some((key, rest)) if !key.trim().is_empty() && !rest.trim().is_empty() => {
            Ok((key.trim().into(), rest.trim()))
        }
        _ => Err(Wrong::new(format!("{option}: `{text}` is no key with values"), like)),
    }
}

/// What commas outside of brackets and quotes part.
fn listed(text: &str) -> Vec<String> {
    let (mut values, mut depth, mut quote) = (vec![String::new()], 0u32, None);
    for letter in text.chars() {
        match (quote, letter) {
            (Some(end), _) if letter == end => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                values.push(String::new());
                continue;
            }
            (None, _) => {}
        }
        if let Some(last) = values.last_mut() {
            last.push(letter);
        }
    }
    values.into_iter().map(|value| value.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn axis(text: &str) -> Vec<String> {
        Axis::parse(text).unwrap().values
    }

    #[test]
    fn commas_in_brackets_and_quotes_part_nothing() {
        assert_eq!(axis("optimizer.lr=0.1, 0.01"), ["0.1", "0.01"]);
        assert_eq!(axis("optimizer.betas=[0.9, 0.99],[0.9, 0.999]"), ["[0.9, 0.99]", "[0.9, 0.999]"]);
        assert_eq!(axis(r#"optimizer.schedule={ type = "step", gamma = 0.1 },"cosine, or so""#).len(), 2);
    }

    #[test]
    fn what_is_no_grid_and_no_range_is_told_with_how_to_write_it() {
        let wrong = |text: &str| Axis::parse(text).unwrap_err().to_string();
        insta::assert_snapshot!(
            [wrong("optimizer.lr"), wrong("a=1,,2"), wrong("a=1,2,1")].join("\n"),
            @r"
        --grid: `optimizer.lr` is no key with values
          hint: write it as KEY=V1,V2, for example optimizer.lr=0.1,0.01
        --grid a=1,,2: a value is missing
          hint: write it as KEY=V1,V2, for example optimizer.lr=0.1,0.01
        --grid a=1,2,1: 1 stands there twice
          hint: a run with the same values comes to the same; vary seed to see how much chance there is in it
        "
        );
        let texts = ["a=2..1", "a=0..1:log", "a=x..1", "a=1:log", "a=", "job.toml"];
        let wrong = texts.map(|text| Drawn::parse(text).unwrap_err().problem);
        insta::assert_snapshot!(wrong.join("\n"), @r"
        --random a=2..1: the range is empty
        --random a=0..1:log: on a logarithmic scale both ends are above 0
        --random a=x..1: an end of the range is no number
        --random a=1:log: there is no range
        --random: `a=` is no key with values
        --random: `job.toml` is no key with values
        ");
    }

    #[test]
    fn a_space_with_fewer_values_than_draws_is_refused() {
        let drawn = vec![Drawn::parse("train.batch_size=1..3").unwrap()];
        let space = Space { drawn, draws: 4, ..Space::default() };
        assert!(space.combinations().unwrap_err().to_string().contains("only 3 different values"));
        assert_eq!(Space { draws: 3, ..space }.combinations().unwrap().len(), 3);
    }

    /// Half of the draws lie below the geometric mean of the ends; of so many the share is off by 0.05 once in a million.
    #[test]
    fn a_logarithmic_range_is_drawn_evenly_in_its_powers() {
        for text in ["a=0.0001..1.0:log", "a=1.0..1000000.0:log"] {
            let drawn = vec![Drawn::parse(text).unwrap()];
            let (low, high) = drawn[0].from.ends();
            let space = Space { drawn, draws: 2_500, ..Space::default() };
            let values = space.combinations().unwrap();
            let below =
                values.iter().filter(|draw| draw[0].value.parse::<f64>().unwrap() < (low * high).sqrt());
            let share = below.count() as f64 / 2_500.0;
            assert!((share - 0.5).abs() < 0.05, "{text}: {share}");
        }
    }

    fn axes() -> impl Strategy<Value = Vec<Axis>> {
        prop::collection::vec(1..5usize, 0..4).prop_map(|sizes| {
            let axis = |(nth, size): (usize, usize)| Axis {
                key: format!("key{nth}"),
                values: (0..size).map(|value| value.to_string()).collect(),
            };
            sizes.into_iter().enumerate().map(axis).collect()
        })
    }

    proptest! {
        #[test]
        fn there_are_as_many_different_combinations_as_counted(grid in axes(), draws in 1..6u64, seed: u64) {
            let drawn = vec![Drawn::parse("lr=1e-5..0.1:log").unwrap()];
            let space = Space { grid, drawn, draws, seed };
            let all = space.combinations().unwrap();
            prop_assert_eq!(all.len() as u64, space.count().unwrap());
            let different: BTreeSet<Vec<&str>> =
                all.iter().map(|values| values.iter().map(|value| value.value.as_str()).collect()).collect();
            prop_assert_eq!(different.len(), all.len());
            for values in &all {
                let keys: Vec<&str> = values.iter().map(|value| value.key.as_str()).collect();
                prop_assert_eq!(keys, space.keys());
                for (axis, value) in space.grid.iter().zip(values) {
                    prop_assert!(axis.values.contains(&value.value));
                }
            }
        }

        #[test]
        fn draws_stay_within_their_range_and_are_values_of_toml(
            low in 1e-9..1e9f64, factor in 1.001..1e6f64, log: bool, seed: u64
        ) {
            let high = low * factor;
            let from = Range::Numbers { low, high, log };
            let drawn = from.draw(&mut ChaCha8Rng::seed_from_u64(seed));
            let table: toml::Table = format!("value = {drawn}").parse().unwrap();
            let value = table["value"].as_float().unwrap();
            prop_assert!((low..=high).contains(&value), "{} of {}..{}", value, low, high);
        }

        #[test]
        fn whole_ranges_give_whole_numbers_within(low in 1..1000i64, more in 1..100_000i64, log: bool, seed: u64) {
            let from = Range::Whole { low, high: low + more, log };
            let drawn: i64 = from.draw(&mut ChaCha8Rng::seed_from_u64(seed)).parse().unwrap();
            prop_assert!((low..=low + more).contains(&drawn));
        }

        #[test]
        fn the_first_draws_of_many_are_those_of_few(few in 1..10u64, more in 0..10u64, seed: u64) {
            let drawn = vec![Drawn::parse("a=0.0..1.0").unwrap(), Drawn::parse("b=x,y,z").unwrap()];
            let space = |draws| Space { drawn: drawn.clone(), draws, seed, ..Space::default() };
            let (few_of, all) = (space(few).combinations().unwrap(), space(few + more).combinations().unwrap());
            prop_assert_eq!(&few_of[..], &all[..few as usize]);
        }
    }
}
