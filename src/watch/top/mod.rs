//! `pstrain top`: a run in a terminal.
//!
//! [`source`] follows a run and makes a [`picture`] of it, plain values that nothing else knows the origin of; [`screen`] is what
//! the keys have chosen; [`draw`] puts both onto a grid of letters, for a terminal ([`terminal`]) or as text ([`plain`]).

mod draw;
mod paint;
mod picture;
mod plain;
mod remote;
mod screen;
mod source;
mod terminal;

#[cfg(test)]
mod tests;

pub use paint::Paint;
pub use plain::snapshot;
pub use source::{NoRun, Source};
pub use terminal::{Ended, show};
