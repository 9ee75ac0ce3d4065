//! Plain values of the mesh: who is who, what a call carries, references to objects, errors, how it all ends.
//!
//! Knows neither sockets nor threads but for one thing: an `RRef` tells the RPC thread when it is dropped ([`release`]).

pub(crate) mod config;
pub(crate) mod end;
pub(crate) mod error;
pub(crate) mod job_keys;
pub(crate) mod join_error;
pub(crate) mod peer;
pub(crate) mod permit;
pub(crate) mod release;
pub(crate) mod rref;
pub(crate) mod standing;
pub(crate) mod token;
pub(crate) mod transport;
pub(crate) mod value;
pub(crate) mod waiting;
