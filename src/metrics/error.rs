//! What can go wrong with a metric.

use tch::TchError;

use super::layout::Unfit;

/// Nobody does another thing for another fault, so there is one kind.
#[derive(Debug, thiserror::Error)]
#[error("metric `{metric}`: {fault}")]
pub struct MetricError {
    /// As records call it.
    pub metric: String,
    pub(super) fault: Fault,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Unfit(#[from] Unfit),

    #[error("what another rank has counted {0}")]
    State(String),

    #[error("{0}")]
    Torch(String),
}

impl From<TchError> for Fault {
    fn from(error: TchError) -> Fault {
        Fault::Torch(c10d::torch_message(&error))
    }
}
