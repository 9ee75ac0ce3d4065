//! The messages of a handshake as bytes, and the texts in them: what comes has limits before anything is made of it.

use std::io;
use std::time::Duration;

use capnp::message::{Builder, HeapAllocator, Reader, ReaderOptions};
use capnp::serialize::{self, OwnedSegments};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::Failure;
use crate::human::one_line;
use crate::rpc::transport::stream::Stream;

/// For one message of the other side.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest message before its sender has proven anything.
const MAX_FRAME_BYTES: usize = 8 << 10;

/// What Cap'n Proto's framing begins with, where there is one segment: one less than how many there are, and its words.
const FRAMING_BYTES: usize = 8;
const WORD_BYTES: usize = 8;

pub(super) type Frame = Reader<OwnedSegments>;

/// One message: its length in bytes (u32, little-endian), then Cap'n Proto's own framing.
pub(super) async fn send<T>(stream: &mut Stream, write: impl FnOnce(T::Builder<'_>)) -> Result<(), Failure>
where
    T: capnp::traits::Owned,
{
    let mut message = Builder::new(HeapAllocator::new());
    write(message.init_root());
    let body = serialize::write_message_to_words(&message);
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    within(PATIENCE, stream.write_all(&frame)).await?;
    Ok(())
}

/// A message of who has proven nothing: the first byte that does not fit ends the connection, and nothing larger than the
/// message itself is allocated.
pub(super) async fn receive_unproven(stream: &mut Stream) -> Result<Frame, Failure> {
    let len = receive_len(stream, MAX_FRAME_BYTES).await?;
    let mut framing = [0; FRAMING_BYTES];
    stream.read_exact(&mut framing).await?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| framing[at + byte])) as usize;
    if word(0) != 0 || word(4).saturating_mul(WORD_BYTES) != len - FRAMING_BYTES {
        return Err(Failure::NotPstrain);
    }
    let mut body = framing.to_vec();
    body.resize(len, 0);
    stream.read_exact(&mut body[FRAMING_BYTES..]).await?;
    read(&body)
}

/// A message of who knows the token, without a limit on the time.
pub(super) async fn receive_frame(stream: &mut Stream, limit: usize) -> Result<Frame, Failure> {
    let len = receive_len(stream, limit).await?;
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    read(&body)
}

async fn receive_len(stream: &mut Stream, limit: usize) -> Result<usize, Failure> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await?;
    match u32::from_le_bytes(len) as usize {
        len if (FRAMING_BYTES..=limit).contains(&len) && len.is_multiple_of(WORD_BYTES) => Ok(len),
        _ => Err(Failure::NotPstrain),
    }
}

pub(super) fn read(body: &[u8]) -> Result<Frame, Failure> {
    Ok(parse(body)?)
}

/// What the framing announces is allocated before it is read: no more than came, and some for what is read twice.
fn parse(body: &[u8]) -> capnp::Result<Frame> {
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(Some(2 * body.len() / WORD_BYTES));
    serialize::read_message(&mut &*body, options)
}

/// # Errors
/// It fails, or takes longer.
pub(super) async fn within<T, E>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    match tokio::time::timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => {
            Err(Failure::Io(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"))))
        }
    }
}

/// A text of the other side, which a terminal may show.
pub(super) fn text(from: capnp::text::Reader<'_>, limit: usize) -> Result<String, Failure> {
    Ok(one_line(raw_text(from, limit)?).into_owned())
}

pub(super) fn raw_text(from: capnp::text::Reader<'_>, limit: usize) -> Result<&str, Failure> {
    match from.len() <= limit {
        true => from.to_str().map_err(|_| Failure::NotPstrain),
        false => Err(Failure::NotPstrain),
    }
}

pub(super) fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Failure> {
    bytes.try_into().map_err(|_| Failure::NotPstrain)
}

#[cfg(test)]
mod tests {
    use capnp::ErrorKind;

    use super::*;

    #[test]
    fn a_frame_takes_no_more_memory_than_came() {
        // One segment of 8 Mi words, of which none follows.
        let announced = [0, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let refused = parse(&announced).map(drop).expect_err("more than came");
        // Not only when nothing follows: then there would be room for it already.
        assert!(matches!(refused.kind, ErrorKind::MessageTooLarge(_)), "{refused}");
        let refused = read(&announced).map(drop).expect_err("more than came");
        assert!(matches!(refused, Failure::NotPstrain), "{refused:?}");
    }
}
