//! What a progress line says. Pure.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::human::{self, seconds, thousands};

/// What a rank is at. Travels as a line of JSON from a forked rank to its parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Update {
    /// Something that cannot be counted: "waiting for 3 other ranks".
    Doing(String),
    Training(TrainingProgress),
    /// A rank that others call.
    Serving {
        updates: u64,
        updates_per_s: f64,
        staleness: Option<f64>,
    },
    /// Samples.
    Evaluating {
        done: u64,
        total: u64,
    },
    /// Bytes; the total is not always known.
    Fetching {
        done: u64,
        total: Option<u64>,
    },
    /// The last word: "1,875 steps in 12.4 s".
    Done(String),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// Steps done.
    pub step: u64,
    pub steps: u64,
    /// Counted from 1.
    pub epoch: u32,
    pub epochs: u32,
    #[serde(deserialize_with = "crate::runner::records::null_is_nan")]
    pub loss: f64,
    /// 0 before it has been measured.
    pub samples_per_s: f64,
    pub staleness: Option<f64>,
    /// Seconds. The reporter fills it in.
    pub left_s: Option<f64>,
}

impl Update {
    /// Updates of one kind may be skipped for one another.
    pub fn same_kind(&self, other: &Update) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// One that no later update of its kind will replace.
    pub fn is_last(&self) -> bool {
        match self {
            Update::Doing(_) | Update::Done(_) => true,
            Update::Training(training) => training.step == training.steps,
            Update::Evaluating { done, total } => done == total,
            Update::Fetching { done, total } => Some(*done) == *total,
            Update::Serving { .. } => false,
        }
    }

    /// How much is done, of what.
    pub fn counted(&self) -> Option<(u64, u64)> {
        match *self {
            Update::Training(TrainingProgress { step, steps, .. }) => Some((step, steps)),
            Update::Evaluating { done, total } => Some((done, total)),
            Update::Fetching { done, total } => total.map(|total| (done, total)),
            _ => None,
        }
    }

    /// For a log: every number with its name.
    pub fn plain(&self) -> String {
        match self {
            Update::Training(t) => {
                let mut parts = vec![
                    format!("epoch {}/{}", t.epoch, t.epochs),
                    format!("step {}/{}", t.step, t.steps),
                    format!("loss {:.4}", t.loss),
                ];
                if t.samples_per_s > 0.0 {
                    parts.push(format!("{} samples/s", thousands(t.samples_per_s.round() as u64)));
                }
                parts.extend(t.staleness.map(|staleness| format!("staleness {staleness:.1}")));
                parts.extend(t.left_s.map(|left| format!("left {}", left_text(left))));
                parts.join("  ")
            }
            Update::Serving { updates, updates_per_s, staleness } => {
                let mut parts =
                    vec![format!("{} updates", thousands(*updates)), format!("{updates_per_s:.1} updates/s")];
                parts.extend(staleness.map(|staleness| format!("staleness {staleness:.1}")));
                parts.join("  ")
            }
            Update::Evaluating { done, total } => {
                format!("evaluating {} of {}", thousands(*done), thousands(*total))
            }
            Update::Fetching { done, total: Some(total) } => {
                format!("{} of {}", human::bytes(*done), human::bytes(*total))
            }
            Update::Fetching { done, total: None } => human::bytes(*done),
            Update::Doing(text) | Update::Done(text) => text.clone(),
        }
    }

    /// The update in so many columns: where room is short, what matters most stays.
    pub fn compact(&self, columns: usize) -> String {
        let Update::Training(t) = self else { return self.plain() };
        let epoch = format!("epoch {}/{}", t.epoch, t.epochs);
        let loss = format!("loss {:.4}", t.loss);
        let speed = (t.samples_per_s > 0.0)
            .then(|| format!("{} samples/s", thousands(t.samples_per_s.round() as u64)));
        let stale = t.staleness.map(|staleness| format!("stale {staleness:.1}"));
        let left = t.left_s.map(|left| format!("left {}", left_text(left)));
        let join = |parts: [Option<&String>; 5]| {
            parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("  ")
        };
        let (epoch, loss, speed, stale, left) =
            (Some(&epoch), Some(&loss), speed.as_ref(), stale.as_ref(), left.as_ref());
        let texts = [
            join([epoch, loss, speed, stale, left]),
            join([epoch, loss, speed, None, left]),
            join([epoch, loss, None, None, left]),
            join([None, loss, None, None, left]),
        ];
        let [.., shortest] = &texts;
        texts.iter().find(|text| text.len() <= columns).unwrap_or(shortest).clone()
    }
}

/// When the next plain line of a rank is due: often in a short run, seldom in a long one.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    began: Instant,
    last: Option<Instant>,
}

impl Pace {
    const SHORTEST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(30);

    pub fn new(now: Instant) -> Pace {
        Pace { began: now, last: None }
    }

    /// Whether a line is due now; if so, the next one is due later.
    pub fn due(&mut self, now: Instant) -> bool {
        let between = (now.saturating_duration_since(self.began) / 20).clamp(Self::SHORTEST, Self::LONGEST);
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= between);
        if due {
            self.last = Some(now);
        }
        due
    }
}

fn left_text(left: f64) -> String {
    if left < 59.5 { format!("{left:.0} s") } else { seconds(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training() -> TrainingProgress {
        TrainingProgress {
            step: 120,
            steps: 625,
            epoch: 1,
            epochs: 3,
            loss: 0.21344,
            samples_per_s: 3_210.4,
            staleness: Some(1.23),
            left_s: Some(12.3),
        }
    }

    #[test]
    fn each_kind_of_update_has_its_words() {
        let updates = [
            Update::Doing("waiting for 3 ranks".into()),
            Update::Training(training()),
            Update::Training(TrainingProgress {
                staleness: None,
                left_s: Some(4_000.0),
                loss: f64::NAN,
                ..training()
            }),
            Update::Serving { updates: 1_312, updates_per_s: 52.13, staleness: Some(1.9) },
            Update::Evaluating { done: 2_000, total: 10_000 },
            Update::Fetching { done: 3_200_000, total: Some(9_912_422) },
            Update::Done("1,875 steps in 12.4 s".into()),
        ];
        let text: Vec<String> =
            updates.iter().flat_map(|update| [update.plain(), update.compact(80)]).collect();
        insta::assert_snapshot!(text.join("\n"), @r"
        waiting for 3 ranks
        waiting for 3 ranks
        epoch 1/3  step 120/625  loss 0.2134  3,210 samples/s  staleness 1.2  left 12 s
        epoch 1/3  loss 0.2134  3,210 samples/s  stale 1.2  left 12 s
        epoch 1/3  step 120/625  loss NaN  3,210 samples/s  left 1 h 06 min
        epoch 1/3  loss NaN  3,210 samples/s  left 1 h 06 min
        1,312 updates  52.1 updates/s  staleness 1.9
        1,312 updates  52.1 updates/s  staleness 1.9
        evaluating 2,000 of 10,000
        evaluating 2,000 of 10,000
        3.1 MiB of 9.5 MiB
        3.1 MiB of 9.5 MiB
        1,875 steps in 12.4 s
        1,875 steps in 12.4 s
        ");
    }

    #[test]
    fn updates_survive_the_pipe() {
        let nan = Update::Training(TrainingProgress { loss: f64::NAN, ..training() });
        let line = serde_json::to_string(&nan).unwrap();
        let Update::Training(back) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        assert!(back.loss.is_nan());
    }

    #[test]
    fn plain_lines_become_seldom_in_a_long_run() {
        let began = Instant::now();
        let lines_after = |hours: u64| {
            let mut pace = Pace::new(began);
            (0..hours * 36_000).filter(|&tenth| pace.due(began + Duration::from_millis(100 * tenth))).count()
        };
        assert!((60..200).contains(&lines_after(1)), "{}", lines_after(1));
        assert!((1_000..1_400).contains(&(lines_after(12) - lines_after(1))), "{}", lines_after(12));
    }
}
