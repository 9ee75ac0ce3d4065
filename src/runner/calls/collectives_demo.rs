//! The collectives demo.

use crate::rpc::{Json, call};
use crate::runner::collectives_demo;

call! {
    /// What one rank has seen at all operations.
    pub(in crate::runner) struct Seen = "collectives.seen" -> () {
        operations: Json<Vec<Option<collectives_demo::RankView>>>,
    }
}
