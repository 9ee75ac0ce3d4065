//! What a placement means: the parameter server, remote modules, replicas, shards.
//!
//! [`HostedModule`] is a module at its owner, [`RemoteModule`] its handle on another rank. [`Replica`] is one trainer's
//! copy of a module, [`GradientSync`] keeps the copies equal in a process group that [`Groups`] makes. [`ShardedModule`] is
//! a table whose rows lie on several ranks, each with a [`Shard`] of it. `pull_push` is the classic parameter server:
//! modules at the trainers, parameters on servers. [`ModuleHandle`] is a module of any kind, and [`DistributedOptimizer`]
//! updates the parameters of all in one step. Knows nothing of jobs' files, plug-ins or loops: `runner` drives it.

pub mod calls;
mod collective;
mod distributed_optimizer;
mod finite;
mod first_gradients;
mod gradient_sync;
mod group_store;
mod groups;
mod hosted;
mod hosted_parameters;
mod local_parameters;
mod loss_scale;
mod mean;
mod micro_batch;
mod module_handle;
mod module_server;
pub(crate) mod norm;
mod pull_push;
mod registry;
mod remote_module;
mod replica;
mod ring;
mod shards;
mod state;
mod stepping;
mod updates;
mod versioned;
mod walk;

pub use calls::state::Piece;
pub(crate) use calls::state::Taken;
pub use distributed_optimizer::{DistributedOptimizer, Parameters};
pub use gradient_sync::{Comparison, GradientSync};
pub use groups::Groups;
pub use hosted::{HostedModule, Hosting};
pub use local_parameters::LocalParameters;
pub use loss_scale::LossScale;
pub use micro_batch::{MicroBatch, Passage};
pub use module_handle::ModuleHandle;
pub use module_server::ModuleServer;
pub use pull_push::{Exchange, Exchanged, Pulled, RangeServer, Traffic};
pub use remote_module::{Forward, Input, RemoteModule};
pub use replica::Replica;
pub(crate) use shards::AGE;
pub use shards::{LookingUp, Shard, ShardServer, ShardedModule};
pub use state::{
    Entry, Extent, ModuleState, PIECE_BYTES, RowChoice, RowShare, StateKey, StateServer, StateSnapshot,
    StepCounters,
};
pub use stepping::{Measuring, Outcome, Stepping};
pub use walk::Walk;

/// How long a trainer waits for others before its step (`ssp`) or in it (`bsp`). That one is slow is no failure, and
/// heartbeats find one that is gone; so this only bounds the wait.
pub(crate) const WAIT_FOR_TRAINERS: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

/// A gradient for each parameter of a module, in its order; `None` where the step did not use it.
pub(crate) type Gradients = Vec<Option<tch::Tensor>>;

/// A leaf over the same storage that requires a gradient. `data` gives it a version counter of its own, so that an
/// update in place (hogwild) is no error in a backward that is under way.
pub(crate) fn leaf(parameter: &tch::Tensor) -> Result<tch::Tensor, tch::TchError> {
    parameter.f_data()?.f_set_requires_grad(true)
}

/// What a trainer says of its step, beside gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTerms {
    /// What the loss was divided by, the samples as a rule: a `bsp` round weighs its trainers by it.
    pub weight: f64,
    /// What the schedule multiplies the learning rate by.
    pub lr_factor: f64,
    /// What clipping by the norm, or the loss's scale, has the gradients multiplied by; 0: they are left out.
    pub factor: f64,
    /// They are those of a loss times a factor: that they are not finite is found when they are measured.
    pub scaled: bool,
}

impl StepTerms {
    /// As they came from another rank.
    pub(crate) fn checked(weight: f64, lr_factor: f64, factor: f64) -> anyhow::Result<StepTerms> {
        for (what, factor) in [("a learning rate is", lr_factor), ("gradients are", factor)] {
            let possible = factor.is_finite() && factor >= 0.0;
            anyhow::ensure!(possible, "{what} not multiplied by {factor}");
        }
        let possible = weight.is_finite() && weight >= 0.0;
        anyhow::ensure!(possible, "a step does not weigh {weight}");
        Ok(StepTerms { weight, lr_factor, factor, scaled: false })
    }
}

/// A step over so many samples, at the learning rate as the optimizer has it.
impl From<u64> for StepTerms {
    fn from(samples: u64) -> StepTerms {
        StepTerms { weight: samples as f64, lr_factor: 1.0, factor: 1.0, scaled: false }
    }
}

/// What became of a step's update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Updates by others between what the step read and what it wrote.
    pub staleness: u64,
    /// What of its gradients is not a finite number, in words: that part of it was not applied.
    pub not_finite: Option<String>,
}

/// What the first half of a step that clips has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    /// For each module the sum of the squares of what would be applied.
    pub squares: Vec<f64>,
    /// As [`Applied::not_finite`].
    pub not_finite: Option<String>,
}

impl Measured {
    /// With what was found of another part of the step.
    pub(crate) fn and(self, other: Measured) -> Measured {
        let squares = [self.squares, other.squares].concat();
        Measured { squares, not_finite: self.not_finite.or(other.not_finite) }
    }
}

impl Applied {
    pub(crate) fn after(staleness: u64) -> Applied {
        Applied { staleness, not_finite: None }
    }

    /// With what has become of another part of the step.
    pub(crate) fn and(self, other: Applied) -> Applied {
        Applied {
            staleness: self.staleness.max(other.staleness),
            not_finite: self.not_finite.or(other.not_finite),
        }
    }
}
