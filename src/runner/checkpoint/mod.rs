//! What a run can be gone on with: saved while training goes on, and gone on from.
//!
//! A checkpoint is a folder, or objects of a bucket that begin alike (`store`). Each owner of a part of the model writes its own
//! files ([`Part`]), from a snapshot, at the same time as the others; the coordinator writes what trainers know, the job, and last
//! of all the manifest with the size and the sum of each file, with which it is there. Nothing of the model passes through the
//! coordinator.
//!
//! - `CP-1` A checkpoint is whole or not there: its folder gets its name when all is on the disk, its objects their manifest when
//!   all are in the bucket.
//! - `CP-2` It is cut between steps: all owners have applied the same steps of each trainer. In rounds it is the first trainer
//!   that is between two; else the others wait where it is made known to them.
//! - `CP-3` What follows a resumed cut in rounds is what would have followed it, to the bit; but moving averages of rows of a
//!   table, which a cut brings up to date.
//! - `CP-4` A trainer of replicas that cannot go on leaves what it had between two steps: what the step or the validation that
//!   failed had changed by then, running statistics, is what it was before. A rank that holds all of the model leaves what it has, if its modules have the
//!   same steps.
//! - `CP-5` In one place are the checkpoints of one run: one that begins anew is refused where others lie, and one that finds those
//!   of another, begun at the same time, saves none (but what `CP-4` leaves).

// By which validations checkpoints are kept.
mod best;
// A part of a tensor as boxes, which PyTorch's format wants.
mod boxes;
// The coordinator: when a cut is made, who writes, and what goes on.
mod coordinator;
// The job of a checkpoint beside that of the run that goes on.
mod differences;
// A checkpoint as the weights that a model is given.
mod given;
// What is saved by whoever has the whole model when a rank is lost.
mod left;
// A checkpoint that is opened, and its manifest.
mod opened;
// What another run has left where this one saves.
mod others;
// What an owner writes: its files, and what each tensor of them is.
mod part;
// Which checkpoint is meant by a path.
mod sought;
// What trainers have beside the model.
mod state;
// Where checkpoints are: folders and buckets.
mod store;
// Tensors read, in whichever files they are.
mod tensors;
// Trainers: when a checkpoint is due, and how they stand still for it.
mod turns;
// The model whole, as one file.
mod whole;
// An owner's side: it takes snapshots and writes its part.
mod writer;
// What the coordinator writes: that a checkpoint is there, and which are removed.
mod writing;

pub use best::Criterion;
pub use coordinator::{Coordinator, placed, within};
pub use differences::{Comparison, Difference, compare, differences};
pub use left::{Destination, Entrusted, Left};
pub use opened::Checkpoint;
pub use others::left_by_others;
pub use part::Part;
pub use sought::{Sought, all, is_checkpoint, judged_before, last, remove_all};
pub use state::{Figures, Resumed, TrainerState};
pub use turns::{Announced, Turns};
pub use writer::{SavedRows, Writer};
