//! What there is to say about the values of a key.

use super::key::AnyKey;
use super::table::MOST;
use super::values::Number;

/// What values a key takes, as messages, the schema and the reference tell it.
#[derive(Clone)]
pub enum Kind {
    Flag,
    /// Both limits are included.
    Integer {
        least: i64,
        most: i64,
    },
    Number(Number),
    Str,
    Words(Vec<&'static str>),
    /// `count`: how many entries it has, if that is fixed; `most`: at most, if there is a limit.
    List {
        of: Box<Kind>,
        count: Option<usize>,
        most: Option<usize>,
    },
    Either(Vec<Kind>),
    /// A table with keys of its own.
    Table(&'static [&'static dyn AnyKey]),
    /// A table whose keys are the user's own names.
    Map(Box<Kind>),
    /// Any TOML value.
    Any,
    /// Nothing that a file may say.
    Never,
    /// One of several tables, as the word at their key `type` says: what they are called, the keys of all, and each.
    Variants(&'static str, &'static [&'static dyn AnyKey], fn() -> Vec<Variant>),
    /// What is described under this name, such as a layer.
    Named(&'static str),
}

/// One of several tables, told apart by a key that says which: an optimizer by its `type`, parameters by their plug-in.
#[derive(Clone, Copy)]
pub struct Variant {
    pub name: &'static str,
    /// What it is, in one line.
    pub doc: &'static str,
    /// Beside those that all variants have.
    pub keys: &'static [&'static dyn AnyKey],
}

impl Kind {
    /// A list of any length.
    pub fn list(of: Kind) -> Kind {
        Kind::List { of: Box::new(of), count: None, most: None }
    }

    /// In words, as behind "expected": "an integer from 1 to 9".
    pub fn words(&self) -> String {
        match self {
            Kind::Flag => "true or false".into(),
            Kind::Integer { least, most } => format!("an integer{}", limits(*least, *most)),
            Kind::Number(number) => format!("a number {}", number.limits()).trim_end().into(),
            Kind::Str => "a string".into(),
            Kind::Words(words) => {
                words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
            }
            Kind::List { of, count: None, most: None } => format!("a list: each {}", of.words()),
            Kind::List { of, count: None, most: Some(most) } => {
                format!("a list of {most} at most: each {}", of.words())
            }
            Kind::List { of, count: Some(count), .. } => format!("a list of {count}: each {}", of.words()),
            Kind::Either(kinds) => kinds.iter().map(Kind::words).collect::<Vec<_>>().join(", or "),
            Kind::Table(_) => "a table".into(),
            Kind::Map(of) => format!("a table of names of your own: each {}", of.words()),
            Kind::Any => "any value".into(),
            Kind::Never => "nothing in a file".into(),
            Kind::Variants(name, ..) | Kind::Named(name) => format!("a {name}"),
        }
    }
}

/// The far ends of a range are worth telling only where they are real limits.
fn limits(least: i64, most: i64) -> String {
    match (least, most) {
        (i64::MIN, MOST..) => String::new(),
        (least, MOST..) => format!(" of at least {least}"),
        (least, most) => format!(" from {least} to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::above;

    #[test]
    fn a_kind_says_what_it_takes() {
        assert_eq!(Kind::Integer { least: 1, most: 9 }.words(), "an integer from 1 to 9");
        assert_eq!(Kind::Integer { least: 1, most: MOST }.words(), "an integer of at least 1");
        assert_eq!(Kind::Number(above(0.0)).words(), "a number above 0");
        let list = Kind::List { of: Box::new(Kind::Str), count: Some(2), most: None };
        assert_eq!(
            Kind::Either(vec![Kind::Words(vec!["a", "b"]), list]).words(),
            "\"a\", \"b\", or a list of 2: each a string"
        );
    }
}
