//! An optimizer over references to parameters, wherever they live.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::{Applied, PATIENCE};
use crate::autograd::{Autograd, AutogradPending, Backward, Context};
use crate::job::optimizer::OptimizerSpec;
use crate::rpc::{RRef, Value};
use crate::topology::Rank;

/// Updates parameters at their owners. Every option goes on to the local optimizers there.
///
/// All who make one over the same module share one optimizer and its state at the owner, as they share the module.
pub struct DistributedOptimizer {
    autograd: Arc<Autograd>,
    /// One for each owner of a parameter.
    at_owners: Vec<RRef>,
}

impl DistributedOptimizer {
    /// # Errors
    /// When an owner refuses the options, or already updates these parameters with others.
    pub fn new(
        autograd: &Arc<Autograd>,
        spec: &OptimizerSpec,
        parameters: Vec<RRef>,
    ) -> Result<DistributedOptimizer> {
        let options = serde_json::to_string(spec).context("the optimizer's options")?;
        let mut by_owner: BTreeMap<Rank, Vec<Value>> = BTreeMap::new();
        for parameter in parameters {
            by_owner
                .entry(parameter.owner())
                .or_insert_with(|| vec![options.clone().into()])
                .push(parameter.into());
        }
        let calls: Vec<_> = by_owner
            .into_iter()
            .map(|(owner, values)| autograd.call(owner, "optimizer.create", values, None))
            .collect();
        let mut at_owners = Vec::new();
        for call in calls {
            let rref = call.wait()?.into_iter().next().context("`optimizer.create` gave nothing")?;
            at_owners.push(rref.into_rref()?);
        }
        Ok(DistributedOptimizer { autograd: autograd.clone(), at_owners })
    }

    /// Updates all parameters with the gradients that `backward` leaves at their owners. Goes out at once: each owner
    /// waits for its own part of the backward, so that a step costs one network latency less.
    ///
    /// `samples` is what the loss was a mean over: a `bsp` round weighs its trainers by it.
    ///
    /// # Errors
    /// When the backward could not begin.
    pub fn step(&self, context: &Context, backward: &Backward, samples: u64) -> Result<Stepping> {
        let number = backward.number().context("the backward could not begin")?;
        Ok(self.fan_out(context, Some(number), samples))
    }

    /// Takes part in the step without an update, so that nobody who waits for this trainer waits in vain.
    pub fn skip(&self, context: &Context) -> Stepping {
        self.fan_out(context, None, 0)
    }

    /// To all owners at once.
    fn fan_out(&self, context: &Context, backward: Option<u64>, samples: u64) -> Stepping {
        let call = |optimizer: &RRef| {
            let after = backward.map_or(Value::Nil, |number| Value::Int(number as i64));
            let values = vec![optimizer.clone().into(), after, Value::Int(samples as i64)];
            self.autograd.call_within(optimizer.owner(), "optimizer.step", values, Some(context), PATIENCE)
        };
        Stepping { calls: self.at_owners.iter().map(call).collect() }
    }
}

/// A step that the owners are taking.
#[must_use = "a step that nobody waits for fails unseen"]
pub struct Stepping {
    calls: Vec<AutogradPending<Vec<Value>>>,
}

impl Stepping {
    /// Blocks until all owners have taken it. The answer has the largest staleness.
    ///
    /// # Errors
    /// When the backward failed, or an owner cannot apply the gradients.
    pub fn wait(self) -> Result<Applied> {
        let mut applied = Applied { staleness: 0 };
        for call in self.calls {
            let staleness =
                call.wait()?.into_iter().next().context("`optimizer.step` gave nothing")?.into_int()?;
            applied.staleness = applied.staleness.max(staleness.max(0) as u64);
        }
        Ok(applied)
    }
}
