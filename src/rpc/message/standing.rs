//! Whether a rank moves on, as it travels.

use std::time::Duration;

use super::failure::read_text;
use crate::rpc::types::error::CallError;
use crate::rpc::types::standing::{At, Standing};
use crate::rpc::wire::peer_capnp::{self as schema, standing};
use crate::rpc::wire::{self, MAX_NAME_BYTES};
use crate::topology::Rank;

pub(crate) fn write_standing(mut to: standing::Builder<'_>, from: &Standing) {
    to.set_progress(from.progress);
    to.set_for_ms(u64::try_from(from.since.as_millis()).unwrap_or(u64::MAX));
    to.set_in_group(from.in_group);
    let (at, rank, method) = match &from.at {
        At::Working => (schema::At::Working, Rank(0), ""),
        At::Calling { to, method } => (schema::At::Calling, *to, method.as_str()),
        At::Barrier { name } => (schema::At::Barrier, Rank(0), name.as_str()),
        At::Serving { from, method } => (schema::At::Serving, *from, method.as_str()),
        At::Computing { from, method } => (schema::At::Computing, *from, method.as_str()),
    };
    to.set_at(at);
    to.set_rank(rank.0);
    to.set_method(wire::clip(method, MAX_NAME_BYTES));
}

pub(crate) fn read_standing(from: standing::Reader<'_>) -> Result<Standing, CallError> {
    let (rank, method) = (Rank(from.get_rank()), read_text(from.get_method()?, MAX_NAME_BYTES)?);
    Ok(Standing {
        progress: from.get_progress(),
        at: match from.get_at()? {
            schema::At::Working => At::Working,
            schema::At::Calling => At::Calling { to: rank, method },
            schema::At::Barrier => At::Barrier { name: method },
            schema::At::Serving => At::Serving { from: rank, method },
            schema::At::Computing => At::Computing { from: rank, method },
        },
        since: Duration::from_millis(from.get_for_ms()),
        in_group: from.get_in_group(),
    })
}
