//! Launch, worker, the training step, evaluation, progress, metrics, the run folder.
pub mod libtorch;
