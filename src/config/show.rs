//! Values as TOML text.

use figment::value::{Num, Value};

use super::text::{key_text, string_text};

/// The value as TOML in one line.
pub fn inline(value: &Value) -> String {
    match value {
        Value::String(_, text) => string_text(text),
        Value::Char(_, c) => string_text(&c.to_string()),
        Value::Bool(_, flag) => flag.to_string(),
        Value::Num(_, Num::F64(number)) => float(*number),
        Value::Num(_, Num::F32(number)) => float(f64::from(*number)),
        Value::Num(_, number) => integer(*number),
        Value::Empty(..) => "\"\"".into(),
        Value::Array(_, entries) => {
            format!("[{}]", entries.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::Dict(_, dict) if dict.is_empty() => "{}".into(),
        Value::Dict(_, dict) => {
            let mut entries: Vec<_> = dict.iter().collect();
            entries.sort_by_key(|(key, _)| rank(key));
            let written = entries.iter().map(|(key, value)| format!("{} = {}", key_text(key), inline(value)));
            format!("{{ {} }}", written.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A key's place among its neighbours: what says what the rest is about comes first, the long comes last.
pub fn rank(key: &str) -> u32 {
    match key {
        "type" | "plugin" | "place" => 0,
        "name" => 1,
        "layers" => 3,
        _ => 2,
    }
}

fn float(number: f64) -> String {
    match number {
        n if n.is_nan() => "nan".into(),
        n if n.is_infinite() => if n > 0.0 { "inf" } else { "-inf" }.into(),
        // Debug's is the shortest that reads back as the same number, and always has a point or an exponent.
        n => format!("{n:?}"),
    }
}

fn integer(number: Num) -> String {
    match (number.to_i128(), number.to_u128()) {
        (Some(number), _) => number.to_string(),
        (_, Some(number)) => number.to_string(),
        _ => String::new(),
    }
}
