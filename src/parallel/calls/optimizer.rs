//! The optimizer of hosted modules.

use crate::optimizers::Optimization;
use crate::rpc::{Json, RRef, body, call};

call! {
    /// One optimizer over all parameters of some modules.
    pub(in crate::parallel) struct Create = "optimizer.create" -> Created {
        options: Json<Optimization>,
        ..parameters: RRef,
    }
}

body! {
    pub(in crate::parallel) struct Created {
        optimizer: RRef,
    }
}

call! {
    /// The caller's step, under the context that has its gradients.
    pub(in crate::parallel) struct Step = "optimizer.step" -> Stepped {
        optimizer: RRef,
        /// The number of the backward to step after; none: the step is skipped.
        backward: Option<u64>,
        /// The size of the batch.
        samples: u64,
        /// What the learning rate is multiplied by.
        lr_factor: f64,
    }
}

body! {
    /// What became of a step.
    pub(in crate::parallel) struct Stepped {
        /// The largest of the updates.
        staleness: u64,
        /// What of the gradients is not a finite number, and so was not applied.
        not_finite: Option<String>,
    }
}
