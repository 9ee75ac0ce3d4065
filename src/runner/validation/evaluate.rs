//! Test data through the modules, with dropout off and nothing recorded.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::counted::{BatchFigures, Counted};
use crate::job::{Predict, Source, Training};
use crate::plugin::{DatasetState, Host, Weight};
use crate::profile::beat;
use crate::runner::inputs::BadJob;
use crate::runner::loader::Schedule;
use crate::runner::predictions::Predictions;
use crate::runner::progress::{Reporter, Update};
use crate::runner::samples::Split;
use crate::runner::step::Stepper;

/// Which of the trainers this is, counted from 0, and how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub trainer: u32,
    pub trainers: u32,
}

/// What the batches are that fall to this trainer, of a job that has test data.
///
/// # Errors
/// When the data cannot be read, a module's owner fails, or a metric does not open or take what the loss does.
pub fn evaluate(
    host: &Host,
    job: &Training,
    root: &Path,
    state: Option<DatasetState>,
    stepper: &mut Stepper,
    share: Share,
    reporter: &mut Reporter,
) -> Result<Counted> {
    let split = Split::open_test(host, job, root, state).context("the test data").map_err(BadJob)?;
    let split = split.context("the job has no test data")?;
    let samples = split.samples();
    let schedule = Schedule::for_evaluation(samples, job.eval.batch_size, share.trainer, share.trainers)?;
    let mut counted = Counted::new(host, job, samples).map_err(BadJob)?;
    let (mut done, total) = (0, schedule.samples_of_epoch());
    for batch in split.fetch(job, root, schedule)? {
        let samples = batch?.data;
        let compared = samples.take(&stepper.targets);
        let outputs = stepper.predict(&samples)?;
        let computed = stepper.loss.compute(&outputs, &compared, true)?;
        let weight = stepper.loss.weigh(&compared, samples.count)?;
        let figures = BatchFigures {
            weight,
            samples: samples.count,
            targets: match stepper.loss.weighs() {
                // Those that count.
                true => weight.metrics as u64,
                false => compared.first().map_or(0, |target| target.numel() as u64),
            },
            loss: computed.loss.f_double_value(&[])? / summed(job, weight),
            reported: computed.metrics.into_iter().collect(),
        };
        counted.add(figures, &outputs, &compared).map_err(BadJob)?;
        done += samples.count;
        beat();
        reporter.report(Update::Evaluating { done, total });
    }
    Ok(counted)
}

/// What makes a mean of the loss of a batch, which has this weight.
fn summed(job: &Training, weight: Weight) -> f64 {
    // Where nothing counts the loss is 0.
    if job.loss.is_sum() && weight.loss > 0.0 { weight.loss } else { 1.0 }
}

/// Writes what the loss would take, for each sample, beside the fields that are passed through.
///
/// # Errors
/// When the data cannot be read, a module's owner fails, or the file cannot be written.
pub fn predict(
    host: &Host,
    job: &Training,
    root: &Path,
    state: Option<DatasetState>,
    stepper: &Stepper,
    what: &Predict,
    reporter: &mut Reporter,
) -> Result<()> {
    let split = Split::open_test(host, job, root, state).context("the test data").map_err(BadJob)?;
    let split = split.context("the job has no test data")?;
    let total = split.samples();
    let schedule = Schedule::for_evaluation(total, job.eval.batch_size, 0, 1)?;
    let fields = what.fields.iter().map(|(name, _)| name.clone());
    let names: Vec<String> = fields.chain(output_names(job)).collect();
    let mut predictions = Predictions::new(&what.file, names, total).map_err(BadJob)?;
    let mut done = 0;
    for batch in split.fetch(job, root, schedule)? {
        let samples = batch?.data;
        let places: Vec<usize> = what.fields.iter().map(|(_, place)| *place).collect();
        let columns: Vec<_> = samples.take(&places).into_iter().chain(stepper.predict(&samples)?).collect();
        predictions.add(samples.count, &columns)?;
        done += samples.count;
        beat();
        reporter.report(Update::Evaluating { done, total });
    }
    predictions.finish()
}

/// The names of what the loss takes, as modules and their outputs are called.
fn output_names(job: &Training) -> impl Iterator<Item = String> {
    job.loss.from.iter().map(|source| match *source {
        Source::Field(field) => job.fields[field].name.shown(),
        Source::Output { module, output } => {
            let module = &job.modules[module];
            if module.stage.is_some() { module.written_name().to_owned() } else { module.output_name(output) }
        }
    })
}
