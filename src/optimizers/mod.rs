//! The optimizers of `torch.optim` that a job can name, with PyTorch's option names, defaults and numbers.
//!
//! One file for each says everything of it: its options as keys of a job, how they go together, what it remembers of a
//! parameter, whether it takes sparse gradients or single rows of a table, and its update. One line below adds it.
//! [`Optimizer`] runs any of them and gives its state as named tensors; [`RowOptimizer`] runs those that can on the rows
//! of a table. Nothing here knows of ranks, contexts or jobs.
//!
//! Updates run at the owner of the parameters, in place and without recording. Each follows `_single_tensor_*` of torch
//! 2.11 operation by operation where libtorch's bindings allow; where they lack a factor (`alpha=`, `value=`) it is
//! applied by another operation, which changes the last bit at most. Libtorch's fused kernels are not used: they compute
//! the last few elements of a tensor by other instructions, so the bits would depend on how parameters are cut.
//!
//! Invariants:
//!
//! * OP-1: One [`Optimizer`] is used by one thread. Several may update the same parameters at the same time, without
//!   locks, which is what Hogwild is; each with its own state.
//! * OP-2: A parameter without a gradient is not touched, nor is its state or its count of steps.
//! * OP-3: A tensor of a state that somebody holds is never written.

mod error;
mod ops;
mod optimization;
mod optimizer;
mod options;
mod rows;
mod rule;
mod schedule;
mod state;

pub use error::OptimizerError;
pub use optimization::{Optimization, ParameterGroup, matches};
pub use optimizer::Optimizer;
pub use rows::{RowOptimizer, RowStep};
pub use rule::{RowRule, Slot};
pub use schedule::{LrSchedule, SCHEDULE};
pub use state::{NamedSlot, ParameterSlots};

use serde::{Deserialize, Serialize};

use crate::config::{
    AnyKey, ByHand, Item, Key, Kind, List, Number, Optional, Str, Table, Variant, above, by_hand, key, list,
    string,
};
use options::Options;
use rule::{Impossible, UpdateRule};

/// Makes of a line `file::Type` the module, the variant of [`OptimizerSpec`] and the entry of [`OPTIMIZERS`]. A job names
/// an optimizer as its file is called.
macro_rules! optimizers {
    ($($file:ident::$Type:ident,)*) => {
        $(mod $file;)*
        $(pub use $file::$Type;)*

        /// What updates the parameters, at their owner. Travels in calls as JSON.
        ///
        /// Every option means what it means in `torch.optim`; the defaults are PyTorch's.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", rename_all = "lowercase")]
        pub enum OptimizerSpec {
            $($Type($Type),)*
        }

        /// All optimizers that a job can name.
        pub static OPTIMIZERS: &[OptimizerEntry] = &[$(OptimizerEntry {
            name: stringify!($file),
            doc: <$Type as Options>::DOC,
            keys: <$Type as Options>::KEYS,
            read: |table| Some(OptimizerSpec::$Type(<$Type as Options>::read(table)?)),
        },)*];

        impl OptimizerSpec {
            /// The type as a job names it.
            pub fn name(&self) -> &'static str {
                match self {
                    $(OptimizerSpec::$Type(_) => stringify!($file),)*
                }
            }

            /// The learning rate.
            pub fn lr(&self) -> f64 {
                match self {
                    $(OptimizerSpec::$Type(options) => options.lr,)*
                }
            }

            pub fn set_lr(&mut self, lr: f64) {
                match self {
                    $(OptimizerSpec::$Type(options) => options.lr = lr,)*
                }
            }

            /// Whether it climbs instead of descending.
            fn maximizes(&self) -> bool {
                match self {
                    $(OptimizerSpec::$Type(options) => options.maximize,)*
                }
            }

            fn rule(&self) -> &dyn UpdateRule {
                match self {
                    $(OptimizerSpec::$Type(options) => options,)*
                }
            }

            /// Options may have come from another rank.
            fn check(&self) -> Result<(), Impossible> {
                match self {
                    $(OptimizerSpec::$Type(options) => options.check_ranges()?,)*
                }
                self.rule().conflict()
            }
        }
    };
}

optimizers! {
    sgd::Sgd,
    adam::Adam,
    adamw::AdamW,
    adagrad::Adagrad,
    adadelta::Adadelta,
    adamax::Adamax,
    rmsprop::RmsProp,
    rprop::Rprop,
    nadam::NAdam,
    radam::RAdam,
    lion::Lion,
}

/// What a job can say of an optimizer.
pub struct OptimizerEntry {
    /// Its `type`.
    pub name: &'static str,
    /// One line of meaning.
    pub doc: &'static str,
    /// Beside `type`.
    pub keys: &'static [&'static dyn AnyKey],
    read: fn(&Table<'_>) -> Option<OptimizerSpec>,
}

/// The section of a job.
pub const OPTIMIZER: Key<ByHand> = key("optimizer", by_hand(|| Kind::Variants("optimizer", variants)))
    .needed_at_times("{ type = \"sgd\" }")
    .doc("How parameters are updated.");
/// Names the optimizer.
pub const TYPE: Key<Str> = key("type", string()).example("\"sgd\"").doc("Which optimizer.");

/// Parameters with options of their own.
pub const GROUPS: Key<Optional<ByHand>> = key("groups", by_hand(|| Kind::list(Kind::Named("group"))))
    .optional()
    .doc("Other options for some parameters: a list of tables with `match` and the options that differ.");
const MATCH: Key<List<Str>> = key("match", list(string())).example("[\"*.bias\"]").doc(
    "Patterns of MODULE.PARAMETER: `*` stands for any letters, dots too, `?` for one. The first group that has a parameter \
     counts.",
);

pub const CLIP_NORM: Key<Optional<Number>> = key("clip_norm", above(0.0)).optional().doc(
    "Scales a step's gradients down to this norm, over all parameters of the job, where theirs is larger; torch's \
     `clip_grad_norm_`.",
);

/// The keys that all optimizers have; a module's own has neither schedule nor clipping.
pub static COMMON: &[&dyn AnyKey] = &[&TYPE, &schedule::SCHEDULE, &CLIP_NORM, &GROUPS];

/// All optimizers, as a job's table of one may be.
pub fn variants() -> Vec<Variant> {
    OPTIMIZERS.iter().map(|entry| Variant { name: entry.name, doc: entry.doc, keys: entry.keys }).collect()
}

/// How the learning rate of an optimizer changes, as a job writes it. `None`: what is wrong has been reported.
pub fn read_schedule(table: &Table<'_>) -> Option<Option<LrSchedule>> {
    let Some(item) = table.item(&schedule::SCHEDULE) else { return Some(None) };
    if let Some(rprop) = table.item(&TYPE).filter(|item| item.text() == Some("rprop")) {
        rprop
            .wrong("reads `lr` before its first step only", "leave `schedule` out, or use another optimizer");
        return None;
    }
    schedule::read(&item).map(Some)
}

/// All curves of schedules, and the keys that all have.
pub fn schedules() -> (&'static [&'static dyn AnyKey], Vec<Variant>) {
    (schedule::COMMON, schedule::variants())
}

/// The section, or an empty one.
pub fn section<'a>(root: &Table<'a>) -> Table<'a> {
    root.item(&OPTIMIZER).and_then(|item| item.table()).unwrap_or_else(|| root.section(&OPTIMIZER))
}

/// An optimizer as a job writes it. `None`: what is wrong has been reported.
pub fn read(table: &Table<'_>) -> Option<Optimization> {
    let names: Vec<_> = OPTIMIZERS.iter().map(|entry| (entry.name, entry)).collect();
    let entry = table.need_item(&TYPE)?.choice(&names)?;
    let spec = (entry.read)(table);
    table.only(&[COMMON, entry.keys].concat());
    let spec = spec?;
    let groups = table.item(&GROUPS).map(|groups| read_groups(&groups, entry, &spec));
    check_together(table, entry, &spec)?;
    let groups = groups.map_or(Some(Vec::new()), |groups| groups)?;
    Some(Optimization { spec, groups })
}

/// What a group does not say is as the optimizer says it.
fn read_groups(
    item: &Item<'_>,
    entry: &OptimizerEntry,
    common: &OptimizerSpec,
) -> Option<Vec<ParameterGroup>> {
    let read = |item: &Item<'_>| {
        let table = item.table()?;
        let (patterns, own) = (table.read(&MATCH), (entry.read)(&table));
        table.only(&[&[&MATCH as &dyn AnyKey], entry.keys].concat());
        let (patterns, own) = (patterns?, serde_json::to_value(own?).ok()?);
        let mut options = serde_json::to_value(common).ok()?;
        for (key, _) in table.entries().iter().filter(|(key, _)| *key != MATCH.name()) {
            options[*key] = own[*key].clone();
        }
        let spec: OptimizerSpec = serde_json::from_value(options).ok()?;
        check_together(&table, entry, &spec)?;
        Some(ParameterGroup { patterns, spec })
    };
    let groups: Vec<_> = item.list()?.iter().map(read).collect();
    groups.into_iter().collect()
}

/// Whether the options of an optimizer go together.
fn check_together(table: &Table<'_>, entry: &OptimizerEntry, spec: &OptimizerSpec) -> Option<()> {
    if let Err(Impossible { option, problem, hint, .. }) = spec.rule().conflict() {
        // A default that does not go with what was written is shown as if it had been written.
        match entry.keys.iter().find(|key| key.name() == option).and_then(|key| table.item(*key)) {
            Some(item) => item.wrong(problem, hint),
            None => table.missing(&option, hint),
        }
        return None;
    }
    Some(())
}

/// A group, as [`GROUPS`] has them: `match`, and the options of any optimizer.
pub fn group_keys() -> Vec<&'static dyn AnyKey> {
    let mut keys: Vec<&dyn AnyKey> = vec![&MATCH];
    for key in OPTIMIZERS.iter().flat_map(|entry| entry.keys) {
        if keys.iter().all(|other| other.name() != key.name()) {
            keys.push(*key);
        }
    }
    keys
}

impl OptimizerSpec {
    /// Why a sparse gradient cannot be applied, if so: what stands behind the name in a message.
    pub fn refuses_sparse(&self) -> Option<&'static str> {
        self.rule().refuses_sparse()
    }

    /// Why it cannot update single rows of a table, the others left as they are, if so: what stands behind the name in a
    /// message.
    pub fn refuses_rows(&self) -> Option<&'static str> {
        self.rule().rows().err()
    }

    /// Tensors of the size of a parameter that are kept for it.
    pub fn tensors_per_parameter(&self) -> u64 {
        self.rule().slots().iter().filter(|slot| slot.per_element).count() as u64
    }
}
