//! Forwards that keep what their backward needs, or little more than their inputs.

use std::sync::{Arc, Mutex, PoisonError};

use c10d::{TorchError, recomputed};
use tch::Tensor;

use super::module::Body;
use super::{Mode, ModelError, Module, Statistics};

impl Module {
    /// As [`Module::observe`], for a backward. With `recompute` only the inputs are kept: the backward runs the forward
    /// again, with the same dropout masks and from the buffers that the first one found, and what that sees of its batch
    /// is not counted twice.
    ///
    /// # Errors
    /// As [`Module::outputs`]; with `recompute`, a module of several outputs.
    pub fn record(
        self: &Arc<Self>,
        params: &[Tensor],
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<(Vec<Tensor>, Statistics), ModelError> {
        if !self.recompute {
            return self.observe(params, inputs, mode);
        }
        // Between the two forwards buffers change: by the first one itself, and by those of others.
        let buffers = match self.body {
            Body::Script { .. } => self.copy_buffers()?,
            // No training forward of layers reads one.
            Body::Layers { .. } => Vec::new(),
        };
        let buffers = Mutex::new(buffers);
        let all: Vec<Tensor> = params.iter().chain(inputs).map(Tensor::shallow_clone).collect();
        // What the first run saw, or why it failed: written by it alone.
        let first: Arc<Mutex<Option<Result<Statistics, ModelError>>>> = Arc::default();
        let (module, parameters, report) = (self.clone(), params.len(), Mutex::new(Some(first.clone())));
        let output = recomputed(&all, move |all| {
            let (params, inputs) = all.split_at(parameters);
            let observed = {
                let buffers = buffers.lock().unwrap_or_else(PoisonError::into_inner);
                module.observe_from(params, inputs, mode, Some(&buffers))
            };
            let first = report.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (output, seen) = match observed {
                Ok((outputs, seen)) => match <[Tensor; 1]>::try_from(outputs) {
                    Ok([output]) => (Ok(output), Ok(seen)),
                    Err(outputs) => {
                        let error = ModelError::Outputs { module: module.name.clone(), got: outputs.len() };
                        (Err(TorchError { message: error.to_string() }), Err(error))
                    }
                },
                Err(error) => (Err(TorchError { message: error.to_string() }), Err(error)),
            };
            if let Some(first) = first {
                *first.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
            }
            output
        });
        let seen = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (output, seen) {
            (Ok(output), Some(Ok(seen))) => Ok((vec![output], seen)),
            (_, Some(Err(error))) => Err(error),
            (Err(TorchError { message }), _) => Err(self.recompute_error(message)),
            (Ok(_), None) => Err(self.recompute_error("the forward did not run".into())),
        }
    }

    fn recompute_error(&self, message: String) -> ModelError {
        let what = "a forward that is computed again in the backward".into();
        ModelError::Build { module: self.name.clone(), what, message }
    }
}
