//! Distributed autograd: contexts, the two passes of the engine, optimizers.

pub mod optimizer;
