//! JSON Schema of tables whose keys are declared.

use serde_json::{Map, Value as Json, json};

use super::key::{Absent, AnyKey};
use super::kind::{Kind, Variant};
use super::text;
use super::values::{Bound, Number};

/// A table with these keys and no others.
pub fn table(keys: &[&dyn AnyKey]) -> Json {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in keys {
        let Ok(kind) = key.kind() else { continue };
        if matches!(kind, Kind::Never) {
            continue;
        }
        if matches!(key.absent(), Absent::Wrong(_)) {
            required.push(key.name());
        }
        properties.insert(key.name().into(), property(*key, &kind));
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn property(key: &dyn AnyKey, kind: &Kind) -> Json {
    let mut schema = of(kind);
    if let Json::Object(schema) = &mut schema {
        schema.insert("description".into(), key.doc().into());
        if let Absent::Default(toml) = key.absent() {
            let default = text::parse_value(toml).ok().and_then(|value| serde_json::to_value(value).ok());
            schema.extend(default.map(|default| ("default".to_owned(), default)));
        }
    }
    schema
}

fn of(kind: &Kind) -> Json {
    match kind {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Integer { least, most } => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Number(limits) => number(*limits),
        Kind::Str => json!({ "type": "string" }),
        Kind::Words(words) => json!({ "enum": words }),
        Kind::List { of: entry, count: None, most: None } => json!({ "type": "array", "items": of(entry) }),
        Kind::List { of: entry, count: None, most: Some(most) } => {
            json!({ "type": "array", "items": of(entry), "maxItems": most })
        }
        Kind::List { of: entry, count: Some(count), .. } => {
            json!({ "type": "array", "items": of(entry), "minItems": count, "maxItems": count })
        }
        Kind::Either(kinds) => json!({ "anyOf": kinds.iter().map(of).collect::<Vec<_>>() }),
        Kind::Table(keys) => table(keys),
        Kind::Map(entry) => json!({ "type": "object", "additionalProperties": of(entry) }),
        Kind::Any => json!({}),
        Kind::Never => json!({ "not": {} }),
        Kind::Variants(name, ..) | Kind::Named(name) => reference(name),
    }
}

fn number(Number { low, high }: Number) -> Json {
    let mut schema = Map::from_iter([("type".to_owned(), json!("number"))]);
    let mut limit = |bound, including: &str, excluding: &str| match bound {
        Bound::None => None,
        Bound::Including(limit) => schema.insert(including.into(), json!(limit)),
        Bound::Excluding(limit) => schema.insert(excluding.into(), json!(limit)),
    };
    limit(low, "minimum", "exclusiveMinimum");
    limit(high, "maximum", "exclusiveMaximum");
    Json::Object(schema)
}

/// What stands under `name` among the schema's definitions.
pub fn reference(name: &str) -> Json {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// A table that is one of `variants`, as the key `tag` says; `common` are the keys that all have.
pub fn variants(tag: &str, common: &[&dyn AnyKey], variants: &[Variant]) -> Json {
    let one = |variant: &Variant| {
        let mut schema = table(&[common, variant.keys].concat());
        schema["description"] = variant.doc.into();
        schema["properties"][tag] = json!({ "const": variant.name, "description": variant.doc });
        schema
    };
    json!({ "anyOf": variants.iter().map(one).collect::<Vec<_>>() })
}

/// Whether a variant needs no keys, and its name alone says all.
pub fn needs_nothing(variant: &Variant) -> bool {
    !variant.keys.iter().any(|key| key.kind().is_ok() && matches!(key.absent(), Absent::Wrong(_)))
}

/// In a table whose key `tag` says `variant`, the table at `key` is that variant's.
pub fn where_said(tag: &str, variant: &Variant, keys: &[&str]) -> Json {
    let properties: Map<String, Json> =
        keys.iter().map(|key| ((*key).to_owned(), table(variant.keys))).collect();
    json!({
        "if": { "properties": { tag: { "const": variant.name } }, "required": [tag] },
        "then": { "properties": properties },
    })
}
