//! The validated job: every value present, every name resolved, nothing left to check.

mod checkpoint;
mod collectives;
mod consistency;
mod data;
mod exports;
mod graph;
mod module;
mod place;
mod pull_push;
mod replica_order;
mod task;
mod training;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use checkpoint::*;
pub use collectives::*;
pub use consistency::*;
pub use data::*;
pub use exports::*;
pub use graph::*;
pub use module::*;
pub use place::*;
pub use pull_push::*;
pub use replica_order::*;
pub use task::*;
pub use training::*;

use crate::topology::{Rank, Role, WorldSize};

/// A validated job: `runner` may rely on every field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    pub name: String,
    pub cluster: Cluster,
    /// In the order of their ranks. Together they cover the world, each rank once.
    pub roles: Vec<Role>,
    pub work: Work,
}

/// What the ranks do together.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// They train a model.
    Train(Box<Training>),
    /// They show what each collective operation does.
    Collectives(Collectives),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    pub world_size: WorldSize,
    pub init: Init,
    pub backend: Backend,
    pub payload: Payload,
    /// Host and port at which rank 0 listens. An IPv6 address stands without brackets.
    pub master_addr: String,
    pub master_port: u16,
    /// GPUs a rank may use; fewer are used where the machine has fewer.
    pub num_gpus: u32,
    /// Deadline of one call.
    pub rpc_timeout: Duration,
    /// How long the ranks wait for one another at the start.
    pub join_timeout: Duration,
    /// How long the ranks of a group wait for the last of them in one collective. A rank that is lost ends it at once.
    pub collective_timeout: Duration,
    pub heartbeat: Duration,
    /// A rank silent for this long is lost.
    pub lost_after: Duration,
    /// A rank without progress for this long ends the job. None: never.
    pub stalled_after: Option<Duration>,
}

/// How the ranks find one another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Init {
    /// `env://`: MASTER_ADDR and MASTER_PORT.
    Env,
    /// `tcp://HOST:PORT`.
    Tcp,
    /// `file://PATH`: a file that all ranks can reach, in which rank 0 says where it listens.
    File(PathBuf),
}

/// How large tensors travel between ranks, where they can; else inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The fastest that works between two ranks.
    Auto,
    /// Read out of the sender's memory; same host.
    Cma,
    /// Through shared memory; same host.
    Shm,
    /// On a second connection.
    Bulk,
    /// On the connection of the calls.
    Inline,
}

/// What carries collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NCCL where each rank of a group has a GPU of its own, else Gloo.
    Auto,
    Gloo,
    Nccl,
    Mpi,
}

impl Job {
    /// The role of `rank`.
    ///
    /// # Panics
    /// If `rank` is outside the world.
    pub fn role_of(&self, rank: Rank) -> &Role {
        self.roles.iter().find(|role| role.ranks.contains(&rank)).expect("roles cover the world")
    }

    /// Whether a rank has tensors of its own to compute with or to send: modules, or those of the demo. Parameters that
    /// trainers pull and rows of a table are no such: their servers compute no module.
    pub fn holds_tensors(&self, rank: Rank) -> bool {
        match &self.work {
            Work::Train(training) => training.computes(rank),
            Work::Collectives(_) => true,
        }
    }

    /// What it trains, if it is a job that trains.
    pub fn training(&self) -> Option<&Training> {
        match &self.work {
            Work::Train(training) => Some(training),
            Work::Collectives(_) => None,
        }
    }

    /// When it is to stop, what it has come to is saved, within so long.
    pub fn saves_within(&self) -> Option<Duration> {
        let training = self.training().filter(|training| training.task == Task::Train)?;
        let grace = training.checkpoint.as_ref()?.grace;
        (!grace.is_zero()).then_some(grace)
    }

    /// The same, when it has lost a rank: where those that are left can.
    pub fn saves_after_loss(&self) -> Option<Duration> {
        self.saves_within().filter(|_| self.training().is_some_and(Training::can_save_after_loss))
    }

    pub fn training_mut(&mut self) -> Option<&mut Training> {
        match &mut self.work {
            Work::Train(training) => Some(training),
            Work::Collectives(_) => None,
        }
    }
}

impl Cluster {
    /// Where rank 0 listens, as `HOST:PORT`.
    pub fn master(&self) -> String {
        match self.master_addr.contains(':') {
            true => format!("[{}]:{}", self.master_addr, self.master_port),
            false => format!("{}:{}", self.master_addr, self.master_port),
        }
    }
}
