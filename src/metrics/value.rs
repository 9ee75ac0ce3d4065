//! The figure that a metric comes to.

use serde::de::{Deserialize, Deserializer};
use serde::{Serialize, Serializer};

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// JSON has neither NaN nor infinity: both are null there.
    Number(f64),
    /// Rows of counts.
    Counts(Vec<Vec<i64>>),
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Counts(_) => None,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) if number.is_finite() => serializer.serialize_f64(*number),
            Value::Number(_) => serializer.serialize_none(),
            Value::Counts(rows) => rows.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum NumberOrCounts {
            Number(Option<f64>),
            Counts(Vec<Vec<i64>>),
        }
        Ok(match NumberOrCounts::deserialize(deserializer)? {
            NumberOrCounts::Number(number) => Value::Number(number.unwrap_or(f64::NAN)),
            NumberOrCounts::Counts(rows) => Value::Counts(rows),
        })
    }
}
