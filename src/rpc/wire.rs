//! What `capnp` generates from `schema/`, and the numbers of the wire that both sides must agree on.

#[allow(unsafe_code, clippy::all, clippy::unwrap_used, reason = "generated")]
pub(crate) mod value_capnp {
    include!(concat!(env!("OUT_DIR"), "/value_capnp.rs"));
}

#[allow(unsafe_code, clippy::all, clippy::unwrap_used, reason = "generated")]
pub(crate) mod join_capnp {
    include!(concat!(env!("OUT_DIR"), "/join_capnp.rs"));
}

#[allow(unsafe_code, clippy::all, clippy::unwrap_used, reason = "generated")]
pub(crate) mod peer_capnp {
    include!(concat!(env!("OUT_DIR"), "/peer_capnp.rs"));
}

/// Ranks talk to each other only when theirs are equal.
pub(crate) const VERSION: u32 = 4;

/// Opens each handshake message: "pstrain1".
pub(crate) const MAGIC: u64 = 0x7073_7472_6169_6e31;

/// Bytes of payloads that one message carries in itself; what does not fit any more is fetched in pieces. It is
/// also the most that the RPC thread copies at a time. (A batch of MNIST, 100 KB: 60 us inside the message, 160 us
/// fetched; a copy of this size takes about 25.)
pub(crate) const INLINE_BYTES: usize = 256 << 10;

/// The same where tensors are read out of the sender's memory. (Up to here it makes no difference to a call; beyond
/// it the copies cost more.)
pub(crate) const INLINE_BYTES_BESIDE_CMA: usize = 32 << 10;

/// Bytes that a receiver asks for at a time. (Half of it costs a quarter more time, twice of it saves nothing.)
pub(crate) const CHUNK_BYTES: usize = 128 << 10;

/// The most that a sender gives at a time.
pub(crate) const MAX_CHUNK_BYTES: usize = 256 << 10;

/// Reads of one connection under way, together at most 1 MiB: what a small call may find before it in the socket.
pub(crate) const READS_IN_FLIGHT: usize = 8;

/// Calls to one peer that wait for their answer, and those of one peer that are served.
pub(crate) const CALLS_IN_FLIGHT: usize = 1024;

/// Calls that travel in one message.
pub(crate) const MAX_BATCH_CALLS: usize = 64;

/// Values of one message, those inside lists counted too.
pub(crate) const MAX_VALUES: usize = 16 << 10;

/// Lists inside lists.
pub(crate) const MAX_DEPTH: usize = 16;

pub(crate) const MAX_DIMENSIONS: usize = 16;

/// The longest name: of a method, a barrier, a rank, its role, its address, or what it is doing.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// The longest text of an error.
pub(crate) const MAX_TEXT_BYTES: usize = 8 << 10;

/// The longest control message. It has room for `MAX_VALUES` values and the inline bytes twice over; tensors do not travel in
/// it.
pub(crate) const MAX_MESSAGE_WORDS: usize = 1 << 20;

/// `text` cut to at most `limit` bytes, at a character.
pub(crate) fn clip(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
