//! What the parts do together, and what a user sees. One program, so that libtorch is linked once.
//!
//! Tests here share a process: none may change its environment, its folder or libtorch's number of threads. A test whose
//! own program has to run in another process is in `tests/processes`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// The layers of the source: what may use what.
mod floors;
/// Models whose modules are no chain: placements, and what is said of wrong ones.
mod graph;
/// Attacks and faults: plug-ins, files, strangers, neighbours, disks.
mod hostile;
/// Job files: where values come from, and what is said of wrong ones.
mod job;
/// Modules, optimizers and files of weights, against PyTorch's figures.
mod model;
/// WebAssembly plug-ins: the host, and those that are shipped.
mod plugins;

/// Calls between ranks.
mod rpc;

/// Gradients over several ranks.
mod autograd;
/// Modules, tables and parameters on other ranks.
mod parallel;
/// Whole jobs, run by the program as a user runs it.
mod runs;

/// Running the program, and reading what it leaves.
mod program;

/// An object store in this process, with faults on demand.
mod fake_s3;

/// Worlds of several ranks in this process.
mod support;
