//! The state of a model: what its owners have at one moment, and how they go on from it.
//!
//! Whoever owns a module, a stage, rows of a table, a range of parameters or a replica gives a snapshot: named tensors and
//! the steps that were applied. A snapshot says what it has in terms of the whole model ([`Entry`]: the tensor's name as in
//! the model's file, the optimizer's slot under PyTorch's name, which numbers or rows), so that it can be given back to
//! owners of another cut. [`StateSnapshot`] is a handle on one, [`ModuleState`] all snapshots of a module together.
//!
//! - `ST-1` A snapshot copies nothing when it is taken, but buffers, which are small. An update that comes while it is held
//!   copies what it updates first, or leaves the old numbers to the snapshot. (Without order it writes in place.)
//! - `ST-2` What travels is pieces of at most [`PIECE_BYTES`].
//! - `ST-3` A state is whole or refused: of each tensor that is in it every number has come.
//! - `ST-4` Rows that were written since an earlier snapshot of the same owner, put over those of that one, are its rows of now;
//!   but those that are gone, of which `age` says nothing any more.

mod coverage;
mod module;
mod module_state;
mod owner;
mod restoring;
mod server;
mod snapshot;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tch::Kind;

pub(super) use module::{
    add_kept, add_module, add_slots, restore_kept, restore_module, restore_slots, wanted_by_module,
};
pub use module_state::ModuleState;
pub(crate) use owner::OwnerState;
pub(super) use owner::{RowSource, Stateful};
pub(super) use restoring::Restored;
pub use server::StateServer;
pub use snapshot::StateSnapshot;

use crate::job::shards::hashed_owner;
use crate::topology::Rank;

/// The most in one piece: little beside what a rank has, so that a checkpoint takes no more than the copy that it is of; and much
/// beside what a call costs.
pub const PIECE_BYTES: u64 = 2 << 20;

/// What a part of a state is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The name of a parameter or buffer in its module, PyTorch's.
    pub tensor: String,
    /// What the optimizer remembers of it, by PyTorch's name. None: its value.
    pub slot: Option<String>,
    /// Without order each trainer has an optimizer of its own.
    pub lane: Option<Rank>,
    #[serde(with = "dtype")]
    pub kind: Kind,
    /// The shape of the whole tensor, whoever has the rest of it; of a table's rows, the shape of those here.
    pub shape: Vec<i64>,
    pub extent: Extent,
}

/// Names what parts of a state are of, whichever numbers of it they have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateKey {
    pub tensor: String,
    pub slot: Option<String>,
    pub lane: Option<Rank>,
}

impl StateKey {
    /// The key of a tensor's value.
    pub fn value(tensor: &str) -> StateKey {
        StateKey { tensor: tensor.into(), slot: None, lane: None }
    }
}

/// `net.weight`, or `exp_avg` of `net.weight`.
impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slot) = &self.slot {
            write!(f, "`{slot}` of ")?;
        }
        write!(f, "`{}`", self.tensor)?;
        self.lane.map_or(Ok(()), |rank| write!(f, " in the optimizer of rank {rank}"))
    }
}

impl Entry {
    pub fn key(&self) -> StateKey {
        StateKey { tensor: self.tensor.clone(), slot: self.slot.clone(), lane: self.lane }
    }
}

/// Which numbers of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// These of the tensor taken as a vector.
    Elements { from: u64, to: u64 },
    /// The same for all parts of the tensor: a count of steps, say.
    Shared,
    /// So many rows, in the order of their ids.
    Rows {
        rows: u64,
        /// Those that were written since an earlier snapshot.
        #[serde(default)]
        changed: bool,
    },
    /// Whichever rows there are of these.
    RowsOf(RowShare),
}

/// Which rows of a table a snapshot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowChoice {
    /// Those that there are.
    Used,
    /// Also those that nobody has used yet, as they would be.
    All,
    /// Those that there are, and later snapshots may have those that are written [`Since`](RowChoice::Since).
    Base,
    /// Those that were written since the snapshot that was taken of this version, and what moves without being written. From
    /// an owner that does not know: those that there are.
    Since(u64),
}

/// The rows that an owner may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowShare {
    Range {
        from: i64,
        to: i64,
    },
    /// `first`: of the table that is cut the row that is the tensor's first.
    Hash {
        nth: u64,
        of: u64,
        first: i64,
    },
}

impl RowShare {
    pub fn contains(self, id: i64) -> bool {
        match self {
            RowShare::Range { from, to } => (from..to).contains(&id),
            RowShare::Hash { nth, of, first } => {
                id >= 0 && hashed_owner(first + id, of as usize) == nth as usize
            }
        }
    }

    /// The share of some rows of the table, counted from the first of them.
    pub fn part(self, rows: &Range<i64>) -> RowShare {
        match self {
            RowShare::Range { from, to } => {
                let [from, to] = [from, to].map(|end| end.clamp(rows.start, rows.end) - rows.start);
                RowShare::Range { from, to }
            }
            RowShare::Hash { nth, of, first } => RowShare::Hash { nth, of, first: first + rows.start },
        }
    }
}

/// Steps that an owner has applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCounters {
    /// Updates: a round is one.
    pub updates: u64,
    /// By trainer: the number of its last step.
    pub steps: BTreeMap<Rank, u64>,
}

impl StepCounters {
    /// What is known of both: owners of one module have applied the same steps, or nearly.
    pub fn merge(&mut self, other: &StepCounters) {
        self.updates = self.updates.max(other.updates);
        for (&rank, &steps) in &other.steps {
            let own = self.steps.entry(rank).or_default();
            *own = steps.max(*own);
        }
    }
}

/// dtypes by PyTorch's names.
mod dtype {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use tch::Kind;

    use crate::model::{kind_named, torch_name};

    // One without a name is refused by whoever reads it.
    pub fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(torch_name(*kind))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        let name = String::deserialize(from)?;
        kind_named(&name).ok_or_else(|| D::Error::custom(format_args!("`{name}` is not a known dtype")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dtype_travels_by_the_name_that_pytorch_gives_it() {
        let entry = |kind| {
            let (tensor, extent) = ("weight".into(), Extent::Shared);
            Entry { tensor, slot: None, lane: None, kind, shape: vec![2], extent }
        };
        let kinds = [
            (Kind::Bool, "bool"),
            (Kind::Uint8, "uint8"),
            (Kind::Int8, "int8"),
            (Kind::Int16, "int16"),
            (Kind::Int, "int32"),
            (Kind::Int64, "int64"),
            (Kind::Half, "float16"),
            (Kind::BFloat16, "bfloat16"),
            (Kind::Float, "float32"),
            (Kind::Double, "float64"),
        ];
        for (kind, name) in kinds {
            let sent = serde_json::to_value(entry(kind)).unwrap();
            assert_eq!(sent["kind"], name);
            assert_eq!(serde_json::from_value::<Entry>(sent).unwrap(), entry(kind));
        }
        let sent = serde_json::to_value(entry(Kind::ComplexFloat)).unwrap();
        let error = serde_json::from_value::<Entry>(sent).unwrap_err().to_string();
        assert_eq!(error, "`a dtype of its own` is not a known dtype");
    }
}
