//! Modules, tables and parameters on other ranks, over real meshes: against the same model in one process.

mod pull_push;
mod remote_module;
mod shards;
mod state;
