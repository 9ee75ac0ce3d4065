//! A run told to others while it goes on: TensorBoard's files ([`tensorboard`]), an OpenTelemetry collector ([`otlp`]), MLflow's
//! server ([`mlflow`]). Prometheus comes for it instead ([`prometheus`]).
//!
//! Each is given the lines of `metrics.jsonl` from the first one, and knows by a file in the run folder ([`told`]) how many of them
//! it has passed on before, so a run that goes on is told on. What goes over a network has a queue and a thread of its own
//! ([`outbox`]): whoever follows a run waits for none of them.

mod clock;
mod exporter;
#[cfg(test)]
mod fake_server;
mod http;
mod mlflow;
mod otlp;
mod outbox;
pub mod prometheus;
mod sparse;
mod tensorboard;
mod told;

use std::path::Path;

use anyhow::Result;

pub use exporter::Exporter;

use crate::job::Job;
use clock::Clock;
use mlflow::Mlflow;
use otlp::Otlp;
use outbox::Outbox;
use tensorboard::TensorBoard;

/// To whom a job's run in `folder` is to be told.
///
/// # Errors
/// What an earlier exporter has left in the folder cannot be read, or the environment has what cannot be sent.
pub fn of_job(job: &Job, folder: &Path) -> Result<Vec<Box<dyn Exporter>>> {
    let mut exporters: Vec<Box<dyn Exporter>> = Vec::new();
    let Some(training) = job.training() else { return Ok(exporters) };
    let exports = &training.log.exports;
    let clock = || Clock::new(folder, job.cluster.world_size.0 as usize);
    if let Some(to) = &exports.tensorboard {
        exporters.push(Box::new(TensorBoard::new(to, folder, clock())?));
    }
    if let Some(to) = &exports.otlp {
        exporters.push(Box::new(Outbox::start(Otlp::new(to, job, folder, clock())?)?));
    }
    if let Some(to) = &exports.mlflow {
        exporters.push(Box::new(Outbox::start(Mlflow::new(to, job, folder, clock())?)?));
    }
    Ok(exporters)
}
