//! What points and spans say of themselves.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};

use crate::topology::Rank;

pub fn text(key: &str, value: &str) -> KeyValue {
    of(key, Value::StringValue(value.into()))
}

pub fn integer(key: &str, value: u64) -> KeyValue {
    of(key, Value::IntValue(value as i64))
}

pub fn number(key: &str, value: f64) -> KeyValue {
    of(key, Value::DoubleValue(value))
}

/// Whose it is. `roles`: by rank.
pub fn of_rank(rank: Rank, roles: &[String]) -> Vec<KeyValue> {
    let role = roles.get(rank.index()).map(|role| text("pstrain.role", role));
    [integer("pstrain.rank", rank.0.into())].into_iter().chain(role).collect()
}

fn of(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
