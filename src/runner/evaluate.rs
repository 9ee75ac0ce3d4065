//! The test set through the same modules, with dropout off and nothing recorded.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::inputs::BadJob;
use super::loader::Schedule;
use super::metrics::EvalResult;
use super::progress::{Reporter, Update};
use super::samples::Split;
use super::step::Stepper;
use crate::job::Training;
use crate::plugin::{DatasetState, Host};
use crate::profile::beat;

/// `None` when the job has no test data.
///
/// # Errors
/// When the data cannot be read, or a module's owner fails.
pub fn evaluate(
    host: &Host,
    job: &Training,
    root: &Path,
    state: Option<DatasetState>,
    stepper: &mut Stepper,
    reporter: &mut Reporter,
) -> Result<Option<EvalResult>> {
    let split = Split::open_test(host, job, root, state).context("the test data").map_err(BadJob)?;
    let Some(split) = split else { return Ok(None) };
    let total = split.samples();
    let schedule = Schedule::for_evaluation(total, job.eval.batch_size)?;

    let (mut seen, mut targets, mut loss) = (0, 0, 0.0);
    let mut metrics: BTreeMap<String, f64> = BTreeMap::new();
    for batch in split.fetch(job, root, schedule)? {
        let samples = batch?.data;
        let weight = samples.count as f64;
        let compared = samples.take(&stepper.targets);
        targets += compared.first().map_or(0, |target| target.numel() as u64);
        let outputs = stepper.predict(&samples)?;
        let computed = stepper.loss.compute(&outputs, &compared, true)?;
        loss += computed.loss.f_double_value(&[])? * weight;
        for (name, value) in computed.metrics {
            if !EvalResult::OWN.contains(&name.as_str()) {
                *metrics.entry(name).or_default() += value * weight;
            }
        }
        seen += samples.count;
        beat();
        reporter.report(Update::Evaluating { done: seen, total });
    }
    metrics.values_mut().for_each(|sum| *sum /= seen as f64);
    Ok(Some(EvalResult { samples: seen, targets, loss: loss / seen as f64, metrics }))
}
