//! How a checkpoint comes about, and how a run goes on from one.

use crate::rpc::{Json, body, call};
use crate::runner::checkpoint::{Destination, Entrusted, Part, Resumed, SavedRows, TrainerState};

call! {
    /// To the coordinator: the first trainer, between two steps, wants a checkpoint. Answered when its cut is made, and training
    /// may go on.
    pub(in crate::runner) struct Begin = "checkpoint.begin" -> Begun {
        state: Json<TrainerState>,
        /// As announced to the other trainers, who wait for it; none: nobody has to.
        number: Option<u64>,
    }
}

body! {
    pub(in crate::runner) struct Begun {
        /// Not so: the one before is still being written.
        begun: bool,
    }
}

call! {
    /// To a trainer: a checkpoint of this number comes, for which it waits before the first step behind so many.
    pub(in crate::runner) struct Announce = "checkpoint.announce" -> () {
        number: u64,
        at: u64,
    }
}

call! {
    /// To the coordinator: the caller takes no step before the checkpoint of this number is cut, which is when this is answered.
    pub(in crate::runner) struct Pause = "checkpoint.pause" -> () {
        number: u64,
        state: Json<TrainerState>,
    }
}

call! {
    /// To the coordinator: the caller takes no step until it is back.
    pub(in crate::runner) struct Away = "checkpoint.away" -> () {
        state: Json<TrainerState>,
    }
}

call! {
    /// To the coordinator: the caller was away. Answered when no cut is being made.
    pub(in crate::runner) struct Back = "checkpoint.back" -> () {}
}

call! {
    /// To an owner: it holds its part of the model as it is at this moment, in the place of what it has held.
    pub(in crate::runner) struct Hold = "checkpoint.hold" -> () {
        step: u64,
        /// Which rows of a table.
        rows: Json<SavedRows>,
    }
}

call! {
    /// To an owner: what it holds is to be written to this place. Answered when the store has it.
    pub(in crate::runner) struct Write = "checkpoint.write" -> Written {
        place: String,
    }
}

call! {
    /// To an owner: what it holds will not be written.
    pub(in crate::runner) struct Release = "checkpoint.release" -> () {}
}

body! {
    pub(in crate::runner) struct Written {
        part: Json<Part>,
    }
}

call! {
    /// To the rank that has all of the model, from the first trainer: what a checkpoint has beside it.
    pub(in crate::runner) struct Entrust = "checkpoint.entrust" -> () {
        entrusted: Json<Entrusted>,
    }
}

call! {
    /// To the coordinator: the run is to stop, with a checkpoint. Answered when there is one, or will be none.
    pub(in crate::runner) struct Stop = "checkpoint.stop" -> Stopped {}
}

body! {
    pub(in crate::runner) struct Stopped {
        saved: bool,
    }
}

call! {
    /// To the first trainer: it is to ask for a checkpoint before its next step.
    pub(in crate::runner) struct Hurry = "checkpoint.hurry" -> Hurried {}
}

body! {
    pub(in crate::runner) struct Hurried {
        /// Not so: it takes no steps yet, or no more.
        trains: bool,
    }
}

call! {
    /// To the coordinator: what the run goes on from, if it was not begun anew, and where it saves.
    pub(in crate::runner) struct Ask = "checkpoint.ask" -> FromAndTo {}
}

body! {
    pub(in crate::runner) struct FromAndTo {
        resumed: Json<Option<Resumed>>,
        /// Where a rank saves by itself that has the whole model when another is lost (CP-4); none: no rank does.
        destination: Json<Option<Destination>>,
    }
}

call! {
    /// To the coordinator, from each trainer when it has its modules: answered when all owners go on from the checkpoint.
    pub(in crate::runner) struct Restore = "checkpoint.restore" -> () {}
}

call! {
    /// To an owner: what it has goes on from the checkpoint in this place.
    pub(in crate::runner) struct Load = "checkpoint.load" -> () {
        place: String,
    }
}
