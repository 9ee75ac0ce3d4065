//! Attacks, generated: whatever comes from outside ends with a value or an error in time and within limits.
//!
//! A part of each runs by default, all with PSTRAIN_TEST_ALL=1 (`support::times`), and each failure names the seed that
//! makes the same case again.

/// Plug-ins made of random calls.
mod guests;
/// Handshakes that somebody has changed.
mod handshakes;
/// WebAssembly modules, byte by byte.
mod modules;
/// Somebody between two ranks.
mod proxy;
/// Connections of ranks that somebody changes.
mod sessions;
/// Connections of those who do not belong to the job.
mod strangers;
/// Plug-ins made to take too much of one thing.
mod takers;
/// What others wrote, on the way to a terminal.
mod terminal;
