//! A tour of the collective operations: what each rank has before and after.

use serde::Serialize;

use crate::topology::Rank;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Collectives {
    /// In this order.
    pub show: Vec<Operation>,
    /// The ranks of the group that is made for the tour; it takes place in the whole world and in this group.
    pub group: Option<Vec<Rank>>,
    /// For the operations that reduce.
    pub reduce: Vec<Reduction>,
    /// The rank that has, or gets, all: its place in the group.
    pub root: u32,
    /// Of each tensor that a rank gives.
    pub elements: u64,
}

/// An operation of a process group, or of two of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// `send` and `recv`, which block.
    SendRecv,
    /// `isend` and `irecv`, each with a `wait`.
    IsendIrecv,
    Broadcast,
    Reduce,
    AllReduce,
    Scatter,
    Gather,
    AllGather,
    ReduceScatter,
    AllToAll,
    Barrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    Sum,
    Product,
    Max,
    Min,
}
