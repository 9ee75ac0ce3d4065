//! Modules with `run = "caller"`, the classic parameter server ("Scaling Distributed Machine Learning with the Parameter
//! Server", Li et al., OSDI 2014): every trainer computes the module, its parameters live on servers, are pulled by
//! version, and gradients are pushed.
//!
//! The parameters, as one vector, are cut into ranges, one for each server ([`segments`]). A [`ServerRange`](range) is one
//! of them at its server, [`RangeServer`] the methods in front of it; an [`Exchange`] is a trainer's side of all ranges
//! of a module, and [`Pulled`] the module there. What travels goes through a filter ([`filter`]), both ways.
//!
//! - `PP-1` The answer of a push brings what has changed since the trainer's last pull, so a step costs one round trip.
//!   Under `bsp` it comes when the round is over, under `ssp` when the trainer may start its next step. Under
//!   `sequential` it comes at once, with nothing, and a step begins with a pull that waits for its turn: the turn may be of one that
//!   stands still for a checkpoint or a validation, to which the others have to come.
//! - `PP-2` A segment travels down only if it was updated since. Under a filter it travels as the difference to what that
//!   trainer has, of which the server keeps a copy, its *shadow*: what a filter left out is still part of the next one.
//! - `PP-3` What a filter leaves out of a gradient is kept by the trainer and added to the next one (error feedback: Seide
//!   et al. 2014; Stich et al. 2018; of the largest entries only, Aji and Heafield 2017).
//! - `PP-4` Before an evaluation, and before the model is saved, all values are pulled as they are.
//!
//! With local steps ("Large Scale Distributed Deep Networks", Dean et al., NIPS 2012, algorithm 7.1) a trainer updates
//! its copy by an optimizer of its own and pushes the *sum* of the gradients since the last synchronisation; what it
//! then pulls replaces its copy. So with plain SGD, k local steps of a single trainer are k steps. For `ssp` and for
//! staleness a step is a synchronisation. The epoch's end is one too.

mod changes;
mod exchange;
mod filter;
mod pulled;
mod range;
mod segments;
mod service;
mod state;

pub(super) use exchange::Pushing;
pub use exchange::{Exchange, Traffic};
pub use pulled::{Exchanged, Pulled};
pub use service::RangeServer;
