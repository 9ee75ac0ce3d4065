//! What a placement means: the parameter server and remote modules.

mod consistency;
mod versioned;
