//! Metrics as a job writes them: `eval.metrics`.

use super::name::name;
use super::{BuiltIn, ENTRIES, Measure, MetricEntry, MetricSpec, plugin};
use crate::config::{
    AnyKey, By, Item, JobError, Key, Kind, Optional, Str, Table, Variant, by, key, string, suggest,
};

/// In a job's `[eval]`.
pub const METRICS: Key<By<Vec<MetricSpec>>> =
    key("metrics", by(read, || Kind::list(Kind::Named("metric")))).default("[]").doc(
        "What is measured beside what the loss reports, over all test samples: a list of metrics. They compare the first output \
         that the loss takes with its first target; plug-ins get all of both.",
    );
/// Names the metric's type.
pub const TYPE: Key<Str> = key("type", string()).example("\"accuracy\"").doc("Which metric.");
const NAME: Key<Optional<By<String>>> = key("name", by(name, || Kind::Str))
    .optional()
    .doc("What records call it; without it the type, with what tells it apart: `top_5`, `f1_macro`.");
/// Those of every metric.
pub static COMMON: &[&dyn AnyKey] = &[&TYPE, &NAME];

/// All metrics, as a job's table of one may be.
pub fn variants() -> Vec<Variant> {
    ENTRIES.iter().map(|entry| Variant { name: entry.name, doc: entry.doc, keys: entry.keys }).collect()
}

/// A list of metrics. `None`: what is wrong has been reported.
fn read(item: &Item<'_>) -> Option<Vec<MetricSpec>> {
    let entries = item.list()?;
    let read: Vec<_> = entries.iter().map(metric).collect();
    let metrics: Vec<MetricSpec> = read.into_iter().collect::<Option<_>>()?;
    let mut unique = true;
    for (index, metric) in metrics.iter().enumerate() {
        if let Some(first) = metrics[..index].iter().position(|other| other.name() == metric.name()) {
            let (one, other) = (&entries[first].path, &entries[index]);
            let problem = format!("`{one}` and `{}` are both named `{}`", other.path, metric.name());
            let hint = "records tell metrics apart by their names: give one of them a `name`";
            other.reader().report(JobError::new(problem).from(other.origin()).hint(hint));
            unique = false;
        }
    }
    unique.then_some(metrics)
}

fn metric(item: &Item<'_>) -> Option<MetricSpec> {
    let errors = item.reader().errors();
    let (table, kind) = match item.is_table() {
        true => {
            let table = item.table()?;
            if table.item(&plugin::PLUGIN).is_some() {
                let read = plugin::read(&table)?;
                return (errors == item.reader().errors()).then_some(MetricSpec::Plugin(read));
            }
            let kind = table.read(&TYPE)?;
            (table, kind)
        }
        false => match item.value().as_str() {
            Some(kind) => (Table::bare(item), kind.to_owned()),
            None => {
                let hint =
                    "write \"accuracy\", { type = \"top_k\", k = 5 }, or { plugin = \"my_metric.wasm\" }";
                item.wrong("is not a metric", hint);
                return None;
            }
        },
    };
    let Some(entry) = entry(&kind) else {
        let problem = format!("`{}`: there is no metric `{kind}`", item.path);
        let hint = suggest(&kind, "known metrics", ENTRIES.iter().map(|entry| entry.name));
        item.reader().report(JobError::new(problem).from(item.origin()).hint(hint));
        return None;
    };
    let name = table.read(&NAME);
    let measure: Option<Measure> = (entry.read)(&table);
    table.only(&[COMMON, entry.keys].concat());
    let (name, measure) = (name?, measure?);
    let name = name.unwrap_or_else(|| measure.measures().name());
    (errors == item.reader().errors()).then_some(MetricSpec::BuiltIn(BuiltIn { name, measure }))
}

fn entry(kind: &str) -> Option<&'static MetricEntry> {
    ENTRIES.iter().find(|entry| entry.name == kind)
}
