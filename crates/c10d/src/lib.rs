//! PyTorch's process groups, and more of libtorch that `tch` leaves out, made safe.
//!
//! The engine is c10d inside libtorch, the one that `torch.distributed` uses, so a Rust rank and a Python rank can be
//! in one group.
//!
//! - [`Store`]: where ranks find one another, over TCP, in a file, in memory, or where you
//!   keep them ([`KeyValues`]).
//! - [`ProcessGroup`]: every collective, messages, and groups of some of the ranks; [`Work`]: operations in flight.
//! - [`reducer`]: data-parallel training: gradients averaged while the backward runs, as DistributedDataParallel does.
//! - [`Error`]: who and what, in words; a [checked](Options::checked) group finds what the ranks do differently.
//! - [`threads()`]: ranks as threads, for tests and examples.
//! - [`engine`]: gradients of several outputs with gradients of their own, and which inputs a graph reaches.
//! - [`finite`]: whether a tensor has NaN or infinities, at the cost of one look.
//! - [`with_backward`]: an operation with a backward of its own; [`vectors`]: those that libtorch does in too many passes.
//! - [`script`]: TorchScript modules, run with parameters that the caller brings.
//! - [`cuda`]: opens libtorch's CUDA half where it is installed.
//!
//! ```no_run
//! use c10d::{Options, ProcessGroup, ReduceOp, Store, TcpOptions};
//!
//! # fn main() -> c10d::Result<()> {
//! let (rank, size) = (0, 2); // this process's, say from its environment
//! let store = Store::tcp(&TcpOptions::new("10.0.0.1", 29500, rank, size))?;
//! let group = ProcessGroup::new(&store, rank, size, Options::default())?;
//!
//! let mut tensor = tch::Tensor::from_slice(&[1.0, 2.0]);
//! group.all_reduce(&mut tensor, ReduceOp::Avg)?;
//!
//! let work = group.all_reduce_async(tensor, ReduceOp::Sum)?; // takes the tensor ..
//! let tensor = work.wait()?; // .. and hands it back
//! group.barrier()
//! # }
//! ```
//!
//! # What is safe, and what is not found
//!
//! A tensor in flight is borrowed or owned by its operation. What one rank can see is refused before anything is sent.
//! What only the ranks together can see, that they do different things, a [checked](Options::checked) group finds. In
//! one that is not, Gloo ends the process of a rank that receives more bytes than its tensor has, as it does under
//! Python. Over NCCL an operation that has been waited for is done for the stream, not for the host: read a tensor
//! through CUDA, which waits.
//!
//! This is a library of its own: it has the whole of what `torch.distributed` offers, also where the program that it was
//! made for needs a part (the `_async` forms, for one).
//!
//! A C++ shim (`csrc/`) does the calls; no C++ exception leaves it. The `unsafe` code written by hand lives here, so
//! nothing here knows of jobs. c10d's own log goes to standard error.

mod autocast;
mod backend;
mod backward;
pub mod cuda;
pub mod engine;
mod error;
pub mod finite;
mod group;
mod message;
pub mod process;
mod recompute;
mod reduce_op;
pub mod reducer;
mod rendezvous;
pub mod script;
mod shim;
mod store;
mod threads;
pub mod vectors;
mod work;

pub use autocast::Autocast;
pub use backend::{Backend, NoBackend, finalize};
pub use backward::with_backward;
pub use error::{Error, Members, Operation, Result};
pub use group::{Abort, Options, ProcessGroup};
pub use recompute::recomputed;
pub use reduce_op::ReduceOp;
pub use rendezvous::rendezvous;
pub use store::{KeyValues, STORE_TIMEOUT, Store, TcpOptions};
pub use threads::{threads, threads_with};
pub use work::Work;

pub use message::torch_message;

/// What libtorch threw, without its backtrace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TorchError {
    pub message: String,
}
