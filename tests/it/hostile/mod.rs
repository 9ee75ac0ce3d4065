//! Attacks, generated: whatever comes from outside ends with a value or an error in time and within limits.
//!
//! A part of each runs by default, all with PSTRAIN_TEST_ALL=1 (`support::times`), and each failure names the seed that
//! makes the same case again.

/// Plug-ins made of random calls.
mod guests;
/// WebAssembly modules, byte by byte.
mod modules;
/// Plug-ins made to take too much of one thing.
mod takers;
