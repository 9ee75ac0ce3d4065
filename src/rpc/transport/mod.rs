//! How bytes get from rank to rank: sockets ([`socket`]), what handshakes and calls run over ([`stream`], where encryption
//! belongs), and four ways for the bytes of large tensors ([`inline`], [`cma`], [`shm`], [`bulk`]), each with its sender's and
//! its receiver's side.
//!
//! Knows tensors as memory ([`memory`], the one file with `unsafe`), and nothing of messages, ranks or the mesh.

pub(crate) mod bulk;
pub(crate) mod cma;
pub(crate) mod direction;
pub(crate) mod inline;
pub(crate) mod memory;
pub(crate) mod quota;
pub(crate) mod reading;
pub(crate) mod reaper;
pub(crate) mod shm;
pub(crate) mod socket;
pub(crate) mod stream;
mod user;
