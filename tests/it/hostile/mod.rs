//! Attacks and faults: whatever comes from outside, from a file, a neighbour or a disk, ends with a value or a clear error, in
//! time and within limits.
//!
//! A part of those that are generated runs by default, all with TEST_ALL=1 (`support::times`), and each failure names
//! the seed that makes the same case again.

/// Ranks that ask without end.
mod askers;
/// Checkpoints that somebody has changed.
mod checkpoints;
/// Jobs and headers of safetensors with anything in them.
mod files;
/// Gradients and models that are no numbers.
mod finite;
/// Disks that are full, folders that are gone.
mod full_disks;
/// Plug-ins made of random calls.
mod guests;
/// Handshakes that somebody has changed.
mod handshakes;
/// Limits of the system.
mod limits;
/// WebAssembly modules, byte by byte.
mod modules;
/// Other users of the machine.
mod neighbours;
/// Ports of jobs that train.
mod ports;
/// Ranks whose data, weights or versions differ.
mod preflight;
/// Somebody between two ranks.
mod proxy;
/// TorchScript of jobs that are only checked.
mod scripts;
/// Connections of ranks that somebody changes.
mod sessions;
/// Connections of those who do not belong to the job.
mod strangers;
/// Plug-ins made to take too much of one thing.
mod takers;
/// What others wrote, on the way to a terminal.
mod terminal;
