//! The moving averages of the weights, judged as the weights are: they take their place for a while.

use std::sync::Arc;

use anyhow::Result;

use crate::autograd::Autograd;
use crate::job::{Placement, Training};
use crate::metrics::{OF_AVERAGE, Value};
use crate::parallel::StateSnapshot;
use crate::runner::records::EvalResult;

/// Has all owners of parameters but the trainers swap weights and averages. Called by one trainer while all stand still.
///
/// # Errors
/// When an owner cannot be asked.
pub fn swap_at_owners(job: &Training, autograd: &Arc<Autograd>) -> Result<()> {
    let owned = job.modules.iter().filter(|spec| spec.placement != Placement::Replicas);
    let owners = owned.flat_map(|spec| spec.place.ranks.iter().map(|&owner| (owner, spec.name.as_str())));
    let swaps: Vec<_> =
        owners.map(|(owner, module)| StateSnapshot::swap_averages(autograd, owner, module)).collect();
    swaps.into_iter().try_for_each(|swap| Ok(swap.wait()?))
}

/// The figures of the weights, and those of the averages beside them.
pub fn beside(of_weights: EvalResult, of_averages: EvalResult) -> EvalResult {
    let figures = of_averages.metrics.into_iter().chain([("loss".into(), Value::Number(of_averages.loss))]);
    let figures = figures.map(|(name, value)| (format!("{OF_AVERAGE}{name}"), value));
    EvalResult { metrics: of_weights.metrics.into_iter().chain(figures).collect(), ..of_weights }
}
