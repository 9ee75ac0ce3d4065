//! Launch, worker, the training step, evaluation, progress, metrics, the run folder.

pub mod launch;
pub mod loader;
pub mod metrics;
pub mod progress;
pub mod run_folder;
