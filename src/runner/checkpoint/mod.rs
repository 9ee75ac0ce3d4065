//! What a run can be gone on with: saved while training goes on, and gone on from.
//!
//! A checkpoint is a folder, or objects of a bucket that begin alike (`store`). Each owner of a part of the model writes its own files ([`Part`]), from a snapshot, at the same time
//! as the others; the coordinator writes what trainers know, the job, and last of all the manifest with the size and the sum of
//! each file, with which it is there. Nothing of the model passes through the coordinator.
//!
//! - `CP-1` A checkpoint is whole or not there: its folder gets its name when all is on the disk, its objects their manifest when
//!   all are in the bucket.
//! - `CP-2` It is cut between steps: all owners have applied the same steps of each trainer. In rounds it is the first trainer
//!   that is between two; else the others wait where it is made known to them.
//! - `CP-3` What follows a resumed cut in rounds is what would have followed it, to the bit; but moving averages of rows of a
//!   table, which a cut brings up to date.
//! - `CP-4` A trainer of replicas that cannot go on leaves what it had between two steps: what the step that failed had changed by
//!   then, running statistics, is what it was before.

mod best;
mod boxes;
mod differences;
mod given;
mod keeper;
mod left;
mod opened;
mod part;
mod sought;
mod state;
mod store;
mod tensors;
mod turns;
mod whole;
mod writer;
mod writing;

pub use best::Criterion;
pub use differences::{Difference, differences};
pub use keeper::{Keeper, placed, within};
pub use left::{Destination, Left};
pub use opened::Checkpoint;
pub use part::Part;
pub use sought::{Sought, all, is_checkpoint, judged_before, last, look_at};
pub use state::{Figures, Resumed, TrainerState};
pub use turns::{Announced, Turns};
pub use writer::{SavedRows, Writer};
