//! Who takes part and where things are: ranks, roles, devices.
//!
//! The lowest floor: plain values that every other module shares. It imports nothing of the crate.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One process of the world, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many ranks the job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorldSize(pub u32);

impl WorldSize {
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (0..self.0).map(Rank)
    }

    pub fn contains(self, rank: Rank) -> bool {
        rank.0 < self.0
    }
}

impl fmt::Display for WorldSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A named group of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Role {
    pub name: String,
    /// In ascending order, never empty.
    pub ranks: Vec<Rank>,
}

/// Where a tensor lives. Libtorch's own type is made from it in `model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Device {
    Cpu,
    /// The GPU's ordinal on its machine.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
