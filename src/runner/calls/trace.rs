//! What `--profile` collects.

use crate::rpc::{Field, Value, body, call};
use crate::runner::trace::TracePart;

call! {
    /// The time that the callee's clock shows.
    pub(in crate::runner) struct Clock = "trace.clock" -> Shown {}
}

body! {
    pub(in crate::runner) struct Shown {
        micros: f64,
    }
}

call! {
    pub(in crate::runner) struct Take = "trace.take" -> () {
        part: TracePart,
    }
}

/// As JSON. It may be larger than a text.
impl Field for TracePart {
    fn into_value(self) -> Value {
        Value::Bytes(serde_json::to_vec(&self).expect("a record of plain values is JSON"))
    }

    fn from_value(value: Value) -> Result<TracePart, String> {
        serde_json::from_slice(&Vec::<u8>::from_value(value)?).map_err(|error| error.to_string())
    }
}
