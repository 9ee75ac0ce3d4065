//! Ranks as threads of one program. Those that are processes are in `tests/processes`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// Gradients of any graph.
mod engine;

/// Where ranks meet.
mod store;

/// Who connects to a rank without belonging to its group.
mod strangers;

/// Which backends there are.
mod backend;
/// What holds for each of them, over Gloo and, where MPI is, over that.
mod every_backend;

/// Groups that are given up.
mod abort;
/// What is refused.
mod misuse;
/// Averaging gradients, where something goes wrong.
mod reducer_failures;

/// A model, its batches, and how it is trained.
mod small_model;
