//! Which compiler makes WebAssembly here, and a cargo that uses it.
//!
//! A crate of its own because two programs make the choice: `wasm-toolchain` (this crate's) builds the plug-ins that are
//! embedded into `pstrain`, and `pstrain plugin build` those of its users.

pub mod child;
mod choice;

pub use choice::{NoToolchain, TARGET, Toolchain};
