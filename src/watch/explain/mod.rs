//! Why a run is as fast as it is: where the time of its steps goes, what limits it, and what to change.
//!
//! Pure functions over what [`Watched`] has of a run. [`facts`] gathers figures, [`rules`] has the advice, one function each, and
//! [`trace`] what a profile adds. What a run was too short to say is not said.

mod facts;
mod rules;
mod text;
pub mod trace;

use serde::Serialize;

pub use facts::{Facts, JobFacts, RankFacts, RoleFacts};
pub use rules::Advice;
pub use trace::{StepTimes, Traced};

use super::run::Watched;

/// Fewer steps of a trainer, or less time, say nothing: the first steps are unlike the others.
const FEWEST_STEPS: u64 = 40;
const LEAST_S: f64 = 1.5;

/// What there is to say.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    pub facts: Facts,
    /// Why the run does not say enough for advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_short: Option<String>,
    /// The slowest trainer, where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<Slowest>,
    /// What limits most first.
    pub advice: Vec<Advice>,
    /// With `--profile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traced: Option<Traced>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slowest {
    pub rank: u32,
    pub role: String,
    /// Milliseconds of a step in which it works itself.
    pub works_ms: f64,
    /// The same of the trainer in the middle.
    pub median_ms: f64,
}

impl Slowest {
    /// How many times as long.
    pub fn times(&self) -> f64 {
        self.works_ms / self.median_ms
    }
}

pub fn explain(watched: &Watched, job: &JobFacts, traced: Option<Traced>) -> Explanation {
    let facts = Facts::of(watched, job);
    let too_short = too_short(&facts);
    let advice = if too_short.is_some() { Vec::new() } else { rules::all(&facts) };
    Explanation { slowest: slowest(&facts), too_short, advice, traced, facts }
}

fn too_short(facts: &Facts) -> Option<String> {
    let Facts { steps, seconds, .. } = *facts;
    if facts.ranks.is_empty() {
        let hint = "log.usage_every_ms sets how often ranks tell what they do";
        return Some(format!("no rank has told where its time goes\n  hint: {hint}"));
    }
    (steps < FEWEST_STEPS || seconds < LEAST_S).then(|| {
        format!(
            "the run is too short to say what limits it: {steps} steps of a trainer in {seconds:.1} s\n  \
             hint: at least {FEWEST_STEPS} steps and {LEAST_S} s are needed; train.steps or train.epochs make it longer"
        )
    })
}

/// The trainer that works longest for a step, where there are others.
fn slowest(facts: &Facts) -> Option<Slowest> {
    let mut works: Vec<(f64, &RankFacts)> =
        facts.trainers().filter(|rank| rank.steps > 0).map(|rank| (rank.works_ms(), rank)).collect();
    works.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (&(works_ms, rank), others) = works.split_last()?;
    let median_ms = others.get(others.len() / 2)?.0;
    (median_ms > 0.0).then(|| Slowest { rank: rank.rank, role: rank.role.clone(), works_ms, median_ms })
}

#[cfg(test)]
mod tests;
