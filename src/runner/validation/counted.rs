//! What trainers count of the test data, and the figures that it comes to together.
//!
//! The test data are cut into batches as one trainer would cut them, and dealt out to the trainers in turn. The loss of each
//! batch travels, so that their sum is taken in the order of the data: the same bits for any number of trainers.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use tch::{Device, Kind, Tensor};

use super::measured::Measured;
use crate::job::Training;
use crate::metrics::{RESERVED, Value};
use crate::plugin::{Host, Weight};
use crate::runner::calls::validation::About;
use crate::runner::records::EvalResult;

/// What one trainer has counted.
pub struct Counted {
    /// Samples of the test data, also those of other trainers.
    samples: u64,
    batches: Vec<BatchFigures>,
    metrics: Vec<Measured>,
}

/// What a loss has said of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchFigures {
    pub samples: u64,
    /// Elements of their targets.
    pub targets: u64,
    /// How much its means count beside those of others.
    pub weight: Weight,
    pub loss: f64,
    pub reported: BTreeMap<String, f64>,
}

/// The numbers in front of what a loss reports, in a row of a batch.
const OWN: usize = 5;

/// The most targets of one batch: a tensor has no more elements, and a sum of as many batches as there are stays a number.
const MOST_TARGETS: f64 = (1u64 << 40) as f64;

/// How batches of a data set are dealt out.
#[derive(Clone, Copy, Debug)]
pub struct Deal {
    pub samples: u64,
    pub batch_size: u64,
    pub trainers: u64,
}

impl Deal {
    fn batches(self) -> u64 {
        self.samples.div_ceil(self.batch_size)
    }

    /// How many batches are a trainer's.
    fn batches_of(self, trainer: u64) -> u64 {
        (self.batches() + self.trainers - 1 - trainer) / self.trainers
    }

    fn samples_in(self, batch: u64) -> u64 {
        (self.samples - batch * self.batch_size).min(self.batch_size)
    }
}

impl Counted {
    /// Nothing yet.
    ///
    /// # Errors
    /// A plug-in of the job's metrics does not open.
    pub fn new(host: &Host, job: &Training, samples: u64) -> Result<Counted> {
        let open = |metric| Measured::open(host, metric, job.plugin_limits);
        let metrics = job.eval.metrics.iter().map(open).collect::<Result<_>>()?;
        Ok(Counted { samples, batches: Vec::new(), metrics })
    }

    /// A batch, in its turn.
    ///
    /// # Errors
    /// When a metric does not take what the loss takes.
    pub fn add(&mut self, figures: BatchFigures, outputs: &[Tensor], targets: &[Tensor]) -> Result<()> {
        for metric in &mut self.metrics {
            metric.update(outputs, targets)?;
        }
        self.batches.push(figures);
        Ok(())
    }

    /// For the first trainer.
    ///
    /// # Errors
    /// Memory; a plug-in that does not say what it has counted.
    pub fn into_parts(mut self) -> Result<(About, Tensor, Vec<Tensor>)> {
        let mut names: Vec<String> =
            self.batches.iter().flat_map(|batch| batch.reported.keys().cloned()).collect();
        names.sort_unstable();
        names.dedup();
        let row = |batch: &BatchFigures| {
            let Weight { loss, metrics } = batch.weight;
            let own = [batch.samples as f64, batch.targets as f64, loss, metrics, batch.loss];
            let reported = names.iter().map(|name| batch.reported.get(name).copied().unwrap_or(0.0));
            own.into_iter().chain(reported).collect::<Vec<_>>()
        };
        let rows: Vec<f64> = self.batches.iter().flat_map(row).collect();
        let shape = [self.batches.len() as i64, (OWN + names.len()) as i64];
        let batches = Tensor::f_from_slice(&rows)?.f_view(shape)?;
        let states = self.metrics.iter_mut().map(Measured::state).collect::<Result<Vec<_>>>()?;
        let about =
            About { samples: self.samples, reported: names, states: states.iter().map(Vec::len).collect() };
        Ok((about, batches, states.into_iter().flatten().collect()))
    }

    /// What the `trainer`-th trainer has sent, which may be anything, becomes what it has counted. `own` has counted the same
    /// data.
    ///
    /// # Errors
    /// It does not fit the test data that this trainer has, or the job's metrics.
    fn take(
        own: &Deal,
        trainer: u64,
        metrics: &mut [Measured],
        (about, batches, states): (About, Tensor, Vec<Tensor>),
    ) -> Result<Vec<BatchFigures>> {
        let About { samples, reported, states: counts } = about;
        ensure!(
            samples == own.samples,
            "it has {samples} test samples, and the first trainer {}\n  hint: data.test is to be the same for all trainers",
            own.samples
        );
        let shape = [own.batches_of(trainer) as i64, (OWN + reported.len()) as i64];
        ensure!(
            batches.size() == shape && batches.f_kind()? == Kind::Double && batches.device() == Device::Cpu,
            "figures of batches of shape {:?} came where f64 {shape:?} is taken",
            batches.size()
        );
        ensure!(
            counts.len() == metrics.len()
                && counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count)) == Some(states.len()),
            "states of {} metrics came, and the job has {}",
            counts.len(),
            metrics.len()
        );
        let mut states = states.into_iter();
        for (metric, count) in metrics.iter_mut().zip(counts) {
            metric.merge(states.by_ref().take(count).collect())?;
        }
        let mut rows = vec![0.0; batches.numel()];
        batches.f_contiguous()?.f_copy_data(&mut rows, batches.numel())?;
        let figures = |(nth, row): (usize, &[f64])| {
            let samples = own.samples_in(nth as u64 * own.trainers + trainer);
            ensure!(row[0] == samples as f64, "{} samples came of a batch of {samples}", row[0]);
            let weight = Weight { loss: row[2], metrics: row[3] };
            let are_weights =
                [weight.loss, weight.metrics].iter().all(|weight| weight.is_finite() && *weight >= 0.0);
            ensure!(are_weights, "weights of a batch of {weight:?} came");
            let reported = reported.iter().cloned().zip(row[OWN..].iter().copied()).collect();
            ensure!((0.0..=MOST_TARGETS).contains(&row[1]), "{} targets of a batch came", row[1]);
            Ok(BatchFigures { samples, targets: row[1] as u64, weight, loss: row[4], reported })
        };
        rows.chunks(OWN + reported.len()).enumerate().map(figures).collect()
    }

    /// The figures of all trainers together, this one being the first. `others` in the order of the trainers.
    ///
    /// # Errors
    /// What one of them has sent does not fit: names the rank.
    pub fn together(
        mut self,
        job: &Training,
        others: Vec<(About, Tensor, Vec<Tensor>)>,
    ) -> Result<EvalResult> {
        let trainers = 1 + others.len() as u64;
        let deal = Deal { samples: self.samples, batch_size: job.eval.batch_size, trainers };
        let mut parts = vec![std::mem::take(&mut self.batches)];
        for (at, other) in (1..).zip(others) {
            let taken = Counted::take(&deal, at, &mut self.metrics, other);
            let rank = job.train.trainers.ranks[at as usize];
            parts.push(taken.with_context(|| format!("what rank {rank} has counted of the test data"))?);
        }
        let mut parts: Vec<_> = parts.into_iter().map(Vec::into_iter).collect();
        let in_order = (0..deal.batches()).map(|batch| parts[(batch % trainers) as usize].next());
        let (mut samples, mut targets, mut loss) = (0, 0, 0.0);
        let mut weights = Weight { loss: 0.0, metrics: 0.0 };
        let mut reported: BTreeMap<String, f64> = BTreeMap::new();
        for batch in in_order {
            let batch = batch.context("a batch of the test data is missing")?;
            samples += batch.samples;
            targets = u64::saturating_add(targets, batch.targets);
            weights.loss += batch.weight.loss;
            weights.metrics += batch.weight.metrics;
            // A mean over nothing may be no number.
            loss += if batch.weight.loss > 0.0 { batch.loss * batch.weight.loss } else { 0.0 };
            for (name, value) in batch.reported {
                *reported.entry(name).or_default() += value * batch.weight.metrics;
            }
        }
        let reported = reported.into_iter().filter(|(name, _)| !RESERVED.contains(&name.as_str()));
        let mut metrics: BTreeMap<String, Value> =
            reported.map(|(name, sum)| (name, Value::Number(sum / weights.metrics))).collect();
        for metric in &mut self.metrics {
            metrics.extend(metric.figures()?);
        }
        Ok(EvalResult { samples, targets, loss: loss / weights.loss, metrics })
    }
}
