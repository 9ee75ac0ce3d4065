//! The declaration of a key: what follows from it is not said anywhere else.

use super::kind::Kind;
use super::table::Table;
use super::values::{self, Keys, Optional, Values};

/// One key of a table: its name, what values it takes, what it is without one, and what it means.
///
/// ```ignore
/// const EPOCHS: Key<Integer> = key("epochs", integer(1..=1_000_000)).default("1").doc("Passes over the training data.");
/// const PADDING_IDX: Key<Optional<Integer>> = key("padding_idx", integer(0..=MOST)).optional().doc("A row that stays.");
/// static KEYS: &[&dyn AnyKey] = &[&EPOCHS, &PADDING_IDX];
///
/// table.only(KEYS);
/// let epochs: Option<i64> = table.read(&EPOCHS);
/// let padding_idx: Option<Option<i64>> = table.read(&PADDING_IDX);
/// ```
///
/// Rules between keys (`nesterov` needs a momentum) are plain code behind the reading.
#[derive(Clone, Copy)]
pub struct Key<V> {
    name: &'static str,
    values: V,
    absent: Absent,
    doc: &'static str,
}

/// What a key is that nobody wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// An error, with this value as an example.
    Wrong(&'static str),
    /// An error in some tables, which other keys decide, with this value as an example.
    WrongAtTimes(&'static str),
    /// As if this had been written, as TOML or a bare word.
    Default(&'static str),
    /// Nothing, which is a value of its own.
    Nothing,
    /// A section without entries, whose own keys say what of it is needed.
    Empty,
}

/// A key that has to be there, with an [`example`](Key::example). [`Key::default`] and [`Key::optional`] say otherwise.
pub const fn key<V: Values + Copy>(name: &'static str, values: V) -> Key<V> {
    Key { name, values, absent: Absent::Wrong(""), doc: "" }
}

/// A table with these keys. One that nobody wrote is as one without entries.
pub const fn section(name: &'static str, keys: &'static [&'static dyn AnyKey]) -> Key<Keys> {
    Key { name, values: values::keys(keys), absent: Absent::Empty, doc: "" }
}

impl<V: Values + Copy> Key<V> {
    /// What a message shows where the key is missing, as TOML.
    pub const fn example(self, toml: &'static str) -> Key<V> {
        Key { absent: Absent::Wrong(toml), ..self }
    }

    /// Like [`Key::example`], for a key that is read only where others ask for it.
    pub const fn needed_at_times(self, toml: &'static str) -> Key<V> {
        Key { absent: Absent::WrongAtTimes(toml), ..self }
    }

    /// What counts where the key is missing: TOML or a bare word.
    pub const fn default(self, toml: &'static str) -> Key<V> {
        Key { absent: Absent::Default(toml), ..self }
    }

    /// The key need not be there, which reads as `None`.
    pub const fn optional(self) -> Key<Optional<V>> {
        Key { name: self.name, values: Optional(self.values), absent: Absent::Nothing, doc: self.doc }
    }

    /// What the key means, in one line.
    pub const fn doc(self, doc: &'static str) -> Key<V> {
        Key { doc, ..self }
    }

    /// The same key under another name.
    pub const fn named(self, name: &'static str) -> Key<V> {
        Key { name, ..self }
    }
}

impl<V> Key<V> {
    pub fn values(&self) -> &V {
        &self.values
    }
}

impl Key<Keys> {
    /// Those of this section.
    pub fn keys(&self) -> &'static [&'static dyn AnyKey] {
        self.values.keys()
    }
}

/// A key whatever its values are, as lists of keys have it.
pub trait AnyKey: Sync {
    fn name(&self) -> &'static str;

    fn absent(&self) -> Absent;

    fn doc(&self) -> &'static str;

    /// What values it takes; `Err` with a hint for a key that is known and refused.
    fn kind(&self) -> Result<Kind, &'static str>;

    /// Reports what is wrong with it in a table.
    fn check(&self, table: &Table<'_>);
}

impl<V: Values> AnyKey for Key<V> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn absent(&self) -> Absent {
        self.absent
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn kind(&self) -> Result<Kind, &'static str> {
        Ok(self.values.kind())
    }

    fn check(&self, table: &Table<'_>) {
        table.read(self);
    }
}

/// A key that PyTorch has and this version has not.
#[derive(Clone, Copy)]
pub struct Refused {
    name: &'static str,
    hint: &'static str,
}

/// `hint`: what to do instead.
pub const fn refused(name: &'static str, hint: &'static str) -> Refused {
    Refused { name, hint }
}

impl AnyKey for Refused {
    fn name(&self) -> &'static str {
        self.name
    }

    fn absent(&self) -> Absent {
        Absent::Nothing
    }

    fn doc(&self) -> &'static str {
        ""
    }

    fn kind(&self) -> Result<Kind, &'static str> {
        Err(self.hint)
    }

    fn check(&self, table: &Table<'_>) {
        if let Some(item) = table.item(self) {
            item.wrong("is an option that this version does not have", self.hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Array, Flag, Integer, List, Merged, Number, Reader, Sizes, Str, Words, above, array, at_least, flag,
        integer, list, sizes, string, words,
    };

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Colour {
        Red,
        Green,
    }

    const WIDTH: Key<Integer> = key("width", integer(1..=100)).example("64").doc("How wide.");
    const RATE: Key<Number> = key("rate", above(0.0)).default("1e-3").doc("How fast.");
    const BIAS: Key<Flag> = key("bias", flag()).default("true").doc("Whether there is one.");
    const NAME: Key<Optional<Str>> = key("name", string()).optional().doc("What it is called.");
    const COLOUR: Key<Words<Colour>> =
        key("colour", words(&[("red", Colour::Red), ("green", Colour::Green)]))
            .default("green")
            .doc("Which.");
    const BETAS: Key<Array<Number, 2>> =
        key("betas", array(at_least(0.0).below(1.0))).default("[0.9, 0.999]").doc("Two.");
    const KERNEL: Key<Sizes<2>> = key("kernel", sizes(1..=9)).default("3").doc("A window.");
    const MANY: Key<List<Integer>> = key("many", list(integer(0..=9))).default("[]").doc("Several.");
    static KEYS: &[&dyn AnyKey] =
        &[&WIDTH, &RATE, &BIAS, &NAME, &COLOUR, &BETAS, &KERNEL, &MANY, &refused("fused", "leave it out")];

    fn merged(text: &str) -> Merged {
        Merged::new(Default::default(), "x.toml", text, []).unwrap_or_else(|_| panic!("no TOML: {text}")).0
    }

    fn told(reader: Reader<'_>) -> Vec<String> {
        let line = |error: crate::config::JobError| {
            format!("{} ({})", error.message, error.hint.unwrap_or_default())
        };
        reader.into_errors().into_iter().map(line).collect()
    }

    #[test]
    fn a_key_that_is_missing_reads_as_its_default() {
        let merged = merged("");
        let reader = Reader::new(&merged, KEYS);
        let table = reader.root();
        table.only(KEYS);
        assert_eq!(table.read(&RATE), Some(1e-3));
        assert_eq!(table.read(&BIAS), Some(true));
        assert_eq!(table.read(&NAME), Some(None));
        assert_eq!(table.read(&COLOUR), Some(Colour::Green));
        assert_eq!(table.read(&BETAS), Some([0.9, 0.999]));
        assert_eq!(table.read(&KERNEL), Some([3, 3]));
        assert_eq!(table.read(&MANY), Some(vec![]));
        assert_eq!(table.read(&WIDTH), None);
        assert_eq!(told(reader), ["`width` is missing (for example width = 64)"]);
    }

    #[test]
    fn a_value_is_read_as_its_key_declares() {
        let merged = merged("width = 5\nname = 'n'\ncolour = 'red'\nkernel = [1, 2]\nmany = [1, 2]");
        let reader = Reader::new(&merged, KEYS);
        let table = reader.root();
        assert_eq!(table.read(&WIDTH), Some(5));
        assert_eq!(table.read(&NAME), Some(Some("n".into())));
        assert_eq!(table.read(&COLOUR), Some(Colour::Red));
        assert_eq!(table.read(&KERNEL), Some([1, 2]));
        assert_eq!(table.read(&MANY), Some(vec![1, 2]));
        assert_eq!(told(reader), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_reads_as_none_and_is_told_once() {
        let merged = merged("width = 0\nrate = 0\nbetas = [0.5]");
        let reader = Reader::new(&merged, KEYS);
        let table = reader.root();
        assert_eq!((table.read(&WIDTH), table.read(&RATE), table.read(&BETAS)), (None, None, None));
        assert_eq!(
            told(reader),
            [
                "`width` = 0 is below 1 (use an integer from 1 to 100)",
                "`rate` = 0 is not above 0 (use a number above 0)",
                "`betas` = [0.5] has 1 value, expected 2 (write a list of 2)",
            ]
        );
    }

    #[test]
    fn a_key_that_is_not_declared_is_refused_with_those_that_are() {
        let merged = merged("widht = 5\nfused = true\nzzz = 1");
        let reader = Reader::new(&merged, KEYS);
        reader.root().only(KEYS);
        assert_eq!(
            told(reader),
            [
                "`fused` = true is an option that this version does not have (leave it out)",
                "unknown key `widht` (did you mean `width`?)",
                "unknown key `zzz` (known keys: width, rate, bias, name, colour, betas, kernel, many)",
            ]
        );
    }
}
