//! What a module, or the loss, says that it takes: names in `from`, and the shapes of what comes.

use std::collections::BTreeMap;

use super::starts;
use crate::config::{
    AnyKey, ByHand, Integer, Item, Key, Kind, List, MOST, Optional, Table, Words, by_hand, integer, key,
    list, suggest, words,
};
use crate::layers::{InputDtype, MOST_DIMENSIONS};

pub(in crate::job) const FROM: Key<Optional<ByHand>> = key("from", by_hand(name_or_names)).optional().doc(
    "What it takes: a field of the data, a module, an output of one (`module.output`), or a list of them; without it the module \
     before it in `train.forward`, and the first one `data.input`.",
);
pub(super) const INPUT: Key<Optional<List<Integer>>> = key(
    "input",
    list(integer(1..=MOST)).at_most(MOST_DIMENSIONS),
)
.optional()
.doc("The shape of one sample of a field that it takes; that of a module's output follows from the module.");
pub(super) const INPUT_DTYPE: Key<Optional<Words<InputDtype>>> = key("input_dtype", words(&starts::DTYPES))
    .optional()
    .doc("The elements of a sample: `float32` if nothing else is said, `int64` for embeddings.");
pub(super) const INPUTS: Key<Optional<ByHand>> =
    key("inputs", by_hand(|| Kind::Map(Box::new(Kind::Table(INPUT_KEYS))))).optional().doc(
        "In place of `input` where `from` is a list: shape and dtype of each field, by its name, as in \
         `inputs = { dense = { shape = [13] }, ids = { shape = [26], dtype = \"int64\" } }`.",
    );

const SHAPE: Key<Optional<List<Integer>>> =
    key("shape", list(integer(1..=MOST)).at_most(MOST_DIMENSIONS)).optional().doc("Of one sample.");
const DTYPE: Key<Optional<Words<InputDtype>>> =
    key("dtype", words(&starts::DTYPES)).optional().doc("Its elements: `float32` if nothing else is said.");
static INPUT_KEYS: &[&dyn AnyKey] = &[&SHAPE, &DTYPE];

pub(super) fn name_or_names() -> Kind {
    Kind::Either(vec![Kind::Str, Kind::list(Kind::Str)])
}

/// A name where something is taken.
pub(super) struct Reference<'a> {
    pub name: String,
    pub item: Item<'a>,
}

/// What is said of one input.
#[derive(Clone, Default)]
pub(super) struct Stated {
    pub shape: Option<Vec<i64>>,
    pub dtype: Option<InputDtype>,
}

/// What a module says of its inputs.
pub(super) struct Takes<'a> {
    /// None: what comes before it.
    pub from: Option<Vec<Reference<'a>>>,
    /// What is said of the only input.
    single: Stated,
    /// By name.
    several: BTreeMap<String, Stated>,
}

/// None: something is wrong, and has been reported.
pub(super) fn read<'a>(t: &Table<'a>) -> Option<Takes<'a>> {
    // The outer option says whether it could be read.
    let from = match t.item(&FROM) {
        None => Some(None),
        Some(item) => references(&item).map(Some),
    };
    let (shape, dtype) = (t.read(&INPUT), t.read(&INPUT_DTYPE));
    let several = match t.item(&INPUTS) {
        None => Some(BTreeMap::new()),
        Some(item) => several(&item, from.as_ref()),
    };
    let (from, single) = (from?, Stated { shape: shape?, dtype: dtype? });
    if from.as_ref().is_some_and(|from| from.len() > 1) {
        for item in [t.item(&INPUT), t.item(&INPUT_DTYPE)].into_iter().flatten() {
            item.wrong("is said of one input, and `from` names several", "say it of each field in `inputs`");
        }
    }
    Some(Takes { from, single, several: several? })
}

fn several(item: &Item<'_>, from: Option<&Option<Vec<Reference<'_>>>>) -> Option<BTreeMap<String, Stated>> {
    let table = item.table()?;
    let names = match from {
        Some(Some(names)) if names.len() > 1 => Some(names),
        Some(_) => {
            let hint = "write `input` and `input_dtype` for a module that takes one";
            item.reader().report(item.error_without_value("is for a `from` that is a list").hint(hint));
            return None;
        }
        // That it is wrong has been said.
        None => None,
    };
    let mut read = BTreeMap::new();
    for (name, entry) in table.entries() {
        let Some(t) = entry.table() else { continue };
        t.only(INPUT_KEYS);
        let known = || names.into_iter().flatten().map(|reference| reference.name.as_str());
        if names.is_some() && known().all(|known| known != name) {
            let hint = suggest(name, "it takes", known().collect::<Vec<_>>());
            item.reader().report(entry.error_without_value("is not among what `from` names").hint(hint));
        }
        if let (Some(shape), Some(dtype)) = (t.read(&SHAPE), t.read(&DTYPE)) {
            read.insert(name.to_owned(), Stated { shape, dtype });
        }
    }
    Some(read)
}

/// One name, or a list of different ones.
pub(super) fn references<'a>(item: &Item<'a>) -> Option<Vec<Reference<'a>>> {
    if !item.is_list() {
        let name = item.text()?.to_owned();
        return Some(vec![Reference { name, item: item.clone() }]);
    }
    let names = item.strings()?;
    if names.is_empty() {
        item.wrong("names nothing", "name fields of the data and modules");
        return None;
    }
    for (index, (entry, name)) in item.list()?.iter().zip(&names).enumerate() {
        if names[..index].contains(name) {
            entry.wrong("comes twice", "name each once");
            return None;
        }
    }
    let references = item.list()?.into_iter().zip(names);
    Some(references.map(|(item, name)| Reference { name, item }).collect())
}

impl Takes<'_> {
    /// What is said of the input that is called so, and the keys below the module's table that say it.
    pub fn stated(&self, name: &str) -> (Stated, String, String) {
        let several = self.from.as_ref().is_some_and(|from| from.len() > 1);
        match several {
            false => (self.single.clone(), INPUT.name().into(), INPUT_DTYPE.name().into()),
            true => {
                let path = |key: &dyn AnyKey| format!("{}.{name}.{}", INPUTS.name(), key.name());
                (self.several.get(name).cloned().unwrap_or_default(), path(&SHAPE), path(&DTYPE))
            }
        }
    }
}
