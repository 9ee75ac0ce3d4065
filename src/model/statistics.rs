//! What training forwards saw of their batches, on its way into a module's running statistics.

use std::ops::Range;

use tch::{TchError, Tensor, no_grad};

use super::{ModelError, Module};

/// The batch's own mean and variance at each batch normalisation that a forward passed, in the order of the layers.
///
/// Floating-point sums depend on their order: whoever wants the same bits in each run folds these in a fixed one.
#[derive(Debug, Default)]
pub struct Statistics(Vec<Seen>);

#[derive(Debug)]
struct Seen {
    /// Of the module: running mean, running variance, batches so far.
    buffers: Range<usize>,
    mean: Tensor,
    var: Tensor,
    momentum: f64,
}

impl Statistics {
    pub(super) fn add(&mut self, buffers: Range<usize>, mean: Tensor, var: Tensor, momentum: f64) {
        self.0.push(Seen { buffers, mean, var, momentum });
    }

    /// Puts what another forward saw behind this one's.
    pub fn append(&mut self, mut later: Statistics) {
        self.0.append(&mut later.0);
    }
}

impl Module {
    /// Takes what forwards saw into the running statistics, as PyTorch does: `running + momentum * (seen - running)`.
    ///
    /// # Errors
    /// Libtorch could not compute it (memory).
    pub fn fold(&self, statistics: &Statistics) -> Result<(), ModelError> {
        let folded = no_grad(|| {
            let mut buffers = self.lock_buffers();
            for seen in &statistics.0 {
                let own = &mut buffers[seen.buffers.clone()];
                let _ = own[0].f_lerp_(&seen.mean, seen.momentum)?;
                let _ = own[1].f_lerp_(&seen.var, seen.momentum)?;
                let _ = own[2].f_add_scalar_(1)?;
            }
            Ok::<_, TchError>(())
        });
        folded.map_err(|error| self.buffer_error("an update of the running statistics", &error))
    }
}
