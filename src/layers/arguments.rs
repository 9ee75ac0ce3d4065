//! The arguments of layers as keys of a job: those that several layers have, and the macro that declares those of one.

use crate::config::{
    AnyKey, Flag, Integer, Item, Key, Kind, MOST, Number, Refused, Table, Values, above, between, flag,
    integer, key, refused,
};

pub(super) const BIAS: Key<Flag> = key("bias", flag()).default("true").doc("Whether it adds a learned bias.");
pub(super) const EPS: Key<Number> =
    key("eps", above(0.0)).default("1e-5").doc("Added to the variance, so that nothing is divided by 0.");
pub(super) const INPLACE: Refused = refused("inplace", "leave it out: the runner decides where results go");

/// A size that has to be there.
pub(super) const fn size(name: &'static str) -> Key<Integer> {
    key(name, integer(1..=MOST)).example("64")
}

/// A probability, 0 where it is not said.
pub(super) const fn dropout(name: &'static str) -> Key<Number> {
    key(name, between(0.0, 1.0)).default("0.0")
}

/// A dimension as PyTorch counts them, with the batch as 0 or from the end.
pub(super) const fn dimension(name: &'static str) -> Key<Integer> {
    key(name, integer(-16..=16))
}

/// How a job writes a layer's arguments. Made by `arguments!`, or by hand where they are read in another way.
pub trait Arguments: Sized {
    /// One line of meaning.
    const DOC: &'static str;
    /// Beside `type` and `name`.
    const KEYS: &'static [&'static dyn AnyKey];

    /// `None`: what is wrong has been reported.
    fn read(table: &Table<'_>) -> Option<Self>;
}

/// Declares a layer: the meaning, each argument with its type and its key, which has the argument's name; then, if there
/// are such, a key that has to be written and can have one value only, keys that PyTorch has and this version has not, and
/// the rules between arguments. A layer for several numbers of dimensions, `Name<const N: usize>: Trait`, has in `Trait`
/// what they do not have in common, its `DOC` too.
macro_rules! arguments {
    (
        #[doc = $doc:literal]
        pub struct $name:ident { $($fields:tt)* }
        $($more:tt)*
    ) => {
        $crate::layers::arguments::arguments! {
            @declare [] [$name] [] [$doc.trim_ascii()]
            #[doc = $doc]
            pub struct $name { $($fields)* }
            $($more)*
        }
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident<const $n:ident: usize>: $dimensions:ident { $($fields:tt)* }
        $($more:tt)*
    ) => {
        $crate::layers::arguments::arguments! {
            @declare [<const $n: usize>] [$name<$n>] [where $name<$n>: $dimensions] [<$name<$n> as $dimensions>::DOC]
            $(#[$meta])*
            #[serde(bound = "[i64; N]: serde::Serialize")]
            pub struct $name { $($fields)* }
            $($more)*
        }
    };
    (
        @declare [$($generics:tt)*] [$layer:ty] [$($bound:tt)*] [$doc:expr]
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$attribute:meta])* $argument:ident: $type:ty = $key:expr,)* }
        $(required: $required:expr;)?
        $(refused: $($refused:expr),+;)?
        $(rules: $rules:expr;)?
    ) => {
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        $(#[$meta])*
        pub struct $name $($generics)* {
            $($(#[$attribute])* pub $argument: $type,)*
        }

        impl $($generics)* $crate::layers::arguments::Arguments for $layer $($bound)* {
            const DOC: &'static str = $doc;
            const KEYS: &'static [&'static dyn $crate::config::AnyKey] = &[$(&$key,)* $(&$required,)? $($(&$refused,)+)?];

            #[allow(unused_variables, reason = "a layer without arguments reads nothing")]
            fn read(table: &$crate::config::Table<'_>) -> Option<$layer> {
                // Each is read before any can fail, so that all that are wrong are told.
                $(let $argument = table.read(&$key);)*
                $(let required = table.read(&$required);)?
                let layer = $name { $($argument: $argument?,)* };
                $(let layer = $rules(layer, table)?;)?
                $(let _ = (&$required, required?);)?
                Some(layer)
            }
        }
    };
}
pub(super) use arguments;

/// A flag that has to be set. PyTorch's default is false, and a job's batches always have the samples first: a layer would
/// run along the samples instead of along time, without any error. So it has to be said.
pub(super) const BATCH_FIRST: Key<BatchFirst> = key("batch_first", BatchFirst)
    .example(MUST_BE_SAID)
    .doc("Samples come first: the only value that a job can have.");

const MUST_BE_SAID: &str = "true (PyTorch's default, false, would take the samples for time steps)";

#[derive(Clone, Copy)]
pub(super) struct BatchFirst;

impl Values for BatchFirst {
    type Read = ();

    fn read(&self, item: &Item<'_>) -> Option<()> {
        let batch_first = item.flag()?;
        if !batch_first {
            let hint = format!("write batch_first = {MUST_BE_SAID}");
            item.wrong("does not fit: the first dimension of a batch counts the samples", hint);
        }
        batch_first.then_some(())
    }

    fn kind(&self) -> Kind {
        Kind::Flag
    }
}

/// "use 1, 2 or 4": what divides `number`.
pub(super) fn divisors_hint(number: i64) -> String {
    let divisors: Vec<String> =
        (1..=number.min(1 << 16)).filter(|d| number % d == 0).map(|d| d.to_string()).collect();
    // The outermost are the ones that say something; a long list does not.
    let shown = divisors.iter().take(8).map(String::as_str);
    format!("use {}", crate::config::one_of(shown))
}

/// Reports that `key` does not divide `number`, which `what` is, if so.
pub(super) fn must_divide(
    table: &Table<'_>,
    key: &dyn AnyKey,
    divisor: i64,
    what: &str,
    number: i64,
) -> Option<()> {
    if number % divisor == 0 {
        return Some(());
    }
    if let Some(item) = table.item(key) {
        item.wrong(format!("does not divide {what} = {number}"), divisors_hint(number));
    }
    None
}
