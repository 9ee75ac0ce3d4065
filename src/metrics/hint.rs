//! What to write in a job that goes by a figure of which is not known whether less or more of it is better.

use super::per_class::{AVERAGE, Average};
use super::watch::Watched;
use super::{ENTRIES, MetricEntry, MetricSpec};
use crate::config::{AnyKey as _, did_you_mean};

impl Watched {
    /// What to write where that is not known.
    pub fn hint_among(&self, metrics: &[MetricSpec]) -> String {
        const BESIDE: &str = "write mode = \"min\" or \"max\" beside metric";
        let name = self.figure();
        if metrics.iter().any(|metric| metric.tells(name)) {
            return BESIDE.into();
        }
        // Those with options have them in their names: `top_5`, `f1_macro`.
        let written = |entry: &MetricEntry| {
            let kind = entry.name;
            let k = name.strip_prefix("top_").filter(|_| kind == "top_k").and_then(|k| k.parse::<u32>().ok());
            let averaged = entry.keys.iter().any(|key| key.name() == AVERAGE.name());
            let average = Average::NAMED.iter().find(|(_, average)| averaged && average.of(kind) == name);
            match (k, average) {
                (Some(k @ 1..), _) => Some(format!("{{ type = \"{kind}\", k = {k} }}")),
                (_, Some((word, Average::Macro | Average::Micro))) => {
                    Some(format!("{{ type = \"{kind}\", average = \"{word}\" }}"))
                }
                _ => (name == kind).then(|| format!("\"{kind}\"")),
            }
        };
        if let Some(metric) = ENTRIES.iter().find_map(written) {
            return format!("validations do not measure it: write metrics = [{metric}] in [eval]");
        }
        let known = ["loss", "accuracy", "mae"].into_iter().chain(metrics.iter().map(MetricSpec::name));
        match did_you_mean(name, known) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => BESIDE.into(),
        }
    }
}
