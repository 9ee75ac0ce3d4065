//! A module as a trainer uses it, wherever the job has placed it.

use anyhow::Result;
use tch::Tensor;

use super::{Forward, Parameters, Pulled, RemoteModule, Replica, ShardedModule};
use crate::autograd::Context;

pub enum Placed {
    /// On another rank, or hosted by this one for all.
    Remote(RemoteModule),
    /// Here, as on each of the trainers.
    Replica(Box<Replica>),
    /// A table whose rows lie on several ranks.
    Sharded(Box<ShardedModule>),
    /// Here, with parameters that are on servers.
    Pulled(Box<Pulled>),
}

impl Placed {
    /// The module's output; the backward of `context` reaches the module's parameters through it.
    ///
    /// # Errors
    /// What the module says, or the call to its owner.
    pub fn forward(&self, context: &Context, input: Tensor, forward: Forward) -> Result<Tensor> {
        match self {
            Placed::Remote(module) => module.forward(context, vec![input], forward),
            Placed::Replica(replica) => replica.forward(input, forward),
            Placed::Sharded(table) => table.look_up(context, &input, forward.after)?.wait(),
            Placed::Pulled(pulled) => pulled.forward(context, input, forward),
        }
    }

    /// The module's output with dropout off, nothing recorded.
    ///
    /// # Errors
    /// As [`Placed::forward`].
    pub fn predict(&self, input: Tensor) -> Result<Tensor> {
        match self {
            Placed::Remote(module) => module.predict(vec![input]),
            Placed::Replica(replica) => replica.predict(input),
            Placed::Sharded(table) => table.predict(&input),
            Placed::Pulled(pulled) => pulled.copy().predict(input),
        }
    }

    pub fn remote(&self) -> Option<&RemoteModule> {
        match self {
            Placed::Remote(module) => Some(module),
            Placed::Replica(_) | Placed::Sharded(_) | Placed::Pulled(_) => None,
        }
    }

    pub fn sharded(&self) -> Option<&ShardedModule> {
        match self {
            Placed::Sharded(table) => Some(table),
            Placed::Remote(_) | Placed::Replica(_) | Placed::Pulled(_) => None,
        }
    }

    pub fn replica(&self) -> Option<&Replica> {
        match self {
            Placed::Replica(replica) => Some(replica),
            Placed::Remote(_) | Placed::Sharded(_) | Placed::Pulled(_) => None,
        }
    }

    /// For a [`DistributedOptimizer`](super::DistributedOptimizer).
    ///
    /// # Errors
    /// When the call to the module's owner fails.
    pub fn parameters(&self) -> Result<Parameters> {
        Ok(match self {
            Placed::Remote(module) => Parameters::There(module.parameters()?),
            Placed::Replica(replica) => Parameters::Here(replica.parameters()),
            Placed::Sharded(table) => Parameters::Sharded(table.shards().to_vec()),
            Placed::Pulled(pulled) => pulled.parameters()?,
        })
    }
}
