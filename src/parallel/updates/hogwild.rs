//! `hogwild`: every trainer writes the numbers in place, without locks or version checks ("Hogwild!", Recht et al., NIPS
//! 2011). A step may read numbers of several versions at once.

use super::{Meeting, Policy};

pub(super) struct Hogwild;

impl Policy for Hogwild {
    fn meeting(&self) -> Meeting {
        Meeting::Unordered
    }
}
