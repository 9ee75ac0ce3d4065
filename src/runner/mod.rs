//! Running a job: launch, the life of a rank, the training step, evaluation, progress, metrics, the run folder.
//!
//! [`rank`] is the life of a rank and [`step`] one training step, each from top to bottom. What ranks say to one
//! another is `rpc`'s and `parallel`'s; what a process returns to the shell is `cli`'s.

pub mod agreement;
mod assembly;
mod best_model;
pub mod builtin;
pub mod call_times;
mod calls;
pub mod checkpoint;
pub mod collective_times;
mod collectives_demo;
mod course;
pub mod devices;
mod driver;
pub mod export;
pub mod fetch;
pub mod flight;
mod gpu;
mod ids;
pub mod inputs;
pub mod interrupts;
pub mod launch;
pub mod libtorch;
pub mod limits;
pub mod loader;
pub mod measured;
mod merged_rows;
pub mod messages;
pub mod metrics;
pub mod model_files;
pub mod one_process;
pub mod predictions;
mod preflight;
mod prepare;
pub mod progress;
pub mod rank;
pub mod records;
mod remains;
pub mod rendezvous;
pub mod run_folder;
mod run_recorder;
pub mod runs;
pub mod samples;
pub mod saved_model;
mod shares;
mod signals;
mod skipped;
mod spool;
mod step;
#[cfg(test)]
mod testing;
mod threads;
mod trace;
mod trainer;
pub mod training;
pub mod try_data;
mod try_script;
mod usage;
mod validation;
mod waiting;
