//! The calls by which ranks use one another's modules, optimizers, tables, ranges of parameters and groups: a file for each
//! service, with the name, the request and the reply of each of its calls. Callers and callees share them.

pub(super) mod group;
pub(super) mod module;
pub mod optimizer;
pub mod range;
pub mod shard;
pub(crate) mod state;
