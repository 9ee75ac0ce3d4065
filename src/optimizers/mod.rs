//! The optimizers that a job can name: those of `torch.optim`, with PyTorch's option names, defaults and numbers, and Lion, which
//! PyTorch has not.
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
//! * OP-2: A parameter without a gradient is not touched, nor is its state or its count of steps; only its average follows it.
//! * OP-3: A tensor of a state that somebody holds is never written.

mod average;
mod error;
mod ops;
mod optimization;
mod optimizer;
mod options;
mod read;
mod rows;
mod rule;
mod schedule;
mod state;

pub use average::AVERAGE;
pub use error::OptimizerError;
pub use optimization::{Optimization, ParameterGroup, matches};
pub use optimizer::Optimizer;
pub use read::{
    CLIP_NORM, CLIP_VALUE, COMMON, GROUPS, OPTIMIZER, OWN, TYPE, group_keys, read_common, read_own,
    read_schedule, schedules, section, variants,
};
pub use rows::{RowOptimizer, RowStep};
pub use rule::{Hindered, RowRule, Slot};
pub use schedule::{Falling, LrSchedule, SCHEDULE};
pub use state::{NamedSlot, ParameterSlots};

use serde::{Deserialize, Serialize};

use crate::config::{AnyKey, Table};
use options::Options;
use rule::{Impossible, UpdateRule, where_possible};

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
            sparse: || where_possible(<$Type as UpdateRule>::sparse_hindrances()),
            rows: || where_possible(<$Type as UpdateRule>::row_hindrances()),
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

            /// Why it does not apply sparse gradients, if so.
            pub fn refuses_sparse(&self) -> Option<Hindered> {
                match self {
                    $(OptimizerSpec::$Type(options) => Hindered::of(<$Type as UpdateRule>::sparse_hindrances(), options),)*
                }
            }

            /// Why it does not update single rows of a table, the others left as they are, if so.
            pub fn refuses_rows(&self) -> Option<Hindered> {
                match self {
                    $(OptimizerSpec::$Type(options) => Hindered::of(<$Type as UpdateRule>::row_hindrances(), options),)*
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
    sparse: fn() -> Option<String>,
    rows: fn() -> Option<String>,
    read: fn(&Table<'_>) -> Option<OptimizerSpec>,
}

/// The optimizers that apply sparse gradients, and with which options, for a hint.
pub fn that_apply_sparse() -> String {
    one_of(|entry| (entry.sparse)())
}

/// The optimizers that update single rows of a table, and with which options, for a hint.
pub fn that_update_rows() -> String {
    one_of(|entry| (entry.rows)())
}

fn one_of(with: impl Fn(&OptimizerEntry) -> Option<String>) -> String {
    let named = |entry: &OptimizerEntry| Some(format!("{}{}", entry.name, with(entry)?));
    let all: Vec<String> = OPTIMIZERS.iter().filter_map(named).collect();
    all.join(", or ")
}

impl OptimizerSpec {
    /// Does it look at the learning rate of the first step only, so that a schedule has no part in it?
    pub fn reads_lr_once(&self) -> bool {
        self.rule().reads_lr_once()
    }

    /// Tensors of the size of a parameter that are kept for it.
    pub fn tensors_per_parameter(&self) -> u64 {
        self.rule().slots().iter().filter(|slot| slot.per_element).count() as u64
    }
}
