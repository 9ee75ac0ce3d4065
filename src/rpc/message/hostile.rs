//! Messages that no honest rank sends.

use capnp::message::{Builder, HeapAllocator, ReaderOptions};
use proptest::prelude::*;

use super::read::read_message;
use crate::rpc::transport::direction::Receiving;
use crate::rpc::transport::quota::ReceiveQuota;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::wait::park::block_on;
use crate::rpc::wire::value_capnp::{DType, message, tensor};
use crate::rpc::wire::{INLINE_BYTES, MAX_DEPTH, MAX_DIMENSIONS, MAX_VALUES};

const LIMIT: u64 = 1 << 20;

/// What reading the message gives, through bytes as from a socket.
fn read(write: impl FnOnce(message::Builder<'_>)) -> Result<(), CallError> {
    read_up_to(LIMIT, write)
}

fn read_up_to(max_bytes: u64, write: impl FnOnce(message::Builder<'_>)) -> Result<(), CallError> {
    let mut builder = Builder::new(HeapAllocator::new());
    write(builder.init_root());
    let words = capnp::serialize::write_message_to_words(&builder);
    let reader =
        capnp::serialize::read_message(&mut words.as_slice(), ReaderOptions::new()).expect("well framed");
    read_message(reader.get_root().expect("a struct"), max_bytes, &Receiving::default()).map(|_| ())
}

/// Blobs that the message carries in itself.
fn write_inside(to: message::Builder<'_>, lens: &[usize]) {
    let mut list = to.init_values(lens.len() as u32);
    for (index, len) in lens.iter().enumerate() {
        let mut bytes = list.reborrow().get(index as u32).init_bytes();
        bytes.set_len(*len as u64);
        bytes.init_payload().init_inline().init_data(*len as u32);
    }
}

fn read_tensor(write: impl FnOnce(tensor::Builder<'_>)) -> Result<(), CallError> {
    read(|to| write(to.init_values(1).get(0).init_tensor()))
}

/// A tensor that announces `len` bytes for `shape` and brings `data`.
fn announce(shape: &[i64], len: u64, data: usize) -> Result<(), CallError> {
    read_tensor(|mut to| {
        to.set_dtype(DType::Float32);
        to.set_shape(shape).expect("a list");
        to.set_len(len);
        to.init_payload().init_inline().init_data(data as u32);
    })
}

#[track_caller]
fn assert_refused(outcome: Result<(), CallError>, kind: CallErrorKind, says: &str) {
    let error = outcome.expect_err("refused");
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.message.contains(says), "{error}");
}

#[test]
fn an_honest_tensor_is_read() {
    announce(&[2, 3], 24, 24).expect("honest");
    announce(&[2, 0], 0, 0).expect("empty");
    announce(&[], 4, 4).expect("a scalar");
}

#[test]
fn a_tensor_whose_length_is_not_that_of_its_shape_is_refused() {
    assert_refused(announce(&[2, 3], 23, 23), CallErrorKind::BadValue, "takes 24 bytes, announced are 23");
    assert_refused(announce(&[2, 3], 24, 20), CallErrorKind::BadValue, "24 bytes announced, 20 came");
    assert_refused(announce(&[2, 3], 24, 28), CallErrorKind::BadValue, "24 bytes announced, 28 came");
}

#[test]
fn a_shape_beyond_all_memory_is_refused_before_anything_is_allocated() {
    let huge = announce(&[i64::MAX, i64::MAX, 4], 0, 0);
    assert_refused(huge, CallErrorKind::TooLarge, "a tensor of shape");
    let large = announce(&[1 << 40], 4 << 40, 0);
    assert_refused(large, CallErrorKind::TooLarge, "at most 1 MiB");
    assert_refused(announce(&[-1], 4, 4), CallErrorKind::BadValue, "a tensor of shape [-1]");
    // A zero does not hide what comes before it.
    let hidden = announce(&[i64::MAX, i64::MAX, 0], 0, 0);
    assert_refused(hidden, CallErrorKind::TooLarge, "a tensor of shape");
}

#[test]
fn too_many_dimensions_are_refused() {
    let many = vec![1; MAX_DIMENSIONS + 1];
    assert_refused(announce(&many, 4, 4), CallErrorKind::BadValue, "17 dimensions");
}

#[test]
fn a_blob_larger_than_the_limit_is_refused() {
    let outcome = read(|to| to.init_values(1).get(0).init_bytes().set_len(u64::MAX));
    assert_refused(outcome, CallErrorKind::TooLarge, "at most 1 MiB");
}

#[test]
fn payloads_are_counted_together() {
    let outcome = read_up_to(1000, |to| write_inside(to, &[400; 3]));
    assert_refused(
        outcome,
        CallErrorKind::TooLarge,
        "1200 bytes for one message, which carries at most 1000 bytes",
    );
}

#[test]
fn a_message_that_carries_more_in_itself_than_is_agreed_on_is_refused() {
    let half = INLINE_BYTES / 2;
    read(|to| write_inside(to, &[half, half])).expect("as much as may be (RM-2)");
    let outcome = read(|to| write_inside(to, &[half, half, 1]));
    assert_refused(
        outcome,
        CallErrorKind::TooLarge,
        "262145 bytes inside a message, which carries at most 256 KiB",
    );
    let tensors = announce(&[INLINE_BYTES as i64], 4 * INLINE_BYTES as u64, 4 * INLINE_BYTES);
    assert_refused(tensors, CallErrorKind::TooLarge, "at most 256 KiB in itself");
}

#[test]
fn too_many_values_are_refused() {
    let outcome = read(|to| {
        to.init_values(MAX_VALUES as u32 + 1);
    });
    assert_refused(outcome, CallErrorKind::TooLarge, "values in one message");
    let inside = read(|to| {
        let mut list = to.init_values(3);
        for index in 0..3 {
            list.reborrow().get(index).init_list(MAX_VALUES as u32 / 2);
        }
    });
    assert_refused(inside, CallErrorKind::TooLarge, "values in one message");
}

#[test]
fn lists_too_deep_are_refused() {
    let outcome = read(|to| {
        let mut list = to.init_values(1);
        for _ in 0..MAX_DEPTH + 1 {
            list = list.get(0).init_list(1);
        }
    });
    assert_refused(outcome, CallErrorKind::TooLarge, "nested more than 16 deep");
}

#[test]
fn a_transport_that_was_not_agreed_on_is_refused() {
    let outcome = read_tensor(|mut to| {
        to.set_dtype(DType::Uint8);
        to.set_shape(&[4]).expect("a list");
        to.set_len(4);
        to.init_payload().init_cma().set_address(0xdead_beef);
    });
    assert_refused(outcome, CallErrorKind::BadValue, "did not agree on");
}

#[test]
fn an_unknown_dtype_is_refused() {
    // A message of a later version: the numbers after the last known ones.
    let mut builder = Builder::new(HeapAllocator::new());
    {
        let to: message::Builder<'_> = builder.init_root();
        let mut to = to.init_values(1).get(0).init_tensor();
        to.set_dtype(DType::Float8e4m3fnuz);
        to.set_len(0);
    }
    let mut words = capnp::serialize::write_message_to_words(&builder);
    let last = (DType::Float8e4m3fnuz as u16).to_le_bytes();
    let at = words.windows(2).rposition(|pair| pair == last).expect("the dtype");
    words[at] = 200;
    let reader =
        capnp::serialize::read_message(&mut words.as_slice(), ReaderOptions::new()).expect("well framed");
    let outcome =
        read_message(reader.get_root().expect("a struct"), LIMIT, &Receiving::default()).map(|_| ());
    assert_eq!(outcome.expect_err("refused").kind, CallErrorKind::BadValue);
}

#[test]
fn a_text_that_is_no_utf8_is_refused_when_it_is_complete() {
    let mut builder = Builder::new(HeapAllocator::new());
    {
        let to: message::Builder<'_> = builder.init_root();
        let mut text = to.init_values(1).get(0).init_text();
        text.set_len(2);
        text.init_payload().init_inline().set_data(&[0xff, 0xfe]);
    }
    let reader = builder.get_root_as_reader().expect("a struct");
    let partial = read_message(reader, LIMIT, &Receiving::default()).expect("read");
    let quota = ReceiveQuota::new(LIMIT);
    let complete = partial.complete(
        &quota.reads,
        async |_| unreachable!("no references"),
        |_| unreachable!("nothing is pinned"),
    );
    let error = block_on(complete).expect("may block").err().expect("refused");
    assert!(error.message.contains("UTF-8"), "{error}");
}

/// A message with a value of each kind, as bytes of a socket.
fn every_kind() -> Vec<u8> {
    let mut builder = Builder::new(HeapAllocator::new());
    {
        let mut to: message::Builder<'_> = builder.init_root();
        to.reborrow().init_context().set_number(7);
        let mut values = to.init_values(7);
        values.reborrow().get(0).set_int(-3);
        values.reborrow().get(1).set_float(0.5);
        let mut text = values.reborrow().get(2).init_text();
        text.set_len(5);
        text.init_payload().init_inline().set_data(b"hello");
        let mut tensor = values.reborrow().get(3).init_tensor();
        tensor.set_dtype(DType::Float32);
        tensor.set_shape(&[2, 3]).expect("a list");
        tensor.set_len(24);
        tensor.init_payload().init_inline().set_data(&[1; 24]);
        let mut list = values.reborrow().get(4).init_list(2);
        list.reborrow().get(0).set_bool(true);
        list.get(1).init_list(1).get(0).set_int(1);
        let mut sparse = values.reborrow().get(5).init_sparse();
        sparse.set_shape(&[4, 2]).expect("a list");
        let mut indices = sparse.reborrow().init_indices();
        indices.set_dtype(DType::Int64);
        indices.set_shape(&[1, 2]).expect("a list");
        indices.set_len(16);
        indices.init_payload().init_inline().set_data(&[0; 16]);
        let mut entries = sparse.init_values();
        entries.set_dtype(DType::Float32);
        entries.set_shape(&[2, 2]).expect("a list");
        entries.set_len(16);
        entries.init_payload().init_inline().set_data(&[0; 16]);
        let mut reference = values.get(6).init_ref();
        reference.set_owner(1);
        reference.init_id().set_number(9);
    }
    capnp::serialize::write_message_to_words(&builder)
}

/// What comes of bytes that may be anything: a message, or an error.
fn read_bytes(bytes: &[u8]) {
    let Ok(reader) = capnp::serialize::read_message(&mut &*bytes, limits()) else { return };
    let Ok(root) = reader.get_root::<message::Reader<'_>>() else { return };
    let Ok(partial) = read_message(root, LIMIT, &Receiving::default()) else { return };
    let quota = ReceiveQuota::new(LIMIT);
    let adopt = async |_| Err(CallError::failed("there are no objects here"));
    let complete = partial.complete(&quota.reads, adopt, |_| Err(CallError::failed("nothing is pinned")));
    if let Ok(mut received) = block_on(complete).expect("may block") {
        let _ = received.read_on();
    }
}

fn limits() -> ReaderOptions {
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(Some(1 << 16));
    options
}

proptest! {
    #[test]
    fn no_bytes_are_too_much_for_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read_bytes(&bytes);
    }

    #[test]
    fn no_change_of_a_message_is_too_much_for_the_reader(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = every_kind();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_bytes(&bytes);
    }
}

#[test]
fn the_message_that_is_changed_is_read_as_it_is() {
    let bytes = every_kind();
    let reader = capnp::serialize::read_message(&mut &*bytes, limits()).expect("well framed");
    read_message(reader.get_root().expect("a struct"), LIMIT, &Receiving::default()).expect("honest");
}
