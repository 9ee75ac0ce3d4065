//! A run as Prometheus reads it: what was last told of it, in base units.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::files;
use crate::runner::records::StepRecord;
use crate::runner::run_folder::{self, MOST_OF_JOB};
use crate::topology::Rank;
use crate::watch::run::{MOST_FIGURES, RankUse, Watched};

/// What an answer with [`text`] says of itself.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The text of `/metrics`. `under_way`: a process has the run.
pub fn text(run: &Watched, under_way: bool) -> String {
    let job = JobFile::read(run.folder());
    let mut page = Page::new(&job.name);
    page.gauge("running", "Whether a process has the run: 1 or 0", &[], f64::from(u8::from(under_way)));
    let trainers = run.trainers.iter().filter_map(|(rank, trainer)| Some((rank, trainer.last.as_ref()?)));
    for (rank, last) in trainers {
        page.trainer(*rank, &job.trainers, last);
    }
    if let Some(eval) = run.evals.back() {
        page.gauge("eval_step", "The step of the last validation", &[], eval.step as f64);
        for (name, value) in eval.result.numbers() {
            page.gauge("eval", "A figure of the last validation", &[("metric", name)], value);
        }
    }
    for (rank, used) in &run.ranks {
        page.rank(*rank, used);
    }
    page.text()
}

type Labels = Vec<(&'static str, String)>;

struct Page {
    registry: Registry,
    gauges: BTreeMap<&'static str, Family<Labels, Gauge<f64, AtomicU64>>>,
    counters: BTreeMap<&'static str, Family<Labels, Counter<f64, AtomicU64>>>,
}

impl Page {
    fn new(job: &str) -> Page {
        let labels = [("job".into(), job.to_owned().into())];
        let registry = Registry::with_prefix_and_labels("pstrain", labels.into_iter());
        Page { registry, gauges: BTreeMap::new(), counters: BTreeMap::new() }
    }

    fn gauge(&mut self, name: &'static str, help: &str, labels: &[(&'static str, &str)], value: f64) {
        let family = self.gauges.entry(name).or_insert_with(|| {
            let family = Family::default();
            self.registry.register(name, help, Family::clone(&family));
            family
        });
        family.get_or_create(&owned(labels)).set(value);
    }

    /// `name` gets `_total` at its end.
    fn counter(&mut self, name: &'static str, help: &str, labels: &[(&'static str, &str)], value: f64) {
        let family = self.counters.entry(name).or_insert_with(|| {
            let family = Family::default();
            self.registry.register(name, help, Family::clone(&family));
            family
        });
        family.get_or_create(&owned(labels)).inc_by(value);
    }

    fn trainer(&mut self, rank: Rank, role: &str, last: &StepRecord) {
        let rank = rank.to_string();
        let labels = [("role", role), ("rank", rank.as_str())];
        self.counter("steps", "Steps that a trainer has taken", &labels, last.step as f64);
        let figures = [
            ("epoch", "The epoch of a trainer, counted from 1", Some(f64::from(last.epoch))),
            ("loss", "The loss of a trainer's last batch", Some(last.loss)),
            ("learning_rate", "The learning rate of the last step", Some(last.lr)),
            ("samples_per_second", "Samples that a trainer takes in a second", Some(last.samples_per_s)),
            (
                "data_wait_ratio",
                "Share of a trainer's time in which it waits for data",
                Some(last.data_wait_pct / 100.0),
            ),
            ("staleness_updates", "Updates by others between a read and its update", last.staleness),
            ("gradient_norm", "The norm of all gradients, before they are clipped", last.grad_norm),
            ("loss_scale", "What the loss is multiplied by for its gradients", last.loss_scale),
        ];
        for (name, help, value) in figures {
            if let Some(value) = value {
                self.gauge(name, help, &labels, value);
            }
        }
        for (name, value) in last.metrics.iter().take(MOST_FIGURES) {
            let labels = [labels[0], labels[1], ("metric", name)];
            self.gauge("reported", "A figure that the loss plug-in reports", &labels, *value);
        }
    }

    fn rank(&mut self, rank: Rank, used: &RankUse) {
        let rank = rank.to_string();
        let labels = [("role", used.role.as_str()), ("rank", rank.as_str())];
        let resident = used.last.resident_bytes as f64;
        self.gauge("resident_memory_bytes", "Resident memory of a rank's process", &labels, resident);
        self.counter("cpu_seconds", "Seconds of processors that a rank has used", &labels, used.cpu_s);
        if let Some(gpu) = used.last.gpu {
            let busy = gpu.busy_pct / 100.0;
            self.gauge("gpu_utilization_ratio", "How busy a rank's devices are, 0 to 1", &labels, busy);
            if let Some(bytes) = gpu.bytes {
                let help = "Memory of its devices that a rank uses";
                self.gauge("gpu_memory_bytes", help, &labels, bytes as f64);
            }
        }
        for (activity, seconds) in &used.seconds {
            let labels = [labels[0], labels[1], ("activity", activity.name())];
            let help = "Seconds of a rank's threads, by what they went into";
            self.counter("activity_seconds", help, &labels, *seconds);
        }
    }

    fn text(self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).expect("a string takes all that is written");
        in_order(&text)
    }
}

/// The samples of each family sorted: the library has them in a hash map, whose order is another one in each process.
fn in_order(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let families = lines.chunk_by_mut(|one, next| one.starts_with('#') == next.starts_with('#'));
    families.filter(|lines| !lines[0].starts_with('#')).for_each(<[&str]>::sort_unstable);
    lines.into_iter().flat_map(|line| [line, "\n"]).collect()
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// What labels have of the run's job.
#[derive(Default)]
struct JobFile {
    name: String,
    /// The role that trains.
    trainers: String,
}

impl JobFile {
    /// Empty where there is no job.
    fn read(folder: &Path) -> JobFile {
        let text = files::text_at_most(&folder.join(run_folder::JOB), MOST_OF_JOB).unwrap_or_default();
        let table: toml::Table = text.parse().unwrap_or_default();
        let said =
            |value: Option<&toml::Value>| value.and_then(toml::Value::as_str).unwrap_or_default().to_owned();
        let train = table.get("train").and_then(|train| train.get("role"));
        JobFile { name: said(table.get("name")), trainers: said(train) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_run_reads_as_samples_with_their_help_and_type() {
        let folder = tempfile::tempdir().unwrap();
        let lines = [
            r#"{"kind":"step","step":7,"epoch":2,"rank":1,"loss":null,"lr":0.5,"samples_per_s":8.0,"data_wait_pct":25.0,"staleness":null,"time_s":1.0,"metrics":{"a \"b\"":3.0}}"#,
            r#"{"kind":"rank","rank":1,"role":"trainer","time_s":2.0,"passed_s":2.0,"resident_bytes":1048576,"cpu_pct":50.0,"seconds":{"forward":0.5}}"#,
            r#"{"kind":"rank","rank":1,"role":"trainer","time_s":4.0,"passed_s":2.0,"resident_bytes":2097152,"cpu_pct":100.0,"seconds":{"forward":0.25}}"#,
            r#"{"kind":"eval","step":7,"epoch":2,"rank":1,"samples":10,"targets":10,"loss":0.75,"accuracy":0.5,"time_s":3.0}"#,
        ];
        fs::write(folder.path().join(run_folder::METRICS), lines.map(|line| format!("{line}\n")).concat())
            .unwrap();
        fs::write(folder.path().join(run_folder::JOB), "name = \"digits\"\n[train]\nrole = \"trainer\"\n")
            .unwrap();
        let mut run = Watched::new(folder.path(), 2);
        run.read_on(|_| ()).unwrap();
        insta::assert_snapshot!(text(&run, false));
    }
}
