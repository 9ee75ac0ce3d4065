//! Values as YAML 1.2, in the plain part of it that everybody reads alike. Pure.

use std::fmt::Write as _;

use serde_json::Value;

/// One document, in block style. Texts of several lines are literal blocks; all that a reader might take for something else is
/// in double quotes.
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, 0);
    out
}

/// `value` in lines of its own, or behind what stands on the line already; ends the line.
fn write(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (number, (key, value)) in entries.iter().enumerate() {
                if number > 0 {
                    indent(out, depth);
                }
                out.push_str(&text(key));
                out.push(':');
                behind(out, value, depth, matches!(value, Value::Array(_)));
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (number, item) in items.iter().enumerate() {
                if number > 0 {
                    indent(out, depth);
                }
                out.push('-');
                match item {
                    Value::Object(entries) if !entries.is_empty() => {
                        out.push(' ');
                        write(out, item, depth + 1);
                    }
                    _ => behind(out, item, depth, false),
                }
            }
        }
        _ => behind(out, value, depth, false),
    }
}

/// A value behind `key:` or `-`. `level`: its lines begin where the key does, as lists may.
fn behind(out: &mut String, value: &Value, depth: usize, level: bool) {
    match value {
        Value::Object(entries) if !entries.is_empty() => nested(out, value, depth + 1),
        Value::Array(items) if !items.is_empty() => nested(out, value, depth + usize::from(!level)),
        Value::Object(_) => out.push_str(" {}\n"),
        Value::Array(_) => out.push_str(" []\n"),
        Value::String(long) if is_block(long) => block(out, long, depth + 1),
        Value::String(short) => {
            let _ = writeln!(out, " {}", text(short));
        }
        other => {
            let _ = writeln!(out, " {other}");
        }
    }
}

fn nested(out: &mut String, value: &Value, depth: usize) {
    out.push('\n');
    indent(out, depth);
    write(out, value, depth);
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Whether a text reads well as lines, and comes back from them as it is.
fn is_block(text: &str) -> bool {
    let printable = |c: char| c == '\n' || c == '\t' || !c.is_control() && c != '\u{feff}';
    text.contains('\n') && text.chars().all(printable) && !text.starts_with([' ', '\n', '\t'])
}

fn block(out: &mut String, text: &str, depth: usize) {
    // Strip, clip or keep: what becomes of the last line's end.
    out.push_str(match (text.ends_with('\n'), text.ends_with("\n\n")) {
        (false, _) => " |-\n",
        (true, false) => " |\n",
        (true, true) => " |+\n",
    });
    for line in text.lines() {
        if !line.is_empty() {
            indent(out, depth);
        }
        out.push_str(line);
        out.push('\n');
    }
}

/// A text on one line: bare if it can be nothing else. JSON's quotes are YAML's.
fn text(text: &str) -> String {
    const WORDS: [&str; 8] = ["true", "false", "null", "yes", "no", "on", "off", "y"];
    let begins = |c: char| c.is_ascii_alphabetic() || c == '/';
    let bare = text.starts_with(begins)
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
        && text != "n"
        && text != "N";
    if bare { text.into() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_and_lists_are_blocks_and_doubtful_words_are_quoted() {
        let value = json!({
            "a": 1,
            "b": ["x", "1", true, { "c": "no", "d": [] }, ["y z"]],
            "e": { "f": "8:30", "g": {}, "h": "a/b-c.d", "i": "" },
        });
        insta::assert_snapshot!(document(&value), @r#"
        a: 1
        b:
        - x
        - "1"
        - true
        - c: "no"
          d: []
        -
          - "y z"
        e:
          f: "8:30"
          g: {}
          h: a/b-c.d
          i: ""
        "#);
    }

    #[test]
    fn a_text_of_lines_is_a_block_unless_it_would_come_back_changed() {
        let value = json!({ "a": "one\n  two\n\nthree\n", "b": "end\nless", "c": "x\n\n", "d": " x\n", "e": "x\r\ny" });
        insta::assert_snapshot!(document(&value), @r#"
        a: |
          one
            two

          three
        b: |-
          end
          less
        c: |+
          x

        d: " x\n"
        e: "x\r\ny"
        "#);
    }
}
