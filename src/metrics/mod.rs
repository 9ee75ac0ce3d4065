//! What validation measures beside the loss: figures over whole data sets, of `eval.metrics`.
//!
//! One file for each metric says everything of it: its options as keys of a job, which outputs and targets it takes, and
//! its formula, with the figures of scikit-learn and torchmetrics. One line below adds it. A [`Metric`] takes batches,
//! gives what it has counted as tensors ([`Metric::state`]), takes what others have counted ([`Metric::merge`]), and tells
//! the figure. Of a metric that is a plug-in ([`PluginMetric`]) there is only what a job says of it: whoever runs plug-ins
//! measures it. Nothing here knows of ranks, modules or jobs.
//!
//! Invariants:
//!
//! * ME-1: A figure is of all samples together and never a mean of batches' figures, so it does not matter how they are cut
//!   into batches and over trainers; the last bits of sums of fractions aside.
//! * ME-2: An update or a merge that fails has changed nothing.
//! * ME-3: A NaN among the outputs that count makes the figure NaN, which is null in JSON, and so does one among the targets
//!   of regression: a model that gives NaN has no accuracy worth telling. A figure of no samples is NaN, too.
//! * ME-4: What is merged came from another rank: its dtypes, shapes and bounds are looked at before any of it counts.

mod batch;
mod error;
mod hint;
mod layout;
mod mean;
mod name;
mod per_class;
mod plugin;
mod ranking;
mod read;
mod state;
mod value;
mod watch;

pub use error::MetricError;
pub use name::RESERVED;
pub use plugin::{KEYS as PLUGIN_KEYS, PluginMetric};
pub use read::{COMMON, METRICS, TYPE, variants};
pub use value::Value;
pub use watch::{METRIC, MODE, Mode, OF_AVERAGE, Watched, watched, watched_or_name};

use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad};

use crate::config::{AnyKey, Integer, Key, Number, Table, integer, key, number};
use crate::layers::Signal;
use error::Fault;
use layout::Unfit;

/// A metric as a job writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricSpec {
    BuiltIn(BuiltIn),
    Plugin(PluginMetric),
}

/// One of the program's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuiltIn {
    name: String,
    #[serde(flatten)]
    measure: Measure,
}

/// A metric that is being measured. Used by one thread at a time.
pub struct Metric {
    name: String,
    counted: Box<dyn Accumulate>,
}

/// What the options of a metric make of it.
trait Measures {
    /// What records call it, where the job gives it no name.
    fn name(&self) -> String;

    /// Why it does not fit one sample's output and target, as far as they are known.
    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit>;

    /// Which of two figures is better, if one is.
    fn better(&self) -> Option<Mode>;

    fn start(&self) -> Box<dyn Accumulate>;
}

/// What a metric has counted so far. See [`Metric`] for what each does.
trait Accumulate: Send {
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<(), Fault>;

    fn state(&self) -> Result<Vec<Tensor>, Fault>;

    fn merge(&mut self, state: Vec<Tensor>) -> Result<(), Fault>;

    fn value(&self) -> Result<Value, Fault>;
}

/// Declares a metric: the meaning, then each option with its type and its key, which has the option's name.
macro_rules! metric {
    (
        #[doc = $doc:literal]
        pub struct $name:ident { $($option:ident: $type:ty = $key:expr,)* }
    ) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $($option: $type,)*
        }

        crate::config::read_by_keys! { $doc $name { $($option = $key,)* } }
    };
}

/// Makes of a line `file::Type` the module, the variant of [`Measure`] and the entry of [`ENTRIES`]. A job names a metric
/// as its file is called, which is the type's name in lower case.
macro_rules! metrics {
    ($($file:ident::$Type:ident,)*) => {
        $(mod $file;)*
        $(use $file::$Type;)*

        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        enum Measure {
            $($Type($Type),)*
        }

        static ENTRIES: &[MetricEntry] = &[$(MetricEntry {
            name: stringify!($file),
            doc: $Type::DOC,
            keys: $Type::KEYS,
            read: |table| Some(Measure::$Type($Type::read(table)?)),
        },)*];

        impl Measure {
            fn measures(&self) -> &dyn Measures {
                match self {
                    $(Measure::$Type(options) => options,)*
                }
            }
        }
    };
}

metrics! {
    accuracy::Accuracy,
    top_k::TopK,
    auc::Auc,
    average_precision::AveragePrecision,
    f1::F1,
    precision::Precision,
    recall::Recall,
    confusion_matrix::ConfusionMatrix,
    perplexity::Perplexity,
    mae::Mae,
    mse::Mse,
    rmse::Rmse,
    r2::R2,
}

/// What a job can say of a metric.
struct MetricEntry {
    name: &'static str,
    doc: &'static str,
    /// Beside those that all have.
    keys: &'static [&'static dyn AnyKey],
    read: fn(&Table<'_>) -> Option<Measure>,
}

const IGNORE_INDEX: Key<Integer> = key("ignore_index", integer(i64::MIN..=i64::MAX))
    .default("-100")
    .doc("A target that is this number does not count, as in torch's `cross_entropy`.");
const THRESHOLD: Key<Number> = key("threshold", number())
    .default("0.0")
    .doc(
        "Where each target has one score: a score above it says 1. 0 is for scores before a sigmoid; write 0.5 for those behind it.",
    );

impl MetricSpec {
    /// As records call it: `accuracy`, `top_5`, `f1_macro`, or as the job says.
    pub fn name(&self) -> &str {
        match self {
            MetricSpec::BuiltIn(metric) => metric.name(),
            MetricSpec::Plugin(metric) => &metric.name,
        }
    }

    /// Which of two figures is better; None: none is, or nobody has said it.
    pub fn better(&self) -> Option<Mode> {
        match self {
            MetricSpec::BuiltIn(metric) => metric.measure.measures().better(),
            MetricSpec::Plugin(metric) => metric.mode,
        }
    }

    /// Is it the one that tells a figure of this name?
    fn tells(&self, figure: &str) -> bool {
        match self {
            MetricSpec::BuiltIn(metric) => figure == metric.name,
            MetricSpec::Plugin(metric) => metric.may_tell(figure),
        }
    }
}

impl BuiltIn {
    /// See [`MetricSpec::name`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it fits what the loss takes: one sample's output and target, without the batch dimension; None where they are
    /// not known.
    ///
    /// # Errors
    /// Why it does not, as stands behind its name, and a hint.
    pub fn check(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), (String, String)> {
        let fits = self.measure.measures().fits(output, target);
        fits.map_err(|Unfit { problem, hint }| (problem, hint))
    }

    pub fn start(&self) -> Metric {
        Metric { name: self.name.clone(), counted: self.measure.measures().start() }
    }
}

impl Watched {
    /// Which of two figures is better, as far as it is said or known; `metrics` are the job's.
    pub fn mode_among(&self, metrics: &[MetricSpec]) -> Option<Mode> {
        let own = metrics.iter().find(|metric| metric.tells(self.figure())).and_then(MetricSpec::better);
        self.mode.or(own).or_else(|| self.usual())
    }
}

impl Metric {
    /// Counts a batch, whose samples lie along dimension 0 of both. On any device; `output` is of fractions.
    ///
    /// # Errors
    /// Shapes, dtypes or targets that the metric does not take; memory.
    pub fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<(), MetricError> {
        let done = no_grad(|| self.counted.update(output, target));
        done.map_err(|fault| self.error(fault))
    }

    /// What has been counted so far, on the CPU, for another's [`Metric::merge`]: counts of int64 and sums of f64, or scores
    /// of f32.
    ///
    /// # Errors
    /// Memory.
    pub fn state(&self) -> Result<Vec<Tensor>, MetricError> {
        no_grad(|| self.counted.state()).map_err(|fault| self.error(fault))
    }

    /// Counts what a metric of the same [`BuiltIn`] has counted elsewhere.
    ///
    /// # Errors
    /// It is not the state of such a metric.
    pub fn merge(&mut self, state: Vec<Tensor>) -> Result<(), MetricError> {
        let done = no_grad(|| self.counted.merge(state));
        done.map_err(|fault| self.error(fault))
    }

    /// The figure of all that has been counted.
    ///
    /// # Errors
    /// Memory.
    pub fn value(&self) -> Result<Value, MetricError> {
        no_grad(|| self.counted.value()).map_err(|fault| self.error(fault))
    }

    fn error(&self, fault: Fault) -> MetricError {
        MetricError { metric: self.name.clone(), fault }
    }
}
