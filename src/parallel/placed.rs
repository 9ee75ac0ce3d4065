//! A module as a trainer uses it, wherever the job has placed it.

use anyhow::Result;

use super::{Parameters, Pulled, RemoteModule, Replica, ShardedModule};

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
    pub fn remote(&self) -> Option<&RemoteModule> {
        match self {
            Placed::Remote(module) => Some(module),
            Placed::Replica(_) | Placed::Sharded(_) | Placed::Pulled(_) => None,
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
