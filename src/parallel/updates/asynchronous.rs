//! `async`: an update is applied when it comes, and nobody waits ("eventual" in "Scaling Distributed Machine Learning with
//! the Parameter Server", Li et al., OSDI 2014, section 3.4).

use super::{Meeting, Policy};

pub(super) struct Async;

impl Policy for Async {
    fn meeting(&self) -> Meeting {
        Meeting::OneByOne
    }
}
