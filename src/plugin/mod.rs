//! The plug-in host: WebAssembly components that give samples, compute losses or measure, inside limits.
//!
//! [`Host`] loads files into [`Component`]s; a [`Dataset`], a [`Loss`] or a [`Metric`] is one running instance
//! of such a component, with its memory, its limits and its console. `plugins/wit/plugin.wit` is the contract with the
//! guests. Wasmtime's types stay in this folder; jobs, ranks and the wire are not known here.
//!
//! An instance is `Send` and belongs to one thread at a time; for more threads, open more from the same
//! component, which costs about 50 us each and what the guest's own `open` takes. Do not call one from inside a
//! tokio runtime: a guest's file access may enter wasmtime-wasi's own.
//!
//! Invariants:
//! - W-1: whatever a guest hands over (lengths, shapes, indices, text) is checked before it is used.
//! - W-2: a guest that trapped is never entered again; the next call gets a fresh instance, or, of a metric, which has
//!   counted, an error.
//! - W-3: each call into a guest ends: its code at the epoch deadline, its sleeps by [`clock`]. Reading a file is
//!   not bounded: a pipe or a dead network drive in the data folder can hold it up. Whoever calls gives up waiting then
//!   ([`in_time`], and the prefetch threads of `runner`).
//! - W-4: a guest sees the files of its data folder, read-only, and nothing else of the machine.
//! - W-5: what a guest makes the host do is counted before it is done: operations on tensors with their backward
//!   ([`tensors`]), memories and tables, lines of the log; and a file is compiled by a process with limits ([`apart`]).
//! - W-6: no argument of a guest makes an operation panic.

mod apart;
pub mod author;
mod bindings;
mod buffers;
mod builtin;
pub mod check;
mod clock;
mod component;
mod console;
mod dataset;
mod dtype;
mod emit;
mod error;
mod explain;
mod host;
mod in_time;
mod instance;
mod logged;
mod loss;
mod metric;
mod raw_loss;
mod state;
mod tensors;

pub use apart::{COMPILED, outcome};
pub use builtin::builtin_names;
pub use component::{Component, World};
pub use dataset::{Dataset, DatasetInfo, DatasetState, Field, MOST_STATE, Purpose};
pub use dtype::{is_floating, kind_name};
pub use error::{PluginError, PluginErrorKind};
pub use host::{Host, read_file};
pub use in_time::HOSTS_OWN;
pub use loss::{Loss, LossValue, Weight};
pub use metric::{Figures, Metric};
