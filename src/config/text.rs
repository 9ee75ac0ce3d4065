//! TOML text to figment values, with the place of each key, which figment itself does not keep.

use std::collections::BTreeMap;

use figment::value::{Dict, Num, Tag, Value};
use toml::de::{DeTable, DeValue};

/// A parsed text. Values carry figment's default tag: the figment that takes them sets its own.
pub struct Parsed {
    pub dict: Dict,
    pub places: Places,
}

/// Byte offsets of keys and list entries, by dotted path.
#[derive(Default)]
pub struct Places {
    offsets: BTreeMap<String, usize>,
    /// Offset at which each line starts.
    lines: Vec<usize>,
}

/// What is not TOML. Line and column count from 1.
pub struct SyntaxError {
    pub line: usize,
    pub column: usize,
    pub message: String,
    /// The line itself, cut to what fits a terminal.
    pub excerpt: String,
}

pub fn parse(text: &str) -> Result<Parsed, Box<SyntaxError>> {
    let mut places = Places { offsets: BTreeMap::new(), lines: line_starts(text) };
    // The parser recovers and could name more, but what follows a first slip is mostly its echo.
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(text.len(), |span| span.start);
        let (line, column) = places.line_and_column(text, offset);
        let excerpt = text.lines().nth(line - 1).unwrap_or_default().chars().take(100).collect();
        Box::new(SyntaxError { line, column, message: error.message().to_owned(), excerpt })
    })?;
    let dict = places.table("", table.get_ref());
    Ok(Parsed { dict, places })
}

/// One TOML value, as after `KEY=` on the command line; a bare word that is not TOML is a string.
///
/// # Errors
/// The parser's message, if the text starts like a list, a table or a quoted string and is none.
pub fn parse_value(text: &str) -> Result<Value, String> {
    let text = text.trim();
    match DeValue::parse(text) {
        Ok(value) => Ok(Places::default().value("", value.get_ref())),
        Err(error) if text.starts_with(['[', '{', '"', '\'']) => Err(error.message().to_owned()),
        Err(_) => Ok(Value::from(text)),
    }
}

/// `prefix.key`, with quotes where TOML would need them.
pub fn join(prefix: &str, key: &str) -> String {
    let key = key_text(key);
    if prefix.is_empty() { key } else { format!("{prefix}.{key}") }
}

/// The key as it is written in TOML.
pub fn key_text(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) { key.into() } else { string_text(key) }
}

/// The string as it is written in TOML, in one line.
pub fn string_text(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 2);
    written.push('"');
    for c in text.chars() {
        match c {
            '"' => written.push_str("\\\""),
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\t' => written.push_str("\\t"),
            c if c.is_control() => written.push_str(&format!("\\u{:04X}", c as u32)),
            c => written.push(c),
        }
    }
    written.push('"');
    written
}

impl Places {
    /// The line of the key, counted from 1.
    pub fn line(&self, path: &str) -> Option<usize> {
        self.offsets.get(path).map(|offset| self.lines.partition_point(|start| start <= offset))
    }

    /// Where in the text the key stands, for putting keys into the order of the text.
    pub fn offset(&self, path: &str) -> Option<usize> {
        self.offsets.get(path).copied()
    }

    fn line_and_column(&self, text: &str, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines[line - 1];
        let column = text.get(start..offset).map_or(offset - start, |before| before.chars().count());
        (line, column + 1)
    }

    fn table(&mut self, path: &str, table: &DeTable<'_>) -> Dict {
        let mut dict = Dict::new();
        for (key, value) in table {
            let path = join(path, key.get_ref());
            self.offsets.insert(path.clone(), key.span().start);
            dict.insert(key.get_ref().to_string(), self.value(&path, value.get_ref()));
        }
        dict
    }

    fn value(&mut self, path: &str, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::from(text.to_string()),
            DeValue::Integer(integer) => integer_value(integer.as_str(), integer.radix()),
            // The parser has checked the form; what overflows becomes infinite and is refused by its reader.
            DeValue::Float(float) => Value::from(float.as_str().parse::<f64>().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Value::from(*flag),
            DeValue::Datetime(time) => Value::from(time.to_string()),
            DeValue::Array(entries) => {
                let mut values = Vec::with_capacity(entries.len());
                for (index, entry) in entries.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    self.offsets.insert(path.clone(), entry.span().start);
                    values.push(self.value(&path, entry.get_ref()));
                }
                Value::Array(Tag::Default, values)
            }
            DeValue::Table(table) => Value::Dict(Tag::Default, self.table(path, table)),
        }
    }
}

fn integer_value(digits: &str, radix: u32) -> Value {
    match i64::from_str_radix(digits, radix) {
        Ok(integer) => Value::from(integer),
        // Too large for TOML. Kept as large as it is, so that its reader can name it with its key.
        Err(_) => {
            Value::Num(Tag::Default, Num::I128(i128::from_str_radix(digits, radix).unwrap_or(i128::MAX)))
        }
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_and_each_entry_of_a_list_knows_its_line() {
        let text = "a = 1\n[b]\nc = [\n  1,\n  { d = 2 },\n]\n";
        let places = parse(text).ok().expect("TOML").places;
        let line = |path: &str| places.line(path);
        assert_eq!(line("a"), Some(1));
        assert_eq!(line("b"), Some(2));
        assert_eq!(line("b.c"), Some(3));
        assert_eq!(line("b.c[0]"), Some(4));
        assert_eq!(line("b.c[1].d"), Some(5));
        assert_eq!(line("b.e"), None);
    }

    #[test]
    fn a_syntax_error_names_its_line_and_column() {
        let error = parse("a = 1\nb = = 2\n").err().expect("not TOML");
        assert_eq!((error.line, error.column), (2, 5));
        assert_eq!(error.excerpt, "b = = 2");
    }

    #[test]
    fn a_bare_word_is_a_string_and_a_broken_list_is_an_error() {
        assert_eq!(parse_value("../data/mnist"), Ok(Value::from("../data/mnist")));
        assert_eq!(parse_value("3e-2"), Ok(Value::from(0.03)));
        assert_eq!(parse_value("true"), Ok(Value::from(true)));
        assert_eq!(parse_value("10.0.0.1"), Ok(Value::from("10.0.0.1")));
        assert_eq!(parse_value(""), Ok(Value::from("")));
        assert!(parse_value("[1, 2").is_err());
        assert!(parse_value("\"open").is_err());
    }
}
