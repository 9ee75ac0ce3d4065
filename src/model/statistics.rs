//! What training forwards saw of their batches, on its way into a module's buffers.

use std::ops::Range;

use tch::{TchError, Tensor, no_grad};

use super::{ModelError, Module};

/// What a forward would have written to the module's buffers, in the order in which it would have.
///
/// Floating-point sums depend on their order: whoever wants the same bits in each run folds these in a fixed one.
#[derive(Debug, Default)]
pub struct Statistics(Vec<Seen>);

/// Buffers are named by their place in the module.
#[derive(Debug)]
pub(super) enum Seen {
    /// A batch's own mean and variance, for the running ones.
    Normalised { buffers: [usize; 2], seen: [Tensor; 2], momentum: f64 },
    /// A whole number or several went up.
    Counted { buffer: usize, by: Tensor },
    /// It became something else.
    Written { buffer: usize, now: Tensor },
}

impl Statistics {
    /// A batch normalisation's: `buffers` are its running mean, its running variance and its count of batches.
    pub(super) fn add(&mut self, buffers: Range<usize>, mean: Tensor, var: Tensor, momentum: f64) {
        let [mean_at, var_at, batches] = [buffers.start, buffers.start + 1, buffers.start + 2];
        self.push(Seen::Normalised { buffers: [mean_at, var_at], seen: [mean, var], momentum });
        self.push(Seen::Counted { buffer: batches, by: Tensor::from(1i64) });
    }

    pub(super) fn push(&mut self, seen: Seen) {
        self.0.push(seen);
    }

    /// Puts what another forward saw behind this one's.
    pub fn append(&mut self, mut later: Statistics) {
        self.0.append(&mut later.0);
    }
}

impl Module {
    /// Takes what forwards saw into the buffers; running statistics as PyTorch does: `running + momentum * (seen -
    /// running)`.
    ///
    /// # Errors
    /// Libtorch could not compute it (memory).
    pub fn fold(&self, statistics: &Statistics) -> Result<(), ModelError> {
        let folded = no_grad(|| {
            let mut buffers = self.lock_buffers();
            statistics.0.iter().try_for_each(|seen| seen.fold_into(&mut buffers))
        });
        folded.map_err(|error| self.buffer_error("an update of the buffers", &error))
    }
}

impl Seen {
    fn fold_into(&self, buffers: &mut [Tensor]) -> Result<(), TchError> {
        match self {
            Seen::Normalised { buffers: at, seen, momentum } => {
                for (at, seen) in at.iter().zip(seen) {
                    let _ = buffers[*at].f_lerp_(seen, *momentum)?;
                }
            }
            Seen::Counted { buffer, by } => {
                let _ = buffers[*buffer].f_add_(by)?;
            }
            Seen::Written { buffer, now } => buffers[*buffer].f_copy_(now)?,
        }
        Ok(())
    }
}
