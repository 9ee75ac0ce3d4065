//! Declared keys as Markdown, for people.

use std::fmt::Write;

use super::key::{Absent, AnyKey};
use super::kind::Kind;

/// A Markdown table with a line for each key; nothing where there is none.
pub fn table(keys: &[&dyn AnyKey]) -> String {
    let mut out = String::new();
    for key in keys {
        let Ok(kind) = key.kind() else { continue };
        if out.is_empty() {
            out.push_str("| key | takes | default | meaning |\n|---|---|---|---|\n");
        }
        let (takes, default) = (takes(&kind), default(key.absent()));
        let _ = writeln!(out, "| `{}` | {takes} | {default} | {} |", key.name(), escaped(key.doc()));
    }
    out
}

/// In words, with what is typed as it is typed.
fn takes(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "`true`, `false`".into(),
        Kind::Words(words) => words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", "),
        Kind::Either(kinds) => kinds.iter().map(takes).collect::<Vec<_>>().join(", or "),
        Kind::List { of, count: None, most: None } => format!("list: {}", takes(of)),
        Kind::List { of, count: None, most: Some(most) } => format!("list of {most} at most: {}", takes(of)),
        Kind::List { of, count: Some(count), .. } => format!("list of {count}: {}", takes(of)),
        Kind::Map(of) => format!("table, each entry: {}", takes(of)),
        Kind::Integer { .. }
        | Kind::Number(_)
        | Kind::Str
        | Kind::Table(_)
        | Kind::Any
        | Kind::Never
        | Kind::Variants(..)
        | Kind::Named(_) => {
            let words = kind.words();
            escaped(words.strip_prefix("an ").or_else(|| words.strip_prefix("a ")).unwrap_or(&words))
        }
    }
}

fn default(absent: Absent) -> String {
    match absent {
        Absent::Wrong(_) => "required".into(),
        Absent::WrongAtTimes(_) | Absent::Nothing | Absent::Empty => String::new(),
        Absent::Default(toml) => format!("`{}`", as_toml(toml)),
    }
}

/// A bare word gets its quotes.
fn as_toml(default: &str) -> String {
    match super::text::parse_value(default) {
        Ok(value) if value.as_str().is_some() => super::show::inline(&value),
        _ => default.into(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}
