//! How a mesh ended, as it travels.

use std::time::Duration;

use super::failure::read_text;
use crate::rpc::types::end::{Cause, LostRank};
use crate::rpc::types::error::CallError;
use crate::rpc::wire::peer_capnp::{self as schema, ending};
use crate::rpc::wire::{self, MAX_NAME_BYTES, MAX_TEXT_BYTES};
use crate::topology::Rank;

pub(crate) fn write_ending(mut to: ending::Builder<'_>, lost: &LostRank) {
    to.set_cause(match lost.cause {
        Cause::Disconnected => schema::Cause::Disconnected,
        Cause::Silent => schema::Cause::Silent,
        Cause::Aborted => schema::Cause::Aborted,
        Cause::Stalled => schema::Cause::Stalled,
    });
    to.set_rank(lost.rank.0);
    to.set_doing(lost.doing.as_str());
    let before = lost.said_before.map(|before| u32::try_from(before.as_millis()).unwrap_or(u32::MAX - 1));
    to.set_said_before_ms(before.unwrap_or(u32::MAX));
    to.set_why(wire::clip(&lost.why, MAX_TEXT_BYTES));
}

pub(crate) fn read_ending(
    from: ending::Reader<'_>,
    name_of: impl Fn(Rank) -> String,
) -> Result<LostRank, CallError> {
    let rank = Rank(from.get_rank());
    Ok(LostRank {
        rank,
        name: name_of(rank),
        doing: read_text(from.get_doing()?, MAX_NAME_BYTES)?,
        said_before: match from.get_said_before_ms() {
            u32::MAX => None,
            ms => Some(Duration::from_millis(ms.into())),
        },
        why: read_text(from.get_why()?, MAX_TEXT_BYTES)?,
        cause: match from.get_cause()? {
            schema::Cause::Disconnected => Cause::Disconnected,
            schema::Cause::Silent => Cause::Silent,
            schema::Cause::Aborted => Cause::Aborted,
            schema::Cause::Stalled => Cause::Stalled,
        },
    })
}
