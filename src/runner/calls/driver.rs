//! What the driver of a job has the trainers do.

use crate::rpc::{RRef, call};

call! {
    /// Answered when the training loop is over.
    pub(in crate::runner) struct Train = "train.run" -> () {
        ..modules: (String, RRef),
    }
}
