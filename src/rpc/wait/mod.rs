//! How threads wait: blocked on a future ([`park`]), and looking for a moment before they sleep ([`spin`]).

pub(crate) mod park;
pub(crate) mod spin;
