//! The mesh as the threads of a rank use it: the handle ([`handle`]), what it asks of the RPC thread ([`command`]), the
//! answers ([`pending`]), the methods that the rank offers ([`methods`]), and calls as types, which both ends use
//! ([`call`], of [`fields`]).
//!
//! Knows nothing of connections: what is asked goes into a queue.

pub(crate) mod batch;
pub(crate) mod call;
pub(crate) mod command;
pub(crate) mod fields;
pub(crate) mod handle;
pub(crate) mod methods;
pub(crate) mod pending;
pub(crate) mod shared;
