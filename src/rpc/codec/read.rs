//! From the wire. Nothing that comes is believed (C-1).

use tch::Kind;

use super::{Tally, bad, kind_of, too_large};
use crate::profile::{Activity, span};
use crate::rpc::error::CallError;
use crate::rpc::payload::{Draft, Fetch, Fork, Lender, Loan, Part, Shape};
use crate::rpc::rref::ObjectId;
use crate::rpc::value::{ContextId, Value};
use crate::rpc::wire::MAX_DIMENSIONS;
use crate::rpc::wire::value_capnp::{blob, inline, message, payload, tensor, value};
use crate::topology::Rank;

/// Reads what stands in the message itself and notes what must be fetched.
///
/// # Errors
/// `TooLarge` over a limit, `BadValue` for what the schema does not allow.
pub(crate) fn read_message(
    from: message::Reader<'_>,
    max_payload_bytes: u64,
    lender: Lender,
) -> Result<Draft, CallError> {
    let _span = span(Activity::Payload);
    let mut draft = Draft { lender, ..Draft::default() };
    let mut tally = Tally::new(max_payload_bytes);
    if from.has_context() {
        let context = from.get_context()?;
        draft.context = Some(ContextId { rank: Rank(context.get_rank()), number: context.get_number() });
    }
    draft.values = read_list(from.get_values()?, 0, &mut draft, &mut tally)?;
    draft.bytes = tally.bytes;
    Ok(draft)
}

type Values<'a> = capnp::struct_list::Reader<'a, value::Owned>;

fn read_list(
    from: Values<'_>,
    depth: usize,
    draft: &mut Draft,
    tally: &mut Tally,
) -> Result<Vec<Part>, CallError> {
    tally.list(from.len() as usize, depth)?;
    from.iter().map(|value| read_value(value, depth, draft, tally)).collect()
}

fn read_value(
    from: value::Reader<'_>,
    depth: usize,
    draft: &mut Draft,
    tally: &mut Tally,
) -> Result<Part, CallError> {
    Ok(match from.which()? {
        value::Nil(()) => Part::Ready(Value::Nil),
        value::Bool(value) => Part::Ready(Value::Bool(value)),
        value::Int(value) => Part::Ready(Value::Int(value)),
        value::Float(value) => Part::Ready(Value::Float(value)),
        value::Text(blob) => Part::Text(read_blob(blob?, draft, tally)?),
        value::Bytes(blob) => Part::Bytes(read_blob(blob?, draft, tally)?),
        value::Tensor(sent) => read_tensor(sent?, draft, tally)?,
        value::Ref(reference) => {
            let reference = reference?;
            let held = reference.has_fork().then(|| reference.get_fork()).transpose()?;
            let (owner, id) = (Rank(reference.get_owner()), ObjectId::read(reference.get_id()?));
            draft.forks.push(Fork { owner, id, held });
            Part::Ref(draft.forks.len() - 1)
        }
        value::List(list) => Part::List(read_list(list?, depth + 1, draft, tally)?),
    })
}

fn read_blob(from: blob::Reader<'_>, draft: &mut Draft, tally: &mut Tally) -> Result<usize, CallError> {
    let len = from.get_len();
    tally.payload(len)?;
    read_payload(from.get_payload()?, Shape::Bytes, len, draft, tally)
}

fn read_tensor(from: tensor::Reader<'_>, draft: &mut Draft, tally: &mut Tally) -> Result<Part, CallError> {
    let kind = kind_of(from.get_dtype()?);
    let shape = from.get_shape()?;
    if shape.len() as usize > MAX_DIMENSIONS {
        return Err(bad(format_args!(
            "a tensor of {} dimensions, the limit is {MAX_DIMENSIONS}",
            shape.len()
        )));
    }
    let shape: Vec<i64> = shape.iter().collect();
    let len = checked_len(kind, &shape)?;
    if from.get_len() != len {
        return Err(bad(format_args!(
            "a tensor of shape {shape:?} and {kind:?} takes {len} bytes, announced are {}",
            from.get_len()
        )));
    }
    tally.payload(len)?;
    let edge = from.get_has_edge().then(|| from.get_edge());
    let fetch = read_payload(from.get_payload()?, Shape::Tensor(kind, shape), len, draft, tally)?;
    Ok(Part::Tensor { fetch, edge })
}

/// Bytes of a tensor that a peer announces.
fn checked_len(kind: Kind, shape: &[i64]) -> Result<u64, CallError> {
    let mut len = kind.elt_size_in_bytes() as u64;
    for &size in shape {
        let size = u64::try_from(size).map_err(|_| bad(format_args!("a tensor of shape {shape:?}")))?;
        len = len.checked_mul(size).ok_or_else(|| too_large(format_args!("a tensor of shape {shape:?}")))?;
    }
    Ok(len)
}

fn read_payload(
    from: payload::Reader<'_>,
    shape: Shape,
    len: u64,
    draft: &mut Draft,
    tally: &mut Tally,
) -> Result<usize, CallError> {
    let to_fetch = || usize::try_from(len).map_err(|_| too_large(format_args!("{len} bytes")));
    let fetch = match (from.which()?, &shape, &draft.lender) {
        (payload::Inline(inside), ..) => match inside?.which()? {
            inline::Data(data) => {
                let data = data?;
                if data.len() as u64 != len {
                    return Err(bad(format_args!("{len} bytes announced, {} came", data.len())));
                }
                tally.inline(data.len())?;
                let mut room = shape.room(data.len())?;
                room.write(0, data);
                Fetch::Here(room)
            }
            inline::Source(source) => {
                Fetch::Pieces { shape, len: to_fetch()?, source: source?, shared: false }
            }
        },
        (payload::Cma(lent), Shape::Tensor(..), Lender { process: Some(process), .. }) => {
            let (lent, len) = (lent?, to_fetch()?);
            let loan = Loan { process: process.clone(), address: lent.get_address() };
            let pin = lent.has_pin().then(|| lent.get_pin()).transpose()?;
            Fetch::Lent { shape, len, loan, pin }
        }
        (payload::Shm(sent), Shape::Tensor(..), Lender { shm: true, .. }) => {
            Fetch::Pieces { shape, len: to_fetch()?, source: sent?.get_source()?, shared: true }
        }
        (payload::Bulk(sent), Shape::Tensor(..), Lender { bulk: true, .. }) => {
            Fetch::Bulk { shape, len: to_fetch()?, transfer: sent?.get_transfer()? }
        }
        _ => return Err(bad("a payload form that this connection did not agree on")),
    };
    draft.fetches.push(fetch);
    Ok(draft.fetches.len() - 1)
}
