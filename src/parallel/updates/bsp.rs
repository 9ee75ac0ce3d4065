//! `bsp`: everyone's step makes one update, bulk synchronous (Valiant 1990; "sequential" in Li et al., OSDI 2014).

use super::{Meeting, Policy};

pub(super) struct Bsp;

impl Policy for Bsp {
    fn meeting(&self) -> Meeting {
        Meeting::Rounds
    }
}
