//! pstrain trains PyTorch-class models over many processes and machines from a TOML job file.
//!
//! Floors, imports downward only: [`topology`], `cache`, `files`, `profile`, `recorder`, `human` < `config` < [`layers`] <
//! [`metrics`] < [`optimizers`] < [`job`] < `c10d`, [`rpc`], [`plugin`], [`model`] < [`autograd`] < [`parallel`] < [`runner`] <
//! [`watch`] < [`cli`].

pub mod autograd;
mod cache;
pub mod cli;
mod config;
mod files;
mod human;
pub mod job;
pub mod layers;
pub mod metrics;
pub mod model;
pub mod optimizers;
pub mod parallel;
pub mod plugin;
pub mod profile;
pub mod recorder;
pub mod rpc;
pub mod runner;
pub mod topology;
pub mod watch;
