//! The job that a checkpoint is of beside the one that is to go on from it: what may differ, and what may not.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

use crate::job::Consistency;

/// A key whose values differ; none: the job does not say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub key: String,
    pub before: Option<String>,
    pub now: Option<String>,
}

/// What differs between two jobs.
pub struct Comparison {
    pub may: Vec<Difference>,
    /// With these the run would not be the same.
    pub may_not: Vec<Difference>,
}

/// What differs and may. Both are jobs as resolved.
///
/// # Errors
/// Something differs with which the run would not be the same; each is named.
pub fn differences(before: &str, now: &str) -> Result<Vec<Difference>> {
    let Comparison { may, may_not } = compare(before, now).context("the job of the checkpoint")?;
    if !may_not.is_empty() {
        bail!(
            "the checkpoint is of another job, which cannot go on as this one:{}\n  \
             hint: leave these as they were, or begin anew; `weights` starts a module of another job from it",
            may_not.iter().map(|difference| format!("\n  {difference}")).collect::<String>()
        );
    }
    Ok(may)
}

/// # Errors
/// One of them, both as resolved, is not TOML.
pub fn compare(before: &str, now: &str) -> Result<Comparison> {
    let [mut before, now] = [flat(before)?, flat(now)?];
    let mut all = Vec::new();
    for (key, now) in now {
        let old = before.remove(&key);
        if old.as_ref() != Some(&now) {
            all.push(Difference { key, before: old, now: Some(now) });
        }
    }
    all.extend(before.into_iter().map(|(key, old)| Difference { key, before: Some(old), now: None }));
    let (may_not, may) = all.into_iter().partition(is_fixed);
    Ok(Comparison { may, may_not })
}

/// Would the model, or the samples that are left, be others?
fn is_fixed(difference: &Difference) -> bool {
    let key = difference.key.as_str();
    if let Some((_, key)) = key.strip_prefix("modules.").and_then(|rest| rest.split_once('.')) {
        return !matches!(key, "place" | "run" | "weights" | "recompute") && !key.starts_with("optimizer.")
            || key == "optimizer.type";
    }
    if let Some(key) = key.strip_prefix("data.") {
        let of_machine = matches!(key, "root" | "threads" | "prefetch");
        return !of_machine && !key.starts_with("test.");
    }
    // That there are averages is a part of the state; how they go on is not.
    let comes_or_goes = difference.before.is_none() || difference.now.is_none();
    // Without order each trainer has an optimizer, with what it remembers.
    let with_optimizers_of_their_own =
        [&difference.before, &difference.now].into_iter().flatten().any(|value| is_unordered(value));
    matches!(key, "seed" | "optimizer.type" | "train.batch_size" | "train.accumulate" | "train.local_steps")
        || key == "ema.decay" && comes_or_goes
        || key == "train.consistency" && with_optimizers_of_their_own
}

/// Whether a value of `train.consistency`, as TOML has it, is of one without order.
fn is_unordered(value: &str) -> bool {
    Consistency::named(value.trim_matches('"')).is_some_and(|consistency| !consistency.is_ordered())
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { key, before, now } = self;
        match (before, now) {
            (Some(before), Some(now)) => write!(f, "`{key}` was {before} and is {now}"),
            (Some(before), None) => write!(f, "`{key}` was {before}, and is not there"),
            (None, now) => write!(f, "`{key}` was not there, and is {}", now.as_deref().unwrap_or_default()),
        }
    }
}

/// Each value by its key.
fn flat(job: &str) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let job = job.parse::<toml::Table>().context("it is not TOML")?;
    add("", &toml::Value::Table(job), &mut all);
    Ok(all)
}

fn add(key: &str, value: &toml::Value, to: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(name, value)| {
            let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            add(&key, value, to);
        }),
        value => drop(to.insert(key.into(), value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "seed = 1\n[modules.net]\nplace = \"ps\"\nlayers = [\"relu\"]\n[optimizer]\ntype = \"sgd\"\nlr = 0.1\n";

    #[test]
    fn rates_and_places_may_differ() {
        let now = BEFORE.replace("0.1", "0.2").replace("\"ps\"", "\"trainer\"") + "[ema]\n";
        let told = differences(BEFORE, &now).unwrap();
        let told: Vec<String> = told.iter().map(Difference::to_string).collect();
        assert_eq!(
            told,
            ["`modules.net.place` was \"ps\" and is \"trainer\"", "`optimizer.lr` was 0.1 and is 0.2"]
        );
    }

    #[test]
    fn what_makes_another_run_may_not() {
        let now = BEFORE.replace("seed = 1", "seed = 2").replace("relu", "tanh") + "[ema]\ndecay = 0.9\n";
        insta::assert_snapshot!(differences(BEFORE, &now).unwrap_err(), @r#"
        the checkpoint is of another job, which cannot go on as this one:
          `ema.decay` was not there, and is 0.9
          `modules.net.layers` was ["relu"] and is ["tanh"]
          `seed` was 1 and is 2
          hint: leave these as they were, or begin anew; `weights` starts a module of another job from it
        "#);
    }
}
