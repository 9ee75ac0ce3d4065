//! The format of TensorBoard's event files, as far as scalars need it. Source: TensorFlow's tensorflow/core/lib/io/record_writer.h
//! (a record is the length of its data, eight bytes, with their checksum, and the data with theirs) and TensorBoard's
//! tensorboard/compat/proto/event.proto and summary.proto.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(string, tag = "1")]
    pub tag: String,
    /// Of a oneof: 0 is written, too.
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct SessionLog {
    /// 1: START. What TensorBoard knows of this step and of those behind it is void.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

impl Event {
    pub fn scalars(wall_time: f64, step: i64, figures: &[(String, f64)]) -> Event {
        let value =
            |(tag, value): &(String, f64)| Value { tag: tag.clone(), simple_value: Some(*value as f32) };
        let summary = Summary { value: figures.iter().map(value).collect() };
        Event { wall_time, step, what: Some(What::Summary(summary)) }
    }

    pub fn start(wall_time: f64, step: i64) -> Event {
        Event { wall_time, step, what: Some(What::SessionLog(SessionLog { status: 1 })) }
    }
}

/// The first record of a file.
pub fn begin(file: &mut Vec<u8>, wall_time: f64) {
    let version = What::FileVersion("brain.Event:2".into());
    append(file, &Event { wall_time, step: 0, what: Some(version) });
}

pub fn append(file: &mut Vec<u8>, event: &Event) {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    file.extend_from_slice(&length);
    file.extend_from_slice(&masked_crc(&length).to_le_bytes());
    file.extend_from_slice(&data);
    file.extend_from_slice(&masked_crc(&data).to_le_bytes());
}

/// The checksum of bytes that may have checksums in them: tensorflow/core/lib/hash/crc32c.h.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
