//! Layers as written: PyTorch's names, defaults and rules that need no shape.

use figment::value::Value;

use super::{LAYERS, Layer, LayerEntry};
use crate::config::{AnyKey, By, Item, JobError, Key, Kind, Optional, Str, Table, by, key, string, suggest};

/// Names the layer's type.
pub const TYPE: Key<Str> = key("type", string()).example("\"linear\"").doc("Which layer.");
/// Names the layer.
pub const NAME: Key<Optional<By<String>>> = key("name", by(name, || Kind::Str))
    .optional()
    .doc("What its parameters are called; its position in the list where it is not said.");

/// As the field spells it, too; PyTorch's class makes one word of it.
const ALSO: [(&str, &str); 1] = [("multi_head_attention", "multihead_attention")];

/// A list of layers. None if any of them is wrong.
pub fn list(item: &Item<'_>) -> Option<Vec<Layer>> {
    let entries = item.list()?;
    if entries.is_empty() {
        item.wrong(
            "has no layers",
            "for example layers = [\"flatten\", { type = \"linear\", in_features = 784, out_features = 10 }]",
        );
        return None;
    }
    let read: Vec<_> = entries.iter().enumerate().map(|(index, entry)| layer(entry, index)).collect();
    let layers: Vec<Layer> = read.into_iter().collect::<Option<_>>()?;
    unique(&entries, &layers)?;
    Some(layers)
}

fn unique(entries: &[Item<'_>], layers: &[Layer]) -> Option<()> {
    let errors = entries[0].reader().errors();
    for (index, layer) in layers.iter().enumerate() {
        if let Some(first) = layers[..index].iter().position(|other| other.name == layer.name) {
            let error = JobError::new(format!(
                "`{}` and `{}` are both named `{}`",
                entries[first].path, entries[index].path, layer.name
            ));
            let hint = "parameters carry the names of their layers; a layer without a name is called by its position";
            entries[0].reader().report(error.from(entries[index].origin()).hint(hint));
        }
    }
    (errors == entries[0].reader().errors()).then_some(())
}

fn layer(item: &Item<'_>, index: usize) -> Option<Layer> {
    let errors = item.reader().errors();
    let (table, kind) = match item.value() {
        Value::String(_, kind) => (Table::bare(item), kind.clone()),
        Value::Dict(..) => {
            let table = item.table()?;
            let kind = table.read(&TYPE)?;
            (table, kind)
        }
        _ => {
            item.wrong(
                "is not a valid layer",
                "write \"relu\", or { type = \"linear\", in_features = 784, out_features = 10 }",
            );
            return None;
        }
    };
    let Some(entry) = entry(&kind) else {
        unknown_type(item, &kind);
        return None;
    };
    let name = table.read(&NAME).map(|name| name.unwrap_or_else(|| index.to_string()));
    let op = (entry.read)(&table);
    table.only(&[&[&TYPE as &dyn AnyKey, &NAME], entry.keys].concat());
    let sound = errors == item.reader().errors();
    Some(Layer { name: name?, op: op.filter(|_| sound)? })
}

fn entry(kind: &str) -> Option<&'static LayerEntry> {
    let kind = ALSO.iter().find(|(also, _)| *also == kind).map_or(kind, |(_, name)| name);
    LAYERS.iter().find(|entry| entry.name == kind)
}

fn unknown_type(item: &Item<'_>, kind: &str) {
    let types = LAYERS.iter().map(|entry| entry.name);
    // `Conv2d` and `nn.ReLU` are how PyTorch's users think of them.
    let snake = kind.trim_start_matches("nn.").to_lowercase().replace(['-', ' '], "_");
    let same = types.clone().find(|known| known.replace('_', "") == snake.replace('_', ""));
    let hint = match same {
        Some(known) => format!("did you mean `{known}`?"),
        None => suggest(&snake, "known layers", types),
    };
    let error = JobError::new(format!("`{}`: there is no layer of type `{kind}`", item.path));
    item.reader().report(error.from(item.origin()).hint(hint));
}

fn name(item: &Item<'_>) -> Option<String> {
    let name = item.text()?;
    check_name(name, item).then(|| name.into())
}

/// Whether it is a name that can stand in the names of parameters.
pub fn check_name(name: &str, item: &Item<'_>) -> bool {
    let sound = is_name(name);
    if !sound {
        let error = JobError::new(format!("`{}`: `{name}` is not a valid name", item.path));
        item.reader().report(error.from(item.origin()).hint(format!("a name is {NAMES}")));
    }
    sound
}

/// Can records and files know something by this name?
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !name.is_empty() && name.len() <= 64 && name.chars().all(fits)
}

/// What [`is_name`] allows.
pub const NAMES: &str = "1 to 64 letters, digits, `_` and `-`";
