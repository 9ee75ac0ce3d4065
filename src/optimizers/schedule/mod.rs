//! How the learning rate goes on as training does: `optimizer.schedule`, with the numbers of `torch.optim.lr_scheduler`.
//!
//! A schedule is a factor that depends on the number of a trainer's step and on nothing else, so that every rank that knows
//! the step knows the rate. One file for each curve says everything of it: its options as keys of a job and its formula;
//! one line below adds it. In front of any curve there may be a warm-up.

use serde::Serialize;

use crate::config::{
    AnyKey, ByHand, Integer, Item, Key, Kind, Number, Optional, Str, Table, Variant, above, at_least,
    between, by_hand, integer, key, string,
};
use crate::human::counted;

/// A learning rate that changes: the optimizer's, times a factor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LrSchedule {
    #[serde(flatten)]
    curve: Curve,
    /// Steps in which the rate grows to the optimizer's; in front of the curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_steps: Option<u64>,
    /// The same as a share of all steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup: Option<f64>,
    /// The factor of the first step. None: there is no warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_from: Option<f64>,
}

/// A formula by its options.
trait Shape {
    /// What the learning rate is multiplied by in step `step`, counted from 0, of `steps`.
    fn factor(&self, step: u64, steps: u64) -> f64;

    /// The steps that it has to have for all that it says to happen.
    fn needs_steps(&self) -> Option<Needed>;

    /// Why no warm-up may come before it, if so: what stands behind the key of the warm-up.
    fn refuses_warmup(&self) -> Option<&'static str>;
}

/// How many steps a curve needs at least, and the key that says so.
struct Needed {
    key: &'static str,
    steps: u64,
}

/// Declares a curve: the meaning, then each option with its type and its key, which has the option's name.
macro_rules! curve {
    (
        #[doc = $doc:literal]
        pub struct $name:ident { $($option:ident: $type:ty = $key:expr,)* }
    ) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct $name {
            $(#[serde(skip_serializing_if = "crate::optimizers::schedule::Unsaid::is_unsaid")] $option: $type,)*
        }

        crate::config::read_by_keys! { $doc $name { $($option = $key,)* } }
    };
}

/// An option that may be left unsaid.
trait Unsaid {
    fn is_unsaid(&self) -> bool {
        false
    }
}

impl Unsaid for f64 {}
impl Unsaid for i64 {}
impl Unsaid for bool {}
impl Unsaid for Vec<i64> {}
impl Unsaid for String {}
impl Unsaid for plateau::Threshold {}
impl<T> Unsaid for Option<T> {
    fn is_unsaid(&self) -> bool {
        self.is_none()
    }
}

/// Makes of a line `file::Type` the module, the variant of [`Curve`] and the entry of [`CURVES`]. A job names a curve as its
/// file is called, which is the type's name in lower case.
macro_rules! curves {
    ($($file:ident::$Type:ident,)*) => {
        $(mod $file;)*
        $(pub use $file::$Type;)*

        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        enum Curve {
            $($Type($Type),)*
        }

        static CURVES: &[CurveEntry] = &[$(CurveEntry {
            name: stringify!($file),
            doc: $Type::DOC,
            keys: $Type::KEYS,
            read: |table| Some(Curve::$Type($Type::read(table)?)),
        },)*];

        impl Curve {
            fn name(&self) -> &'static str {
                match self {
                    $(Curve::$Type(_) => stringify!($file),)*
                }
            }

            fn shape(&self) -> &dyn Shape {
                match self {
                    $(Curve::$Type(options) => options,)*
                }
            }
        }
    };
}

curves! {
    constant::Constant,
    linear::Linear,
    cosine::Cosine,
    cosine_restarts::CosineRestarts,
    step::Step,
    multi_step::MultiStep,
    exponential::Exponential,
    polynomial::Polynomial,
    one_cycle::OneCycle,
    inverse_sqrt::InverseSqrt,
    plateau::Plateau,
}

pub use plateau::Falling;

/// What a job can say of a curve.
struct CurveEntry {
    name: &'static str,
    doc: &'static str,
    /// Beside those that all have.
    keys: &'static [&'static dyn AnyKey],
    read: fn(&Table<'_>) -> Option<Curve>,
}

/// In a job's optimizer.
pub const SCHEDULE: Key<Optional<ByHand>> =
    key("schedule", by_hand(|| Kind::Variants("schedule", COMMON, variants)))
        .optional()
        .doc("How the learning rate changes, by steps of the trainer.");
const TYPE: Key<Str> = key("type", string()).example("\"cosine\"").doc("Which curve.");
const WARMUP_STEPS: Key<Optional<Integer>> = key("warmup_steps", integer(1..=MOST_STEPS))
    .optional()
    .doc("Steps in which the rate grows evenly to the optimizer's `lr`, before the curve begins.");
const WARMUP: Key<Optional<Number>> = key("warmup", above_zero_below_one())
    .optional()
    .doc("In place of `warmup_steps`: which share of all steps they are.");
const WARMUP_FROM: Key<Number> = key("warmup_from", between(0.0, 1.0))
    .default("0.0")
    .doc("With a warm-up: what `lr` is multiplied by in the first step.");
/// Those of every curve.
pub static COMMON: &[&dyn AnyKey] = &[&TYPE, &WARMUP_STEPS, &WARMUP, &WARMUP_FROM];

const fn above_zero_below_one() -> Number {
    above(0.0).below(1.0)
}

/// Those of a trainer, as in `train.steps`.
const MOST_STEPS: i64 = 1 << 48;

const STEPS: Key<Optional<Integer>> = key("steps", integer(1..=MOST_STEPS)).optional().doc(
    "Steps that the curve takes, behind the warm-up, and then it stays; without it all that a trainer has.",
);
const END_FACTOR: Key<Number> = key("end_factor", at_least(0.0))
    .default("0.0")
    .doc("What `lr` is multiplied by at the end; torch's `eta_min` by its share of `lr`.");
const GAMMA: Key<Number> = key("gamma", above(0.0)).doc("What the rate is multiplied by each time.");

/// All curves, as a job's table of one may be.
pub fn variants() -> Vec<Variant> {
    CURVES.iter().map(|entry| Variant { name: entry.name, doc: entry.doc, keys: entry.keys }).collect()
}

/// A schedule as a job writes it. `None`: what is wrong has been reported.
pub(super) fn read(item: &Item<'_>) -> Option<LrSchedule> {
    let table = item.table()?;
    let names: Vec<_> = CURVES.iter().map(|entry| (entry.name, entry)).collect();
    let entry = table.need_item(&TYPE)?.choice(&names)?;
    let curve = (entry.read)(&table);
    let (warmup_steps, warmup) = (table.read(&WARMUP_STEPS), table.read(&WARMUP));
    let warmup_from = table.read(&WARMUP_FROM);
    table.only(&[COMMON, entry.keys].concat());
    let written = [table.item(&WARMUP_STEPS), table.item(&WARMUP)];
    let warms_up = written.iter().any(Option::is_some);
    let schedule = LrSchedule {
        curve: curve?,
        warmup_steps: warmup_steps?.map(|steps| steps as u64),
        warmup: warmup?,
        warmup_from: Some(warmup_from?).filter(|_| warms_up),
    };
    if let [Some(_), Some(share)] = &written {
        share.wrong("and warmup_steps both say how long the warm-up is", "leave one of them out");
        return None;
    }
    let refused = schedule.curve.shape().refuses_warmup();
    if let (Some(why), Some(warmup)) = (refused, written.iter().flatten().next()) {
        warmup.wrong(why, "leave it out");
        return None;
    }
    if let Some(from) = table.item(&WARMUP_FROM).filter(|_| !warms_up) {
        from.wrong("is of a warm-up, and there is none", "write warmup_steps too, or leave it out");
        return None;
    }
    Some(schedule)
}

impl LrSchedule {
    /// What the learning rate is multiplied by in step `step` of a trainer, counted from 0, which takes `steps` in all.
    pub fn factor(&self, step: u64, steps: u64) -> f64 {
        let warmup = self.warmup_of(steps);
        if step < warmup {
            let from = self.warmup_from.unwrap_or(0.0);
            return from + (1.0 - from) * step as f64 / warmup as f64;
        }
        self.curve.shape().factor(step - warmup, steps.saturating_sub(warmup))
    }

    /// Why a trainer of so many steps does not come to all of it, if so: a problem and a hint.
    pub fn beyond(&self, steps: u64) -> Option<(String, String)> {
        let warmup = self.warmup_of(steps);
        let Some(left) = steps.checked_sub(warmup).filter(|left| *left > 0) else {
            let problem = format!("warms up for {}, and a trainer takes {steps}", counted(warmup, "step"));
            let hint = match steps {
                1 => "leave the warm-up out".to_owned(),
                steps => format!("warm up for less than {}", counted(steps, "step")),
            };
            return Some((problem, hint));
        };
        let Needed { key, steps: needed } =
            self.curve.shape().needs_steps().filter(|needed| needed.steps > left)?;
        let behind = if warmup > 0 { format!(" behind the {warmup} of its warm-up") } else { String::new() };
        let (needed, taken) = (counted(needed, "step"), counted(steps, "step"));
        let problem = format!("needs at least {needed} (`{key}`){behind}, and a trainer takes {taken}");
        let hint = match left {
            1 => format!("change `{key}` so that 1 step is enough, or train for longer"),
            left => format!("change `{key}` so that {left} steps are enough, or train for longer"),
        };
        Some((problem, hint))
    }

    /// The curve as a job names it.
    pub fn name(&self) -> &'static str {
        self.curve.name()
    }

    /// How long the warm-up is, if there is one and it is known: a share is of the trainer's `steps`.
    pub fn warmup_steps(&self, steps: Option<u64>) -> Option<u64> {
        let warmup = match (self.warmup_steps, steps) {
            (Some(warmup), _) => warmup,
            (None, steps) => self.warmup_of(steps?),
        };
        Some(warmup).filter(|warmup| *warmup > 0)
    }

    /// If it goes by a figure of validations.
    pub fn plateau(&self) -> Option<&Plateau> {
        match &self.curve {
            Curve::Plateau(plateau) => Some(plateau),
            _ => None,
        }
    }

    fn warmup_of(&self, steps: u64) -> u64 {
        match (self.warmup_steps, self.warmup) {
            (Some(steps), _) => steps,
            (None, Some(share)) => (steps as f64 * share).round() as u64,
            (None, None) => 0,
        }
    }
}

/// How far a curve of its own or of all steps has come, from 0 to 1.
fn progress(step: u64, own: Option<i64>, steps: u64) -> f64 {
    let steps = own.map_or(steps, |own| own as u64).max(1);
    step.min(steps) as f64 / steps as f64
}

fn own_steps(own: Option<i64>) -> Option<Needed> {
    own.map(|steps| Needed { key: STEPS.name(), steps: steps as u64 })
}

/// From 1 down to `end`, `progress` going from 0 to 1.
fn half_wave(end: f64, progress: f64) -> f64 {
    end + (1.0 - end) * (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0
}
