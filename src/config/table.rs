//! A typed reader over merged values that goes on after an error.
//!
//! Reading returns `None` for what is wrong; it has then been reported.

use std::cell::RefCell;

use figment::value::{Dict, Value};

use super::error::{JobError, Origin, one_of, suggest};
use super::item::Item;
use super::key::{Absent, AnyKey, Key};
use super::kind::Kind;
use super::merged::Merged;
use super::text;
use super::values::{Keys, Values};

/// Sizes and counts in a job; far above any real one, and products of a few still fit 64 bits.
pub const MOST: i64 = i32::MAX as i64;

pub struct Reader<'a> {
    merged: &'a Merged,
    /// Those of the whole, to say where a misplaced one belongs.
    keys: &'static [&'static dyn AnyKey],
    errors: RefCell<Vec<JobError>>,
}

/// A table, read by declared keys.
pub struct Table<'a> {
    reader: &'a Reader<'a>,
    pub path: String,
    dict: &'a Dict,
    /// Where it was begun, for what is missing in it.
    origin: Option<Origin>,
}

/// Is there such a key, one that is not refused?
fn has(keys: &[&dyn AnyKey], name: &str) -> bool {
    keys.iter().any(|key| key.name() == name && key.kind().is_ok())
}

static EMPTY: Dict = Dict::new();

impl<'a> Reader<'a> {
    /// `keys`: those of the outermost table.
    pub fn new(merged: &'a Merged, keys: &'static [&'static dyn AnyKey]) -> Reader<'a> {
        Reader { merged, keys, errors: RefCell::default() }
    }

    pub fn root(&'a self) -> Table<'a> {
        Table::new(self, String::new(), &self.merged.dict, None)
    }

    pub(super) fn merged(&self) -> &'a Merged {
        self.merged
    }

    /// The sections that have a key of this name.
    fn sections_with<'n>(&self, name: &'n str) -> impl Iterator<Item = &'static str> + use<'n> {
        let knows = move |section: &&&dyn AnyKey| match section.kind() {
            Ok(Kind::Table(keys)) => has(keys, name),
            Ok(Kind::Variants(_, common, variants)) => {
                has(common, name) || variants().iter().any(|variant| has(variant.keys, name))
            }
            Ok(_) | Err(_) => false,
        };
        self.keys.iter().filter(knows).map(|section| section.name())
    }

    /// What a variable was meant to be called whose name has one underscore where two belong.
    fn variable(&self, origin: &Origin, name: &str) -> Option<String> {
        let Origin::Environment { variable } = origin else { return None };
        let prefix = &variable[..variable.len().checked_sub(name.len())?];
        let within = |section: &dyn AnyKey| {
            let key = name.strip_prefix(section.name())?.strip_prefix('_')?;
            Some(format!("{prefix}{}__{}", section.name().to_uppercase(), key.to_uppercase()))
        };
        let meant = self.keys.iter().find_map(|section| within(*section)).or_else(|| {
            let section = self.sections_with(name).next()?;
            Some(format!("{prefix}{}__{}", section.to_uppercase(), name.to_uppercase()))
        })?;
        Some(format!("two underscores separate section and key: {meant}"))
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
        Table { reader, path, dict, origin }
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
            Absent::Nothing | Absent::Empty => key.values().absent(),
            Absent::Default(toml) => {
                let value = text::parse_value(toml).expect("a declared default is TOML");
                let path = text::join(&self.path, key.name());
                key.values().read(&Item { reader: self.reader, path, value: &value })
            }
            Absent::Wrong(example) | Absent::WrongAtTimes(example) => {
                self.missing(key.name(), format!("for example {} = {example}", key.name()));
                None
            }
        }
    }

    /// What is written at a key, for rules that span several keys and for their messages.
    pub fn item(&self, key: &dyn AnyKey) -> Option<Item<'a>> {
        self.dict.get(key.name()).map(|value| self.entry(key.name(), value))
    }

    /// What is written at a key that has to be there; it is reported where it is not.
    pub fn need_item(&self, key: &dyn AnyKey) -> Option<Item<'a>> {
        let item = self.item(key);
        if let (None, Absent::Wrong(example) | Absent::WrongAtTimes(example)) = (&item, key.absent()) {
            self.missing(key.name(), format!("for example {} = {example}", key.name()));
        }
        item
    }

    /// A section, or an empty one, with what it has that it should not reported.
    pub fn open(&self, key: &Key<Keys>) -> Table<'a> {
        if let Some(item) = self.item(key) {
            key.values().read(&item);
        }
        self.section(key)
    }

    /// A section that has been opened.
    pub fn section(&self, key: &dyn AnyKey) -> Table<'a> {
        let path = text::join(&self.path, key.name());
        match self.item(key).map(|item| (item.value, item.begin())) {
            Some((Value::Dict(_, dict), origin)) => Table::new(self.reader, path, dict, origin),
            _ => Table::empty(self.reader, path),
        }
    }

    /// This table with nothing in it: what it reads as where it does not count.
    pub fn emptied(&self) -> Table<'a> {
        Table::empty(self.reader, self.path.clone())
    }

    /// Reports each key that is none of these, and each that is known and refused.
    pub fn only(&self, keys: &[&dyn AnyKey]) {
        for (name, item) in self.entries() {
            match keys.iter().find(|key| key.name() == name) {
                Some(key) if key.kind().is_ok() => {}
                Some(refused) => refused.check(self),
                None => self.unknown(name, &item, keys),
            }
        }
    }

    /// Reports all that is wrong with a table that somebody else will use.
    pub fn check_all(&self, keys: &[&dyn AnyKey]) {
        self.only(keys);
        keys.iter().filter(|key| key.kind().is_ok()).for_each(|key| key.check(self));
    }

    fn unknown(&self, name: &str, item: &Item<'_>, keys: &[&dyn AnyKey]) {
        let hint = self.reader.variable(&item.origin(), name).or_else(|| self.elsewhere(name));
        let hint = hint.unwrap_or_else(|| {
            let known = keys.iter().filter(|key| key.kind().is_ok()).map(|key| key.name());
            suggest(name, "known keys", known.collect::<Vec<_>>())
        });
        let error = JobError::new(format!("unknown key `{}`", item.path)).hint(hint);
        self.reader.report(error.from(item.origin()));
    }

    /// The sections that have this very key, where it is written in another.
    fn elsewhere(&self, name: &str) -> Option<String> {
        if self.path.contains('.') {
            return None;
        }
        // A section may take it at other times, as the optimizers of other types do.
        let here = format!("`{}.{name}`", self.path);
        let places = self.reader.sections_with(name).map(|section| format!("`{section}.{name}`"));
        let places: Vec<String> = places.filter(|place| *place != here).collect();
        (!places.is_empty()).then(|| format!("did you mean {}?", one_of(places.iter().map(String::as_str))))
    }

    /// Records that a key is not there.
    pub fn missing(&self, key: &str, hint: impl Into<String>) {
        let error = JobError::new(format!("`{}` is missing", text::join(&self.path, key))).hint(hint);
        self.reader.report(match &self.origin {
            Some(origin) => error.from(origin.clone()),
            None => error,
        });
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

    fn entry(&self, key: &str, value: &'a Value) -> Item<'a> {
        Item { reader: self.reader, path: text::join(&self.path, key), value }
    }
}
