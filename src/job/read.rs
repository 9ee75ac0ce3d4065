//! A typed reader over merged values that goes on after an error and knows which keys were asked for.
//!
//! Reading returns `None` for what is not there and for what is wrong; the wrong has then been recorded.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use figment::value::{Dict, Num, Value};

use super::error::{JobError, one_of, suggest};
use super::sources::Merged;
use super::text;

/// Sizes and counts in a job; far above any real one, and products of a few still fit 64 bits.
pub(super) const MOST: i64 = i32::MAX as i64;

pub(super) struct Reader<'a> {
    merged: &'a Merged,
    errors: RefCell<Vec<JobError>>,
}

/// A value and the key it stands at.
pub(super) struct Item<'a> {
    reader: &'a Reader<'a>,
    pub path: String,
    value: &'a Value,
}

/// A table whose known keys are those that have been asked for.
pub(super) struct Table<'a> {
    reader: &'a Reader<'a>,
    pub path: String,
    dict: &'a Dict,
    asked: RefCell<Vec<&'static str>>,
}

static EMPTY: Dict = Dict::new();

impl<'a> Reader<'a> {
    pub fn new(merged: &'a Merged) -> Reader<'a> {
        Reader { merged, errors: RefCell::default() }
    }

    pub fn root(&'a self) -> Table<'a> {
        Table { reader: self, path: String::new(), dict: &self.merged.dict, asked: RefCell::default() }
    }

    pub fn report(&self, error: JobError) {
        self.errors.borrow_mut().push(error);
    }

    /// How many errors there are so far: what is built from values read without a new one is sound.
    pub fn errors(&self) -> usize {
        self.errors.borrow().len()
    }

    pub fn into_errors(self) -> Vec<JobError> {
        self.errors.into_inner()
    }
}

impl<'a> Table<'a> {
    /// A table that nobody wrote, standing at `path`.
    pub fn empty(reader: &'a Reader<'a>, path: String) -> Table<'a> {
        Table { reader, path, dict: &EMPTY, asked: RefCell::default() }
    }

    pub fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    pub fn get(&self, key: &'static str) -> Option<Item<'a>> {
        self.asked.borrow_mut().push(key);
        self.dict.get(key).map(|value| self.item(key, value))
    }

    /// The value of a key that has to be there.
    pub fn need<T>(
        &self,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&Item<'a>) -> Option<T>,
    ) -> Option<T> {
        match self.get(key) {
            Some(item) => read(&item),
            None => {
                let path = text::join(&self.path, key);
                self.reader.report(
                    JobError::new(format!("`{path}` is missing"))
                        .hint(format!("for example {key} = {example}")),
                );
                None
            }
        }
    }

    /// The value of a key that need not be there; `default` also stands in for a wrong one.
    pub fn or<T>(&self, key: &'static str, default: T, read: impl FnOnce(&Item<'a>) -> Option<T>) -> T {
        self.get(key).and_then(|item| read(&item)).unwrap_or(default)
    }

    /// A key that PyTorch has and this version has not.
    pub fn refuse(&self, key: &'static str, hint: &str) {
        if let Some(value) = self.dict.get(key) {
            self.asked.borrow_mut().push(key);
            self.item(key, value).wrong("is an option that this version does not have", hint);
        }
    }

    /// A sub-table with known keys, or an empty one.
    pub fn section(&self, key: &'static str) -> Table<'a> {
        let table = self.get(key).and_then(|item| item.table());
        table.unwrap_or_else(|| Table::empty(self.reader, text::join(&self.path, key)))
    }

    /// All entries, for tables whose keys are names of the user's own.
    pub fn entries(&self) -> Vec<(&'a str, Item<'a>)> {
        self.dict.iter().map(|(key, value)| (key.as_str(), self.item(key, value))).collect()
    }

    /// Entries in the order of the file; those from elsewhere after them, by name.
    pub fn entries_as_written(&self) -> Vec<(&'a str, Item<'a>)> {
        let places = &self.reader.merged.places;
        let mut entries = self.entries();
        entries.sort_by_key(|(_, item)| places.offset(&item.path).unwrap_or(usize::MAX));
        entries
    }

    /// Records each key that nobody asked for. The end of reading a table.
    pub fn finish(self) {
        self.check();
    }

    /// Like [`Table::finish`], for a table that is still needed.
    pub fn check(&self) {
        let asked = self.asked.borrow();
        for (key, value) in self.dict.iter().filter(|(key, _)| !asked.contains(&key.as_str())) {
            let item = self.item(key, value);
            let hint = match elsewhere(&self.path, key) {
                Some(place) => format!("did you mean `{place}`?"),
                None => suggest(key, "known keys", asked.iter().copied()),
            };
            let error = JobError::new(format!("unknown key `{}`", item.path)).hint(hint);
            self.reader.report(error.from(item.origin()));
        }
    }

    fn item(&self, key: &str, value: &'a Value) -> Item<'a> {
        Item { reader: self.reader, path: text::join(&self.path, key), value }
    }
}

/// The section that has this very key, where the key was written in another.
fn elsewhere(path: &str, key: &str) -> Option<String> {
    const KEYS: [(&str, &str); 14] = [
        ("epochs", "train"),
        ("steps", "train"),
        ("batch_size", "train"),
        ("consistency", "train"),
        ("staleness", "train"),
        ("forward", "train"),
        ("lr", "optimizer"),
        ("momentum", "optimizer"),
        ("weight_decay", "optimizer"),
        ("root", "data"),
        ("shuffle", "data"),
        ("world_size", "cluster"),
        ("master_addr", "cluster"),
        ("num_gpus", "cluster"),
    ];
    KEYS.iter()
        .find(|(name, section)| !path.contains('.') && *name == key && *section != path)
        .map(|(name, section)| format!("{section}.{name}"))
}

impl<'a> Item<'a> {
    pub fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    pub fn value(&self) -> &'a Value {
        self.value
    }

    pub fn origin(&self) -> super::error::Origin {
        self.reader.merged.origin(self.value.tag(), &self.path)
    }

    /// The key and its value, as a message begins.
    pub fn shown(&self) -> String {
        format!("`{}` = {}", self.path, shorten(self.value))
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

    fn mistyped<T>(&self, wanted: &str) -> Option<T> {
        let error = self.error(format!("is {}, where {wanted} is wanted", kind(self.value)));
        // A number in quotes is the commonest slip, and the cure is the value itself.
        let unquoted = self.value.as_str().filter(|text| {
            !wanted.contains("string") && text::parse_value(text).is_ok_and(|value| value.as_str().is_none())
        });
        self.reader.report(match unquoted {
            Some(text) => error.hint(format!("write it without quotes: {text}")),
            None => error,
        });
        None
    }

    pub fn integer(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let Some(integer) = whole(self.value) else { return self.mistyped("a whole number") };
        let (least, most) = (*range.start(), *range.end());
        if integer >= i128::from(least) && integer <= i128::from(most) {
            return i64::try_from(integer).ok();
        }
        let limit = match most {
            i64::MAX if integer > 0 => format!("it may be at most {most}"),
            i64::MAX | MOST if integer < i128::from(least) => format!("it must be at least {least}"),
            most => format!("it must be from {least} to {most}"),
        };
        self.reader.report(self.error(format!("is out of range: {limit}")));
        None
    }

    /// A finite number.
    pub fn number(&self) -> Option<f64> {
        let number = match self.value {
            Value::Num(_, Num::F64(number)) => *number,
            // TOML's `1` is a fine learning rate.
            value => match whole(value) {
                Some(integer) => integer as f64,
                None => return self.mistyped("a number"),
            },
        };
        if !number.is_finite() {
            self.reader.report(self.error("is not a finite number"));
            return None;
        }
        Some(number)
    }

    /// A finite number that `fits`; `limit` says which do, as in "it must be above 0".
    pub fn number_that(&self, fits: impl FnOnce(f64) -> bool, limit: &str) -> Option<f64> {
        let number = self.number()?;
        if fits(number) {
            return Some(number);
        }
        self.reader.report(self.error(format!("is out of range: {limit}")));
        None
    }

    /// From 0 to 1, both included.
    pub fn probability(&self) -> Option<f64> {
        self.number_that(|p| (0.0..=1.0).contains(&p), "it must be from 0 to 1")
    }

    pub fn flag(&self) -> Option<bool> {
        match self.value {
            Value::Bool(_, flag) => Some(*flag),
            _ => self.mistyped("true or false (without quotes)"),
        }
    }

    pub fn text(&self) -> Option<&'a str> {
        match self.value {
            Value::String(_, text) => Some(text),
            _ => self.mistyped("a string"),
        }
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let word = self.text()?;
        let choice = choices.iter().find(|(name, _)| *name == word).map(|(_, choice)| *choice);
        if choice.is_none() {
            let names = choices.iter().map(|(name, _)| *name);
            let hint = suggest(word, "use", names.clone());
            self.wrong(format!("is none of {}", one_of(names)), hint);
        }
        choice
    }

    pub fn list(&self) -> Option<Vec<Item<'a>>> {
        let Value::Array(_, entries) = self.value else { return self.mistyped("a list") };
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
                format!("has {given} entries, where {N} are wanted"),
                format!("write one number or a list of {N}"),
            );
        }
        sizes
    }

    pub fn table(&self) -> Option<Table<'a>> {
        let Value::Dict(_, dict) = self.value else { return self.mistyped("a table") };
        Some(Table { reader: self.reader, path: self.path.clone(), dict, asked: RefCell::default() })
    }

    /// A table of the user's own as JSON, for a plug-in.
    pub fn json(&self) -> Option<serde_json::Value> {
        use serde_json::Value as Json;
        Some(match self.value {
            Value::String(_, text) => Json::from(text.as_str()),
            Value::Bool(_, flag) => Json::from(*flag),
            Value::Num(_, Num::F64(_)) => Json::from(self.number()?),
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
            Value::Char(..) | Value::Empty(..) => return self.mistyped("a TOML value"),
        })
    }

    /// Like [`Item::json`], for a key that wants a table.
    pub fn json_table(&self) -> Option<serde_json::Value> {
        match self.value {
            Value::Dict(..) => self.json(),
            _ => self.mistyped("a table"),
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

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "a string",
        Value::Bool(..) => "a boolean",
        Value::Num(_, Num::F64(_) | Num::F32(_)) => "a number with a fraction",
        Value::Num(..) => "a whole number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a table",
        Value::Array(..) => "a list",
    }
}

/// The value as it is written, cut to what reads well in a message.
fn shorten(value: &Value) -> String {
    const LENGTH: usize = 60;
    let written = super::resolved::inline(value);
    match written.char_indices().nth(LENGTH) {
        Some((cut, _)) => format!("{} ...", &written[..cut]),
        None => written,
    }
}
