//! The collectives demo: what each rank has before and after.

use serde::Serialize;

use crate::topology::Rank;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Collectives {
    /// In this order.
    pub show: Vec<Operation>,
    /// The ranks of the group that is made for the demo; it takes place in the whole world and in this group.
    pub group: Option<Vec<Rank>>,
    /// For the operations that reduce.
    pub reduce: Vec<Reduction>,
    /// The rank that has, or gets, all: its place in the group.
    pub root: u32,
    /// The elements of each tensor that a rank gives.
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

/// By their names in job files.
pub const OPERATIONS: [(&str, Operation); 11] = [
    ("send_recv", Operation::SendRecv),
    ("isend_irecv", Operation::IsendIrecv),
    ("broadcast", Operation::Broadcast),
    ("reduce", Operation::Reduce),
    ("all_reduce", Operation::AllReduce),
    ("scatter", Operation::Scatter),
    ("gather", Operation::Gather),
    ("all_gather", Operation::AllGather),
    ("reduce_scatter", Operation::ReduceScatter),
    ("all_to_all", Operation::AllToAll),
    ("barrier", Operation::Barrier),
];

impl Operation {
    pub fn name(self) -> &'static str {
        named(&OPERATIONS, self)
    }

    /// Whether one rank passes something on to another.
    pub fn needs_two(self) -> bool {
        matches!(self, Operation::SendRecv | Operation::IsendIrecv)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    Sum,
    Product,
    Max,
    Min,
}

/// By their names in job files.
pub const REDUCTIONS: [(&str, Reduction); 4] = [
    ("sum", Reduction::Sum),
    ("product", Reduction::Product),
    ("max", Reduction::Max),
    ("min", Reduction::Min),
];

impl Reduction {
    pub fn name(self) -> &'static str {
        named(&REDUCTIONS, self)
    }
}

fn named<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, named)| *named == value).expect("each has a name").0
}
