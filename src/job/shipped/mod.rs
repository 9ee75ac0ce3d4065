//! The plug-ins inside the program: what they are and which parameters they take. `check` refuses others, and the schema and
//! the reference tell of these.

mod datasets;
mod losses;

use crate::config::{AnyKey, Variant};

pub use datasets::DATASETS;
pub use losses::LOSSES;

/// One of them.
pub struct Shipped {
    pub name: &'static str,
    /// What it is, in one line.
    pub doc: &'static str,
    /// The fields of a dataset, or what a loss expects and measures.
    pub tensors: &'static str,
    /// Its parameters: in `data.train` and `data.test`, or in `loss.params`.
    pub keys: &'static [&'static dyn AnyKey],
    /// Those of them that name files in `data.root`.
    pub files: &'static [&'static str],
}

/// Data inside the program: what may stand after `builtin:` in `data.root`.
pub const BUILTIN_DATA: [&str; 2] = ["digits", "digit_images"];

impl Shipped {
    /// Its parameters as one of several tables.
    pub(super) fn variant(&self) -> Variant {
        Variant { name: self.name, doc: self.doc, keys: self.keys }
    }
}

pub(super) fn names(all: &'static [Shipped]) -> Vec<&'static str> {
    all.iter().map(|shipped| shipped.name).collect()
}

pub fn find(all: &'static [Shipped], name: &str) -> Option<&'static Shipped> {
    all.iter().find(|shipped| shipped.name == name)
}
