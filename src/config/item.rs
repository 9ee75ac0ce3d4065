//! One value with its key: what type it has to have, and the error where it has not.

use std::ops::RangeInclusive;

use figment::value::{Num, Value};

use super::error::{JobError, Origin, did_you_mean, one_of};
use super::float32::fits_float32;
use super::kind::Kind;
use super::table::{MOST, Reader, Table};
use super::{show, text};
use crate::human::counted;

const STRING: &str = "a string";
const TABLE: &str = "{ key = \"value\" }";

/// A value and the key it stands at.
#[derive(Clone)]
pub struct Item<'a> {
    pub(super) reader: &'a Reader<'a>,
    pub path: String,
    pub(super) value: &'a Value,
}

impl<'a> Item<'a> {
    pub fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    pub fn value(&self) -> &'a Value {
        self.value
    }

    pub fn is_table(&self) -> bool {
        matches!(self.value, Value::Dict(..))
    }

    pub fn is_list(&self) -> bool {
        matches!(self.value, Value::Array(..))
    }

    pub fn origin(&self) -> Origin {
        self.reader.merged().origin(self.value.tag(), &self.path)
    }

    /// Where this table begins.
    pub(super) fn begin(&self) -> Option<Origin> {
        // A section is merged from many sources; what counts is where the file has it. A table in a list is
        // of one source, as lists are replaced as a whole.
        let merged = &self.reader.merged();
        match self.path.contains('[') {
            true => Some(self.origin()),
            false => merged
                .places
                .line(&self.path)
                .map(|line| Origin::File { name: merged.file.clone(), line: Some(line) }),
        }
    }

    /// The key and its value, as a message begins.
    pub fn shown(&self) -> String {
        format!("`{}` = {}", self.path, shorten(self.value))
    }

    /// Does any layer but the defaults say something of it?
    pub fn is_written(&self) -> bool {
        match self.value {
            Value::Dict(_, dict) => dict.iter().any(|(key, value)| {
                Item { reader: self.reader, path: text::join(&self.path, key), value }.is_written()
            }),
            _ => self.origin() != Origin::Default,
        }
    }

    /// An error about this value, for the caller to complete and report.
    pub fn error(&self, problem: impl std::fmt::Display) -> JobError {
        JobError::new(format!("{} {problem}", self.shown())).from(self.origin())
    }

    /// Like [`Item::error`], for values too large to show.
    pub fn error_without_value(&self, problem: impl std::fmt::Display) -> JobError {
        JobError::new(format!("`{}` {problem}", self.path)).from(self.origin())
    }

    /// The layer at a position of this list, a position in the list of each residual on the way.
    pub fn at(&self, position: &[usize]) -> Option<Item<'a>> {
        let (first, rest) = position.split_first()?;
        let Value::Array(_, entries) = self.value else { return None };
        let path = format!("{}[{first}]", self.path);
        let value = entries.get(*first)?;
        if rest.is_empty() {
            return Some(Item { reader: self.reader, path, value });
        }
        let inner = value.as_dict()?.get("layers")?;
        Item { reader: self.reader, path: text::join(&path, "layers"), value: inner }.at(rest)
    }

    pub fn wrong(&self, problem: impl std::fmt::Display, hint: impl Into<String>) {
        self.reader.report(self.error(problem).hint(hint));
    }

    /// Reports a value of another type, with one of the right type as an example.
    fn mistyped<T>(&self, expected: &str, example: &str) -> Option<T> {
        let found = shorten(self.value);
        let error = JobError::new(format!("`{}`: expected {expected}, found {found}", self.path));
        // A number in quotes is the commonest slip, and the cure is the value itself.
        let unquoted = self.value.as_str().filter(|text| {
            expected != STRING && text::parse_value(text).is_ok_and(|value| value.as_str().is_none())
        });
        self.reader.report(error.from(self.origin()).hint(match unquoted {
            Some(text) => format!("write it without quotes: {text}"),
            None => format!("for example {example}"),
        }));
        None
    }

    pub fn integer(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let (least, most) = (*range.start(), *range.end());
        let Some(integer) = whole(self.value) else {
            return self.mistyped(&Kind::Integer { least, most }.words(), &4.clamp(least, most).to_string());
        };
        let problem = match integer {
            integer if integer < i128::from(least) => format!("is below {least}"),
            integer if integer > i128::from(most) => format!("is above {most}"),
            integer => return i64::try_from(integer).ok(),
        };
        // The far end of a range is worth telling only where it is a real limit.
        let hint = match most {
            MOST.. if integer < i128::from(least) => format!("use at least {least}"),
            most => format!("use an integer from {least} to {most}"),
        };
        self.wrong(problem, hint);
        None
    }

    /// A number that float32 has: what a job says becomes tensors.
    pub fn number(&self) -> Option<f64> {
        let number = self.finite()?;
        if let Err((problem, hint)) = fits_float32(number) {
            self.wrong(problem, hint);
            return None;
        }
        Some(number)
    }

    /// A finite number.
    fn finite(&self) -> Option<f64> {
        let number = match self.value {
            Value::Num(_, Num::F64(number)) => *number,
            // TOML's `1` is a fine learning rate.
            value => match whole(value) {
                Some(integer) => integer as f64,
                None => return self.mistyped("a number", "0.1"),
            },
        };
        if !number.is_finite() {
            self.wrong("is not a finite number", "a job has no use for nan and inf");
            return None;
        }
        Some(number)
    }

    /// A finite number that `fits`; `limit` says which do, as in "above 0".
    pub fn number_that(&self, fits: impl FnOnce(f64) -> bool, limit: &str) -> Option<f64> {
        let number = self.number()?;
        if fits(number) {
            return Some(number);
        }
        self.wrong(format!("is not {limit}"), format!("use a number {limit}"));
        None
    }

    pub fn flag(&self) -> Option<bool> {
        match self.value {
            Value::Bool(_, flag) => Some(*flag),
            _ => self.mistyped("true or false", "true"),
        }
    }

    pub fn text(&self) -> Option<&'a str> {
        match self.value {
            Value::String(_, text) => Some(text),
            _ => self.mistyped(STRING, "\"text\""),
        }
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let word = self.text()?;
        let choice = choices.iter().find(|(name, _)| *name == word).map(|(_, choice)| *choice);
        if choice.is_none() {
            let names = choices.iter().map(|(name, _)| *name);
            let hint = match did_you_mean(word, names.clone()) {
                Some(name) => format!("did you mean \"{name}\"?"),
                None => format!("for example \"{}\"", choices[0].0),
            };
            self.wrong(format!("is not one of {}", one_of(names)), hint);
        }
        choice
    }

    pub fn list(&self) -> Option<Vec<Item<'a>>> {
        let Value::Array(_, entries) = self.value else { return self.mistyped("a list", "[1, 2]") };
        let entry =
            |(index, value)| Item { reader: self.reader, path: format!("{}[{index}]", self.path), value };
        Some(entries.iter().enumerate().map(entry).collect())
    }

    pub fn integers(&self, range: RangeInclusive<i64>) -> Option<Vec<i64>> {
        let read: Vec<_> = self.list()?.iter().map(|entry| entry.integer(range.clone())).collect();
        read.into_iter().collect()
    }

    pub fn strings(&self) -> Option<Vec<String>> {
        let read: Vec<_> = self.list()?.iter().map(|entry| entry.text().map(str::to_owned)).collect();
        read.into_iter().collect()
    }

    /// One number for all `N` dimensions, or a list of `N`.
    pub fn sizes<const N: usize>(&self, range: RangeInclusive<i64>) -> Option<[i64; N]> {
        if !matches!(self.value, Value::Array(..)) {
            return self.integer(range).map(|size| [size; N]);
        }
        let sizes = self.integers(range)?;
        let given = sizes.len();
        let sizes = sizes.try_into().ok();
        if sizes.is_none() {
            self.wrong(
                format!("has {}, expected {N}", counted(given as u64, "value")),
                format!("write one number or a list of {N}"),
            );
        }
        sizes
    }

    pub fn table(&self) -> Option<Table<'a>> {
        let Value::Dict(_, dict) = self.value else { return self.mistyped("a table", TABLE) };
        Some(Table::new(self.reader, self.path.clone(), dict, self.begin()))
    }

    /// A table of the user's own as JSON, for a plug-in.
    pub fn json(&self) -> Option<serde_json::Value> {
        use serde_json::Value as Json;
        Some(match self.value {
            Value::String(_, text) => Json::from(text.as_str()),
            Value::Bool(_, flag) => Json::from(*flag),
            Value::Num(_, Num::F64(_)) => Json::from(self.finite()?),
            Value::Num(..) => Json::from(self.integer(i64::MIN..=i64::MAX)?),
            Value::Array(..) => {
                let read: Vec<_> = self.list()?.iter().map(Item::json).collect();
                Json::Array(read.into_iter().collect::<Option<_>>()?)
            }
            Value::Dict(..) => {
                let entries = self.table()?.entries();
                let read: Vec<_> =
                    entries.iter().map(|(key, item)| Some(((*key).to_owned(), item.json()?))).collect();
                Json::Object(read.into_iter().collect::<Option<_>>()?)
            }
            Value::Char(..) | Value::Empty(..) => return self.mistyped("a TOML value", "1"),
        })
    }

    /// Like [`Item::json`], for a key that wants a table.
    pub fn json_table(&self) -> Option<serde_json::Value> {
        match self.value {
            Value::Dict(..) => self.json(),
            _ => self.mistyped("a table", TABLE),
        }
    }
}

fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Num(_, Num::F64(_) | Num::F32(_)) => None,
        Value::Num(_, num) => num.to_i128().or_else(|| num.to_u128().and_then(|n| i128::try_from(n).ok())),
        _ => None,
    }
}

/// The value as it is written, cut to what reads well in a message.
fn shorten(value: &Value) -> String {
    const LENGTH: usize = 60;
    let written = show::inline(value);
    match written.char_indices().nth(LENGTH) {
        Some((cut, _)) => format!("{} ...", &written[..cut]),
        None => written,
    }
}
