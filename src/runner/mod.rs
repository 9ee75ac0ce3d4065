//! Running a job: launch, worker, the training step, evaluation, progress, metrics, the run folder.
//!
//! [`worker`] is the life of a rank and [`step`] one training step, each from top to bottom. What ranks say to one
//! another is `rpc`'s and `parallel`'s; what a process returns to the shell is `cli`'s.

pub mod agreement;
pub mod builtin;
pub mod call_times;
mod calls;
pub mod collective_times;
pub mod devices;
mod driver;
mod evaluate;
pub mod fetch;
pub mod inputs;
mod interrupts;
pub mod launch;
mod ledger;
pub mod libtorch;
pub mod loader;
mod measured;
pub mod metrics;
pub mod model_files;
pub mod one_process;
pub mod progress;
pub mod rendezvous;
pub mod run_folder;
pub mod samples;
mod saved_model;
mod signals;
mod step;
#[cfg(test)]
mod testing;
mod threads;
mod tour;
mod trace;
mod trainer;
mod training;
pub mod worker;
