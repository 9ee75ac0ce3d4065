//! Where flight records go.

use crate::rpc::{Field, Json, Value, body, call};
use crate::runner::flight::{RankFlight, RankProcess};

call! {
    /// A rank says which process it is.
    pub(in crate::runner) struct Register = "flight.register" -> Registered {
        process: Json<RankProcess>,
    }
}

body! {
    pub(in crate::runner) struct Registered {
        /// The run folder, as the coordinator sees it.
        folder: String,
    }
}

call! {
    /// The record of a rank that does not see the run folder.
    pub(in crate::runner) struct Put = "flight.put" -> () {
        flight: RankFlight,
    }
}

/// As JSON. It may be larger than a text.
impl Field for RankFlight {
    fn into_value(self) -> Value {
        Value::Bytes(serde_json::to_vec(&self).expect("a record of plain values is JSON"))
    }

    fn from_value(value: Value) -> Result<RankFlight, String> {
        serde_json::from_slice(&Vec::<u8>::from_value(value)?).map_err(|error| error.to_string())
    }
}
