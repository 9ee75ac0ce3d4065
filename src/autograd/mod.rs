//! Distributed autograd: contexts, and one backward over the graphs of many ranks. Knows of ranks, calls and tensors;
//! not of models, jobs or plug-ins.
//!
//! # How a graph crosses ranks
//!
//! A tensor that requires grad and is an argument or a result of a call within a [`Context`] travels over an *edge*:
//! the sender notes it as sent, the receiver makes it the start of a graph of its own and notes it as received. So each
//! rank has a piece of the whole graph, from what it received (and its own leaves) to what it sent.
//!
//! # How a backward runs
//!
//! The rank that calls [`backward`](Autograd::backward) differentiates its roots down to received tensors and sends
//! their gradients to where they came from (`autograd.run`). There each gradient is taken through the piece between
//! that sent tensor and what it was made from, and so on. A call is answered when all that follows from it is done, so
//! the root's promise resolves when the whole backward is.
//!
//! The difficulty is a received tensor that several sent ones depend on: its gradient is complete when all of those
//! that take part in this backward have added theirs, and which do depends on ranks far away. PyTorch's engine (its
//! FAST mode) supposes that all do, and waits for ever when an output was not used. This one finds out (the SMART
//! mode of PyTorch's design notes, "Distributed Autograd Design", which was never built). Whether an edge takes part
//! is a fact of the graph: there is a path to it from the roots or there is none. So it need not be discovered in a
//! pass of its own before the first gradient moves; it is asked for where it is missing, when it is missing
//! (`autograd.discover`), and sent along with gradients where it is known. A graph in which no received tensor waits
//! for several sent ones, which is every parameter server, remote module and pipeline, asks nothing.
//!
//! # What holds
//!
//! - an edge is named by its sender's rank and a number that counts that rank's sends in the context; it is
//!   received once.
//! - a piece of graph never grows at its start, so what a sent tensor reaches is fixed when it is sent, and an
//!   edge's part in a backward is fixed when that backward begins. No answer to a question is ever taken back.
//! - in one backward a sent tensor gets one gradient, and a received tensor's gradient is sent once, when every
//!   sent tensor that depends on it has been run or is known to take no part.
//! - edges follow the order in which the whole graph was computed, so neither gradients nor questions go in a
//!   circle. A question is about one edge, since an answer about two could come to wait for itself; and no answer
//!   waits for a gradient.
//! - a context's lock is never held while gradients are computed or an answer is awaited.
//! - a received tensor that a gradient has reached is seen to by the call that brought the latest one, until it
//!   was sent on or waits for one that is sure to come. So everything that is sent is awaited by the root.
//! - gradients are kept in the context and never in `.grad`; what the engine gave is never written to.
//! - a context that was released is not opened again by a late message, and one that failed fails every later
//!   step with the reason.
//!
//! # What it costs
//!
//! A backward from a trainer over one server is one call. A chain of stages is one call for each edge. A context is
//! released by one message to each rank that it touched, for which nobody waits. An owner may be told to step right
//! behind the backward, see [`settled`](Autograd::settled).

mod averaged;
mod backward;
mod calls;
mod connected;
mod context;
mod contexts;
mod engine;
mod flow;
mod local;
mod pass;
mod service;
mod state;

pub use averaged::Averaged;
pub use backward::Backward;
pub use calls::{Borrowed, Discover, Gradients, Release, Run};
pub use connected::Scope;
pub use context::Context;
pub use service::Autograd;
pub use state::ContextState;
