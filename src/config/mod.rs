//! Configuration: values from several sources with where each is from, read by declared keys.
//!
//! [`Merged`] is what the sources give together. A [`Table`] of it is read by [`Key`]s: a key is declared once, with its
//! name, what values it takes, its default and its meaning, and reading, messages, the JSON Schema and the reference
//! follow from that. What is wrong is reported to the [`Reader`], which goes on, so that all errors are told at once.
//!
//! Knows nothing of jobs: which keys there are is said by those who read them.

/// What a job's table says of a struct of options: its meaning, its keys, and how it is read by them. Each option has the name
/// of its key.
macro_rules! read_by_keys {
    ($doc:literal $name:ident { $($option:ident = $key:expr,)* }) => {
        impl $name {
            pub(super) const DOC: &'static str = $doc.trim_ascii();
            pub(super) const KEYS: &'static [&'static dyn $crate::config::AnyKey] = &[$(&$key,)*];

            pub(super) fn read(table: &$crate::config::Table<'_>) -> Option<$name> {
                let _ = table;
                // Each is read before any can fail, so that all that are wrong are told.
                $(let $option = table.read(&$key);)*
                Some($name { $($option: $option?,)* })
            }
        }
    };
}
pub(crate) use read_by_keys;

mod error;
mod float32;
mod item;
mod key;
mod kind;
mod merged;
pub mod reference;
pub mod schema;
pub mod show;
mod table;
pub mod text;
mod values;

pub use error::{JobError, JobErrors, Origin, did_you_mean, one_of, suggest};
pub use float32::fits_float32;
pub use item::Item;
pub use key::{Absent, AnyKey, Key, Refused, key, refused, section};
pub use kind::{Kind, Variant};
pub use merged::{Merged, Setting};
pub use table::{MOST, Reader, Table};
pub use values::{
    Array, By, ByHand, Flag, Integer, Keys, List, Number, Optional, Sizes, Str, Values, Words, above, array,
    at_least, between, by, by_hand, flag, integer, list, number, sizes, string, words,
};
