//! Why a run is as fast as it is: where the time of its steps goes, what limits it, and what to change.
//!
//! Pure functions over what [`Watched`] has of a run. [`facts`] gathers figures, [`rules`] has the advice, one function each, and
//! [`trace`] what a profile adds. What a run was too short to say is not said.

mod facts;
mod rules;
mod text;
pub mod trace;

use serde::Serialize;

pub use facts::{Facts, JobFacts, RankFacts, RoleFacts, Slowest};
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

pub fn explain(watched: &Watched, job: &JobFacts, traced: Option<Traced>) -> Explanation {
    let facts = Facts::of(watched, job);
    let too_short = too_short(&facts);
    let advice = if too_short.is_some() { Vec::new() } else { rules::all(&facts) };
    Explanation { slowest: facts.slowest(), too_short, advice, traced, facts }
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

#[cfg(test)]
mod tests;
