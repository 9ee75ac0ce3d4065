//! The state of an owner: taken piece by piece, and given back.

use tch::Tensor;

use crate::parallel::state::{Entry, RowChoice, StepCounters};
use crate::rpc::{Json, RRef, body, call};
use crate::topology::Rank;

call! {
    /// What the callee has of a module at this moment. Nothing is copied but what is updated while the snapshot is held.
    pub(in crate::parallel) struct Take = "state.take" -> Taken {
        module: String,
        /// Which rows of a table.
        rows: Json<RowChoice>,
    }
}

call! {
    /// The averages that the callee keeps of a module's parameters take the parameters' place, and these theirs. Twice: nothing has
    /// changed.
    pub(in crate::parallel) struct SwapAverages = "state.swap_averages" -> () {
        module: String,
    }
}

body! {
    pub(crate) struct Taken {
        snapshot: RRef,
        entries: Json<Vec<Entry>>,
        /// Further names of tensors, each with the name under which it is one of the entries.
        aliases: Vec<(String, String)>,
        counters: Json<StepCounters>,
        /// The owner's version: what later snapshots may have the rows of a table since.
        version: u64,
    }
}

call! {
    /// Some numbers, or rows, of one entry.
    pub(in crate::parallel) struct Read = "state.read" -> Piece {
        snapshot: RRef,
        /// Its position among the entries.
        entry: u64,
        /// The first number or row, counted from the entry's own first, and how many.
        from: u64,
        count: u64,
    }
}

body! {
    /// Part of an entry.
    pub struct Piece {
        /// int64 `[k]`, ascending, where it is rows.
        ids: Option<Tensor>,
        /// `[k]`, or rows `[k, dim]`; on the CPU.
        values: Tensor,
    }
}

call! {
    /// Begins to give the callee a state of a module that it has.
    pub(in crate::parallel) struct Restore = "state.restore" -> Wanted {
        module: String,
    }
}

body! {
    pub(in crate::parallel) struct Wanted {
        restoring: RRef,
        /// The values that the callee has. Slots are cut as these are.
        entries: Json<Vec<Entry>>,
    }
}

call! {
    /// Part of a value, or of a slot.
    pub(in crate::parallel) struct Put = "state.put" -> () {
        restoring: RRef,
        tensor: String,
        slot: Option<String>,
        /// The slot is one for all parts of the tensor.
        shared: bool,
        lane: Json<Option<Rank>>,
        /// The first number, counted from the first that the callee has of the tensor.
        from: u64,
        /// Where it is rows.
        ids: Option<Tensor>,
        values: Tensor,
    }
}

call! {
    /// All has come: the callee goes on from it.
    pub(in crate::parallel) struct Finish = "state.finish" -> () {
        restoring: RRef,
        counters: Json<StepCounters>,
    }
}
