//! A module as a trainer uses it, wherever the job has placed it.

use anyhow::Result;

use super::{Parameters, Pulled, RemoteModule, Replica, ShardedModule};

pub enum ModuleHandle {
    /// On another rank, or hosted by this one for all.
    Remote(RemoteModule),
    /// Here, as on each of the trainers.
    Replica(Box<Replica>),
    /// A table whose rows lie on several ranks.
    Sharded(Box<ShardedModule>),
    /// Here, with parameters that are on servers.
    Pulled(Box<Pulled>),
}

impl ModuleHandle {
    pub fn remote(&self) -> Option<&RemoteModule> {
        match self {
            ModuleHandle::Remote(module) => Some(module),
            ModuleHandle::Replica(_) | ModuleHandle::Sharded(_) | ModuleHandle::Pulled(_) => None,
        }
    }

    pub fn replica(&self) -> Option<&Replica> {
        match self {
            ModuleHandle::Replica(replica) => Some(replica),
            ModuleHandle::Remote(_) | ModuleHandle::Sharded(_) | ModuleHandle::Pulled(_) => None,
        }
    }

    /// For a [`DistributedOptimizer`](super::DistributedOptimizer).
    ///
    /// # Errors
    /// When the call to the module's owner fails.
    pub fn parameters(&self) -> Result<Parameters> {
        Ok(match self {
            ModuleHandle::Remote(module) => Parameters::Remote(module.parameters()?),
            ModuleHandle::Replica(replica) => Parameters::Replica(replica.parameters()),
            ModuleHandle::Sharded(table) => Parameters::Sharded(table.updated().to_vec()),
            ModuleHandle::Pulled(pulled) => pulled.parameters()?,
        })
    }
}
