//! The collectives demo.

use crate::rpc::{Json, call};
use crate::runner::tour;

call! {
    /// What one rank has seen at all stops.
    pub(in crate::runner) struct Seen = "tour.seen" -> () {
        stops: Json<Vec<Option<tour::Seen>>>,
    }
}
