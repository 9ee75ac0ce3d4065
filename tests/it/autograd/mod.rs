//! Distributed autograd over real meshes on loopback: gradients against those of the same graph in one process, what
//! goes wrong, and what it costs in messages.

mod contexts;
mod cost;
mod failures;
mod gradients;
mod random_graphs;
mod world;
