//! The options of optimizers as keys of a job, and the macro that declares those of one.

use super::rule::Impossible;
use crate::config::{
    AnyKey, Flag, Item, Key, Kind, Number, Refused, Table, Values, above, at_least, fits_float32, flag, key,
    refused,
};

pub(super) const LR: Key<Number> = key("lr", above(0.0)).doc("Learning rate.");
pub(super) const BETAS: Key<Pair> =
    pair("betas", [at_least(0.0).below(1.0); 2], "two numbers of at least 0 and below 1", "[0.9, 0.999]")
        .doc("Decay of the running means of the gradient and of its square.");
pub(super) const EPS: Key<Number> =
    key("eps", at_least(0.0)).default("1e-8").doc("Added to the divisor, so that it is never 0.");
pub(super) const WEIGHT_DECAY: Key<Number> = key("weight_decay", at_least(0.0))
    .default("0.0")
    .doc("L2 penalty: how much of the parameter joins its gradient.");
pub(super) const DECOUPLED_WEIGHT_DECAY: Key<Flag> = key("decoupled_weight_decay", flag())
    .default("false")
    .doc("Take weight_decay straight off the parameter, as AdamW does.");
pub(super) const MAXIMIZE: Key<Flag> =
    key("maximize", flag()).default("false").doc("Climb instead of descending.");

const NOT_HERE: &str = "leave it out: it changes how PyTorch computes, not what";
pub(super) const FOREACH: Refused = refused("foreach", NOT_HERE);
pub(super) const FUSED: Refused = refused("fused", NOT_HERE);
pub(super) const CAPTURABLE: Refused = refused("capturable", NOT_HERE);
pub(super) const DIFFERENTIABLE: Refused = refused("differentiable", NOT_HERE);

/// How a job writes an optimizer's options. Made by `options!`.
pub trait Options: Sized {
    /// One line of meaning.
    const DOC: &'static str;
    const KEYS: &'static [&'static dyn AnyKey];

    /// `None`: what is wrong has been reported.
    fn read(table: &Table<'_>) -> Option<Self>;

    /// Whether each option is in its range.
    ///
    /// # Errors
    /// The first that is not.
    fn check_ranges(&self) -> Result<(), Impossible>;
}

/// Declares an optimizer: the meaning, then each option with its type and its key, which has the option's name.
macro_rules! options {
    (
        #[doc = $doc:literal]
        pub struct $name:ident { $($option:ident: $type:ty = $key:expr,)* }
    ) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $(pub $option: $type,)*
        }

        impl $crate::optimizers::options::Options for $name {
            const DOC: &'static str = $doc.trim_ascii();
            const KEYS: &'static [&'static dyn $crate::config::AnyKey] = &[
                $(&$key,)*
                &$crate::optimizers::options::FOREACH,
                &$crate::optimizers::options::FUSED,
                &$crate::optimizers::options::CAPTURABLE,
                &$crate::optimizers::options::DIFFERENTIABLE,
            ];

            fn read(table: &$crate::config::Table<'_>) -> Option<$name> {
                // Each is read before any can fail, so that all that are wrong are told.
                $(let $option = table.read(&$key);)*
                Some($name { $($option: $option?,)* })
            }

            fn check_ranges(&self) -> Result<(), $crate::optimizers::rule::Impossible> {
                use $crate::optimizers::options::Ranged as _;
                $($key.values().check(stringify!($option), &self.$option)?;)*
                Ok(())
            }
        }
    };
}
pub(super) use options;

/// Values that can be checked again: options travel between ranks.
pub(super) trait Ranged: Values {
    /// # Errors
    /// What is out of range.
    fn check(&self, option: &str, value: &Self::Read) -> Result<(), Impossible>;
}

impl Ranged for Number {
    fn check(&self, option: &str, value: &f64) -> Result<(), Impossible> {
        let impossible =
            |problem, hint| Impossible { option: option.into(), value: value.to_string(), problem, hint };
        if value.is_finite() && self.contains(*value) {
            return fits_float32(*value).map_err(|(problem, hint)| impossible(problem, hint));
        }
        let limits = self.limits();
        let number =
            if limits.is_empty() { "a finite number".to_owned() } else { format!("a number {limits}") };
        Err(impossible(format!("is not {number}"), format!("use {number}")))
    }
}

impl Ranged for Flag {
    fn check(&self, _option: &str, _value: &bool) -> Result<(), Impossible> {
        Ok(())
    }
}

/// Two numbers, each in its range.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    numbers: [Number; 2],
    /// "two numbers of ..."
    limit: &'static str,
    default: &'static str,
}

/// A key of two numbers; `limit` says which, as in "two numbers of at least 0".
pub(super) const fn pair(
    name: &'static str,
    numbers: [Number; 2],
    limit: &'static str,
    default: &'static str,
) -> Key<Pair> {
    key(name, Pair { numbers, limit, default }).default(default)
}

impl Values for Pair {
    type Read = [f64; 2];

    fn read(&self, item: &Item<'_>) -> Option<[f64; 2]> {
        let entries = item.list()?;
        let read: Vec<_> = entries.iter().map(Item::number).collect();
        let read: Vec<f64> = read.into_iter().collect::<Option<_>>()?;
        match <[f64; 2]>::try_from(read) {
            Ok(pair) if self.check("", &pair).is_ok() => Some(pair),
            _ => {
                item.wrong(
                    format!("is not {}", self.limit),
                    format!("PyTorch's default is {}", self.default),
                );
                None
            }
        }
    }

    fn kind(&self) -> Kind {
        Kind::List { of: Box::new(self.numbers[0].kind()), count: Some(2), most: None }
    }
}

impl Ranged for Pair {
    fn check(&self, option: &str, value: &[f64; 2]) -> Result<(), Impossible> {
        for (at, (number, value)) in self.numbers.iter().zip(value).enumerate() {
            number.check(&format!("{option}[{at}]"), value)?;
        }
        Ok(())
    }
}
