//! What training forwards saw of their batches, on its way into a module's buffers.

use tch::{TchError, Tensor, no_grad};

use super::{ModelError, Module};
use crate::layers;

/// What a forward would have written to the module's buffers, in the order in which it would have.
///
/// Floating-point sums depend on their order: whoever wants the same bits in each run folds these in a fixed one.
#[derive(Debug, Default)]
pub struct Statistics(Vec<Seen>);

/// Buffers are named by their place in the module.
#[derive(Debug)]
pub(super) enum Seen {
    /// A batch's own value, which a running mean moves to.
    Mean { buffer: usize, seen: Tensor, momentum: f64 },
    /// A whole number or several went up.
    Counted { buffer: usize, by: Tensor },
    /// It became something else.
    Written { buffer: usize, now: Tensor },
}

impl Statistics {
    /// What a layer saw whose buffers begin at `first`.
    pub(super) fn add(&mut self, first: usize, seen: layers::Seen) {
        self.push(match seen {
            layers::Seen::Mean { buffer, seen, momentum } => {
                Seen::Mean { buffer: first + buffer, seen, momentum }
            }
            layers::Seen::Batch { buffer } => {
                Seen::Counted { buffer: first + buffer, by: Tensor::from(1i64) }
            }
        });
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
            Seen::Mean { buffer, seen, momentum } => {
                let _ = buffers[*buffer].f_lerp_(seen, *momentum)?;
            }
            Seen::Counted { buffer, by } => {
                let _ = buffers[*buffer].f_add_(by)?;
            }
            Seen::Written { buffer, now } => buffers[*buffer].f_copy_(now)?,
        }
        Ok(())
    }
}
