//! `model-best.safetensors`: the model of the best validation, as the coordinator keeps it while training goes on.
//!
//! The trainers stand still until the owners' snapshots are taken, not until they are written, but where the one before is still
//! being written: what is updated meanwhile is copied first.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::oneshot;

use super::calls::record::KeepBest;
use super::run_folder::{self, RunFolder};
use super::run_recorder::RunRecorder;
use super::saved_model::{Numbers, States};
use crate::autograd::Autograd;
use crate::job::Training;
use crate::metrics::Watched;
use crate::rpc::{CallError, Methods};

/// Tells which tensors are no numbers.
type Writing = JoinHandle<Result<Vec<String>>>;

/// The coordinator's.
pub struct BestModel {
    training: Training,
    autograd: Arc<Autograd>,
    recorder: Arc<RunRecorder>,
    folder: RunFolder,
    /// The file that is being written.
    writing: Mutex<Option<Writing>>,
}

impl BestModel {
    pub fn new(
        training: &Training,
        autograd: &Arc<Autograd>,
        recorder: &Arc<RunRecorder>,
        folder: &RunFolder,
    ) -> Arc<BestModel> {
        Arc::new(BestModel {
            training: training.clone(),
            autograd: autograd.clone(),
            recorder: recorder.clone(),
            folder: folder.clone(),
            writing: Mutex::default(),
        })
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let best = self.clone();
        methods.serve(move |_, KeepBest {}| {
            let best = best.clone();
            async move { best.keep().await }
        });
    }

    /// Takes the snapshots, on a thread that may wait for other ranks, and leaves the rest to it.
    async fn keep(self: Arc<Self>) -> Result<(), CallError> {
        let (taken, told) = oneshot::channel();
        let best = self.clone();
        let before = self.lock().take();
        let run = move || {
            // What became of the one before does not matter: this one takes its place.
            let _ = before.map(join);
            let offered = best.recorder.take_states(&best.autograd);
            let states = match States::take(&best.training, &best.autograd, offered) {
                Ok(states) => states,
                Err(error) => {
                    let _ = taken.send(Err(CallError::failed(format_args!("{error:#}"))));
                    return Ok(Vec::new());
                }
            };
            // Whoever asked may be gone: that is found elsewhere.
            let _ = taken.send(Ok(()));
            let mut odd = Vec::new();
            best.folder.write_with(run_folder::MODEL_BEST, |file, path| {
                odd = states.write(&best.training, best.numbers(), file, path)?;
                anyhow::Ok(())
            })?;
            Ok(odd)
        };
        let started = thread::Builder::new().name("best model".into()).spawn(run);
        let started =
            started.map_err(|error| CallError::failed(format_args!("no thread to keep a model: {error}")))?;
        *self.lock() = Some(started);
        told.await.map_err(|_| CallError::failed("the thread that keeps the best model has ended"))?
    }

    /// Those that the figure which decides is of.
    fn numbers(&self) -> Numbers {
        let watched = self.training.eval.best.as_ref();
        let averages = watched.is_some_and(Watched::is_of_average);
        if averages { Numbers::Averages } else { Numbers::Weights }
    }

    /// Waits until the last one is written. Tells which of its tensors are no numbers.
    ///
    /// # Errors
    /// One could not be.
    pub fn finish(&self) -> Result<Vec<String>> {
        let writing = self.lock().take();
        writing.map_or(Ok(Vec::new()), join).context("the model of the best validation")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Writing>> {
        self.writing.lock().expect("nobody panics keeping a model")
    }
}

fn join(writing: Writing) -> Result<Vec<String>> {
    writing.join().map_err(|_| anyhow!("the thread that writes it panicked"))?
}
