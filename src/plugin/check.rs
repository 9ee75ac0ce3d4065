//! `pstrain plugin check`: loads a plug-in, calls it as a job would, and says what it found.

mod dataset;
mod example;
mod loss;
mod metric;
mod show;
mod sketch;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use self::dataset::DatasetReport;
pub use self::loss::{GradientReport, LossReport};
pub use self::metric::{MergeReport, MetricReport};
pub use self::sketch::{BadSketch, Sketch};
use super::component::World;
use super::error::PluginError;
use super::host::Host;
use crate::job::{PluginLimits, PluginRef};

/// How long each speed is measured.
const MEASURED_FOR: Duration = Duration::from_millis(500);
/// Calls that are enough to know a speed.
const MOST_CALLS: usize = 1000;

/// What to check with.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The plug-in's parameters, a JSON object.
    pub config: &'a serde_json::Value,
    /// The folder that a dataset reads.
    pub root: &'a Path,
    pub limits: PluginLimits,
    /// Samples of a dataset's batch.
    pub batch_size: u64,
    /// Shapes of the random inputs of a loss or a metric; usual ones are tried if these are empty.
    pub outputs: Vec<Sketch>,
    pub targets: Vec<Sketch>,
}

/// What was found. `Display` is for people, `Serialize` for scripts.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub name: String,
    pub load_ms: f64,
    /// Interfaces that it names and that plug-ins do not have.
    pub missing_imports: Vec<String>,
    pub time_limit_ms: f64,
    pub open_time_limit_ms: f64,
    pub memory_limit_bytes: u64,
    pub batch_limit_bytes: u64,
    /// At least one of these is there.
    pub dataset: Option<DatasetReport>,
    pub loss: Option<LossReport>,
    pub metric: Option<MetricReport>,
}

impl Report {
    /// Whether a job can use the plug-in: nothing found is wrong.
    pub fn is_good(&self) -> bool {
        let gradient = self.loss.as_ref().and_then(|loss| loss.gradient.as_ref());
        gradient.is_none_or(|gradient| gradient.agrees)
            && self.metric.as_ref().is_none_or(|metric| metric.merged.agrees)
    }
}

/// Loads the plug-in and calls it.
///
/// # Errors
/// The first thing that a job would stumble over too.
pub fn check(host: &Host, plugin: &PluginRef, request: &Request) -> Result<Report, PluginError> {
    let begun = Instant::now();
    let component = host.load_ref(plugin)?;
    let load_ms = ms(begun.elapsed());
    let dataset = component.is(World::Dataset).then(|| dataset::check(&component, request)).transpose()?;
    let is_loss = component.is(World::Loss) || component.is(World::RawLoss);
    let loss = is_loss.then(|| loss::check(&component, request)).transpose()?;
    let metric = component.is(World::Metric).then(|| metric::check(&component, request)).transpose()?;
    Ok(Report {
        name: component.name().into(),
        load_ms,
        missing_imports: component.missing_imports().to_vec(),
        time_limit_ms: ms(request.limits.time),
        open_time_limit_ms: ms(request.limits.open_time),
        memory_limit_bytes: request.limits.memory_bytes,
        batch_limit_bytes: request.limits.batch_bytes,
        dataset,
        loss,
        metric,
    })
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The median and the longest of repeated calls, in microseconds.
fn measure<E>(mut call: impl FnMut(usize) -> Result<(), E>) -> Result<(f64, f64), E> {
    let begun = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < MOST_CALLS && (taken.is_empty() || begun.elapsed() < MEASURED_FOR) {
        let start = Instant::now();
        call(taken.len())?;
        taken.push(start.elapsed().as_secs_f64() * 1e6);
    }
    taken.sort_by(f64::total_cmp);
    Ok((taken[taken.len() / 2], taken[taken.len() - 1]))
}
