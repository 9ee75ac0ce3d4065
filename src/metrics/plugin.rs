//! A metric that somebody has written: a plug-in, as a job names it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::name;
use super::watch::{MODES, Mode};
use crate::config::{AnyKey, By, Item, Key, Kind, Optional, Table, Words, by, key, words};
use crate::layers::{NAMES, is_name};

/// What a job says of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginMetric {
    pub name: String,
    /// A .wasm file, relative to the current folder.
    pub plugin: PathBuf,
    /// Its parameters, a JSON object.
    pub params: Json,
    /// Which of two figures is better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

pub(super) const PLUGIN: Key<By<PathBuf>> = key("plugin", by(file, || Kind::Str))
    .example("\"my_metric.wasm\"")
    .doc("The path of the plug-in, a .wasm file.");
const PARAMS: Key<Optional<By<Json>>> =
    key("params", by(|item| item.json_table(), || Kind::Map(Box::new(Kind::Any))))
        .optional()
        .doc("The plug-in's parameters.");
const OWN_NAME: Key<Optional<By<String>>> = key("name", by(name::name, || Kind::Str)).optional().doc(
    "What records call it; without it as the file is called. Where it tells several figures, each is `NAME.FIGURE`.",
);
const MODE: Key<Optional<Words<Mode>>> = key("mode", words(&MODES)).optional().doc(
    "Whether less (`min`) or more (`max`) is better, where `eval.best`, `eval.stop` or a schedule goes by it and does not say so.",
);
/// Those of an entry that names a plug-in.
pub static KEYS: &[&dyn AnyKey] = &[&PLUGIN, &OWN_NAME, &PARAMS, &MODE];

impl PluginMetric {
    /// Is `figure` what it is called, or one of several that it tells?
    pub fn may_tell(&self, figure: &str) -> bool {
        figure.strip_prefix(&self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// `None`: what is wrong has been reported.
pub(super) fn read(table: &Table<'_>) -> Option<PluginMetric> {
    table.only(KEYS);
    let (plugin, name) = (table.read(&PLUGIN), table.read(&OWN_NAME));
    let (params, mode) = (table.read(&PARAMS), table.read(&MODE));
    let (plugin, name) = (plugin?, name?);
    let name = match name {
        Some(name) => name,
        None => name_of(&plugin, &table.item(&PLUGIN)?)?,
    };
    let params = params?.unwrap_or_else(|| Json::Object(serde_json::Map::new()));
    Some(PluginMetric { name, plugin, params, mode: mode? })
}

fn file(item: &Item<'_>) -> Option<PathBuf> {
    let text = item.text()?;
    if !text.ends_with(".wasm") {
        item.wrong(
            "is not a path that ends in .wasm",
            "the metrics inside the program are named by their type, as \"accuracy\"",
        );
        return None;
    }
    Some(text.into())
}

/// As the file is called.
fn name_of(plugin: &Path, item: &Item<'_>) -> Option<String> {
    let stem = plugin.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if !is_name(stem) {
        item.wrong(format!("gives the metric no name: a name is {NAMES}"), "write name = \"...\" beside it");
        return None;
    }
    name::free(stem, item).then(|| stem.into())
}
