//! A typed reader over merged values that goes on after an error.
//!
//! Reading returns `None` for what is wrong; it has then been reported.

use std::cell::RefCell;

use figment::value::{Dict, Value};

use super::error::{JobError, Origin, suggest};
use super::item::Item;
use super::key::{Absent, AnyKey, Key};
use super::merged::Merged;
use super::text;
use super::values::Values;

/// Sizes and counts in a job; far above any real one, and products of a few still fit 64 bits.
pub const MOST: i64 = i32::MAX as i64;

pub struct Reader<'a> {
    merged: &'a Merged,
    errors: RefCell<Vec<JobError>>,
}

/// A table whose known keys are those that have been asked for.
pub struct Table<'a> {
    reader: &'a Reader<'a>,
    pub path: String,
    dict: &'a Dict,
    /// Where it was begun, for what is missing in it.
    origin: Option<Origin>,
    asked: RefCell<Vec<&'static str>>,
}

static EMPTY: Dict = Dict::new();

impl<'a> Reader<'a> {
    pub fn new(merged: &'a Merged) -> Reader<'a> {
        Reader { merged, errors: RefCell::default() }
    }

    pub fn root(&'a self) -> Table<'a> {
        Table::new(self, String::new(), &self.merged.dict, None)
    }

    pub(super) fn merged(&self) -> &'a Merged {
        self.merged
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
    pub(super) fn new(
        reader: &'a Reader<'a>,
        path: String,
        dict: &'a Dict,
        origin: Option<Origin>,
    ) -> Table<'a> {
        Table { reader, path, dict, origin, asked: RefCell::default() }
    }

    /// The table that a bare word stands for.
    pub fn bare(item: &Item<'a>) -> Table<'a> {
        Table { origin: Some(item.origin()), ..Table::empty(item.reader, item.path.clone()) }
    }

    /// A table that nobody wrote, standing at `path`.
    fn empty(reader: &'a Reader<'a>, path: String) -> Table<'a> {
        Table::new(reader, path, &EMPTY, None)
    }

    pub fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    /// The value of a key as it is declared. `None`: it is wrong or missing, which has been reported.
    pub fn read<V: Values>(&self, key: &Key<V>) -> Option<V::Read> {
        if let Some(item) = self.item(key) {
            return key.values().read(&item);
        }
        match key.absent() {
            Absent::Nothing => key.values().absent(),
            Absent::Default(toml) => {
                let value = text::parse_value(toml).expect("a declared default is TOML");
                let path = text::join(&self.path, key.name());
                key.values().read(&Item { reader: self.reader, path, value: &value })
            }
            Absent::Wrong(example) => {
                self.missing(key.name(), format!("for example {} = {example}", key.name()));
                None
            }
        }
    }

    /// What is written at a key, for rules that span several keys and for their messages.
    pub fn item(&self, key: &dyn AnyKey) -> Option<Item<'a>> {
        self.get(key.name())
    }

    /// Reports each key that is none of these, and each that is known and refused.
    pub fn only(&self, keys: &[&dyn AnyKey]) {
        for (name, item) in self.entries() {
            match keys.iter().find(|key| key.name() == name).map(|key| key.kind()) {
                Some(Ok(_)) => {}
                Some(Err(hint)) => item.wrong("is an option that this version does not have", hint),
                None => self.unknown(name, &item, keys),
            }
        }
    }

    fn unknown(&self, name: &str, item: &Item<'_>, keys: &[&dyn AnyKey]) {
        let hint = match elsewhere(&self.path, name) {
            Some(place) => format!("did you mean `{place}`?"),
            None => {
                let known = keys.iter().filter(|key| key.kind().is_ok()).map(|key| key.name());
                suggest(name, "known keys", known.collect::<Vec<_>>())
            }
        };
        let error = JobError::new(format!("unknown key `{}`", item.path)).hint(hint);
        self.reader.report(error.from(item.origin()));
    }

    pub fn get(&self, key: &'static str) -> Option<Item<'a>> {
        self.asked.borrow_mut().push(key);
        self.dict.get(key).map(|value| self.entry(key, value))
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

    /// Records that a key is not there.
    pub fn missing(&self, key: &str, hint: impl Into<String>) {
        let error = JobError::new(format!("`{}` is missing", text::join(&self.path, key))).hint(hint);
        self.reader.report(match &self.origin {
            Some(origin) => error.from(origin.clone()),
            None => error,
        });
    }

    /// The value of a key that need not be there; `default` also stands in for a wrong one.
    pub fn or<T>(&self, key: &'static str, default: T, read: impl FnOnce(&Item<'a>) -> Option<T>) -> T {
        self.get(key).and_then(|item| read(&item)).unwrap_or(default)
    }

    /// A key that PyTorch has and this version has not.
    pub fn refuse(&self, key: &'static str, hint: &str) {
        if let Some(value) = self.dict.get(key) {
            self.asked.borrow_mut().push(key);
            self.entry(key, value).wrong("is an option that this version does not have", hint);
        }
    }

    /// A sub-table with known keys, or an empty one.
    pub fn section(&self, key: &'static str) -> Table<'a> {
        let table = self.get(key).and_then(|item| item.table());
        table.unwrap_or_else(|| Table::empty(self.reader, text::join(&self.path, key)))
    }

    /// All entries, for tables whose keys are names of the user's own.
    pub fn entries(&self) -> Vec<(&'a str, Item<'a>)> {
        self.dict.iter().map(|(key, value)| (key.as_str(), self.entry(key, value))).collect()
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
            let item = self.entry(key, value);
            let hint = match elsewhere(&self.path, key) {
                Some(place) => format!("did you mean `{place}`?"),
                None => suggest(key, "known keys", asked.iter().copied()),
            };
            let error = JobError::new(format!("unknown key `{}`", item.path)).hint(hint);
            self.reader.report(error.from(item.origin()));
        }
    }

    fn entry(&self, key: &str, value: &'a Value) -> Item<'a> {
        Item { reader: self.reader, path: text::join(&self.path, key), value }
    }
}

/// The section that has this very key, where the key was written in another.
fn elsewhere(path: &str, key: &str) -> Option<String> {
    const KEYS: [(&str, &str); 16] = [
        ("epochs", "train"),
        ("steps", "train"),
        ("batch_size", "train"),
        ("consistency", "train"),
        ("staleness", "train"),
        ("forward", "train"),
        ("local_steps", "train"),
        ("filter", "pull_push"),
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
