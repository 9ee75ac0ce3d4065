//! The mesh of ranks. What needs a second process is in `tests/processes`.

mod join;
mod lost;
mod memory;
mod mesh;
mod payload;
mod rref;
