//! A table of embeddings whose rows lie on several ranks.
//!
//! [`ShardedModule`] is a trainer's side: it asks each owner for the rows of a batch, at once, and runs the layer over
//! the rows that came. [`ShardServer`] answers at an owner, which has one [`Shard`] of each such module. Knows nothing
//! of modules that are whole; ids, rows and gradients of rows are all that travels.
//!
//! - `SH-1` What travels and what is computed grows with the rows of a batch, never with the table.
//! - `SH-2` A look-up copies its rows. The copy is the snapshot of its step: an update never changes what another step
//!   reads.
//! - `SH-3` The first value of a row depends on the module's seed and the row's id alone, and the gradients of a row are
//!   added in one order (trainers by rank, look-ups as they came). So under `bsp` any number of owners gives the same
//!   bits.
//! - `SH-4` A row is made when a training step first asks for it; of a table whose rows come and go, by the update that
//!   finds it asked for often enough. Evaluation sees what it would be, and makes none.

mod changes;
mod contribution;
mod initial;
mod life;
mod lookup_plan;
mod places;
mod shard;
mod shard_server;
mod sharded_module;
mod snapshot;
mod table;

pub(crate) use life::AGE;
pub use shard::Shard;
pub use shard_server::ShardServer;
pub use sharded_module::{LookingUp, ShardedModule};

/// Where a row stands among those of its owner.
type Place = u32;
