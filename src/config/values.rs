//! What values a key takes: how one is read from a job, and what there is to say about them.

use std::ops::RangeInclusive;

use super::item::Item;
use super::key::AnyKey;
use super::kind::Kind;
use crate::human::counted;

/// What values a key takes.
pub trait Values: Sync {
    /// What a value is read as.
    type Read;

    /// The value; `None` where it is wrong, which has then been reported.
    fn read(&self, item: &Item<'_>) -> Option<Self::Read>;

    /// What a key that is not there is read as, if it need not be there.
    fn absent(&self) -> Option<Self::Read> {
        None
    }

    fn kind(&self) -> Kind;
}

/// `true` or `false`.
#[derive(Clone, Copy)]
pub struct Flag;

pub const fn flag() -> Flag {
    Flag
}

impl Values for Flag {
    type Read = bool;

    fn read(&self, item: &Item<'_>) -> Option<bool> {
        item.flag()
    }

    fn kind(&self) -> Kind {
        Kind::Flag
    }
}

/// A whole number within limits, both included.
#[derive(Clone, Copy)]
pub struct Integer {
    least: i64,
    most: i64,
}

pub const fn integer(range: RangeInclusive<i64>) -> Integer {
    Integer { least: *range.start(), most: *range.end() }
}

impl Values for Integer {
    type Read = i64;

    fn read(&self, item: &Item<'_>) -> Option<i64> {
        item.integer(self.least..=self.most)
    }

    fn kind(&self) -> Kind {
        Kind::Integer { least: self.least, most: self.most }
    }
}

/// A finite number within limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    pub low: Bound,
    pub high: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    None,
    Including(f64),
    Excluding(f64),
}

/// Any finite number.
pub const fn number() -> Number {
    Number { low: Bound::None, high: Bound::None }
}

pub const fn above(low: f64) -> Number {
    Number { low: Bound::Excluding(low), high: Bound::None }
}

pub const fn at_least(low: f64) -> Number {
    Number { low: Bound::Including(low), high: Bound::None }
}

/// From `low` to `high`, both included.
pub const fn between(low: f64, high: f64) -> Number {
    Number { low: Bound::Including(low), high: Bound::Including(high) }
}

impl Number {
    pub const fn at_most(self, high: f64) -> Number {
        Number { high: Bound::Including(high), ..self }
    }

    pub const fn below(self, high: f64) -> Number {
        Number { high: Bound::Excluding(high), ..self }
    }

    pub fn contains(self, number: f64) -> bool {
        let high_enough = match self.low {
            Bound::None => true,
            Bound::Including(low) => number >= low,
            Bound::Excluding(low) => number > low,
        };
        let low_enough = match self.high {
            Bound::None => true,
            Bound::Including(high) => number <= high,
            Bound::Excluding(high) => number < high,
        };
        high_enough && low_enough
    }

    /// "above 0", "from 0 to 1"; empty where there is no limit.
    pub fn limits(self) -> String {
        let low = match self.low {
            Bound::None => None,
            Bound::Including(low) => Some(format!("at least {low}")),
            Bound::Excluding(low) => Some(format!("above {low}")),
        };
        let high = match self.high {
            Bound::None => None,
            Bound::Including(high) => Some(format!("at most {high}")),
            Bound::Excluding(high) => Some(format!("below {high}")),
        };
        match (self.low, self.high, low, high) {
            (Bound::Including(low), Bound::Including(high), ..) => format!("from {low} to {high}"),
            (_, _, Some(low), Some(high)) => format!("{low} and {high}"),
            (_, _, low, high) => low.or(high).unwrap_or_default(),
        }
    }
}

impl Values for Number {
    type Read = f64;

    fn read(&self, item: &Item<'_>) -> Option<f64> {
        item.number_that(|number| self.contains(number), &self.limits())
    }

    fn kind(&self) -> Kind {
        Kind::Number(*self)
    }
}

/// Text.
#[derive(Clone, Copy)]
pub struct Str;

pub const fn string() -> Str {
    Str
}

impl Values for Str {
    type Read = String;

    fn read(&self, item: &Item<'_>) -> Option<String> {
        item.text().map(str::to_owned)
    }

    fn kind(&self) -> Kind {
        Kind::Str
    }
}

/// One of a few words, each with what it stands for.
#[derive(Clone, Copy)]
pub struct Words<T: 'static>(&'static [(&'static str, T)]);

pub const fn words<T: Copy>(words: &'static [(&'static str, T)]) -> Words<T> {
    Words(words)
}

impl<T: Copy + Sync> Values for Words<T> {
    type Read = T;

    fn read(&self, item: &Item<'_>) -> Option<T> {
        item.choice(self.0)
    }

    fn kind(&self) -> Kind {
        Kind::Words(self.0.iter().map(|(word, _)| *word).collect())
    }
}

/// A list.
#[derive(Clone, Copy)]
pub struct List<V> {
    of: V,
    /// How many entries it has at most, if there is a limit.
    most: Option<usize>,
}

/// A list of any length.
pub const fn list<V: Copy>(of: V) -> List<V> {
    List { of, most: None }
}

impl<V: Copy> List<V> {
    pub const fn at_most(self, most: usize) -> List<V> {
        List { most: Some(most), ..self }
    }
}

impl<V: Values> Values for List<V> {
    type Read = Vec<V::Read>;

    fn read(&self, item: &Item<'_>) -> Option<Vec<V::Read>> {
        let entries = item.list()?;
        if let Some(most) = self.most.filter(|most| entries.len() > *most) {
            let given = counted(entries.len() as u64, "value");
            item.wrong(
                format!("has {given}, expected {most} at most"),
                format!("write a list of {most} at most"),
            );
            return None;
        }
        // Each entry is read, so that all that are wrong are told.
        let read: Vec<_> = entries.iter().map(|entry| self.of.read(entry)).collect();
        read.into_iter().collect()
    }

    fn kind(&self) -> Kind {
        Kind::List { of: Box::new(self.of.kind()), count: None, most: self.most }
    }
}

/// A list of `N` entries.
#[derive(Clone, Copy)]
pub struct Array<V, const N: usize>(V);

pub const fn array<const N: usize, V: Copy>(of: V) -> Array<V, N> {
    Array(of)
}

impl<V: Values, const N: usize> Values for Array<V, N> {
    type Read = [V::Read; N];

    fn read(&self, item: &Item<'_>) -> Option<[V::Read; N]> {
        let read = List { of: &self.0, most: None }.read(item)?;
        let entries = read.len();
        let array = read.try_into().ok();
        if array.is_none() {
            let entries = counted(entries as u64, "value");
            item.wrong(format!("has {entries}, expected {N}"), format!("write a list of {N}"));
        }
        array
    }

    fn kind(&self) -> Kind {
        Kind::List { of: Box::new(self.0.kind()), count: Some(N), most: None }
    }
}

impl<V: Values> Values for &V {
    type Read = V::Read;

    fn read(&self, item: &Item<'_>) -> Option<V::Read> {
        (**self).read(item)
    }

    fn absent(&self) -> Option<V::Read> {
        (**self).absent()
    }

    fn kind(&self) -> Kind {
        (**self).kind()
    }
}

/// One whole number for all `N` dimensions, or a list of `N`.
#[derive(Clone, Copy)]
pub struct Sizes<const N: usize>(Integer);

pub const fn sizes<const N: usize>(range: RangeInclusive<i64>) -> Sizes<N> {
    Sizes(integer(range))
}

impl<const N: usize> Values for Sizes<N> {
    type Read = [i64; N];

    fn read(&self, item: &Item<'_>) -> Option<[i64; N]> {
        item.sizes(self.0.least..=self.0.most)
    }

    fn kind(&self) -> Kind {
        match N {
            1 => self.0.kind(),
            _ => Kind::Either(vec![
                self.0.kind(),
                Kind::List { of: Box::new(self.0.kind()), count: Some(N), most: None },
            ]),
        }
    }
}

/// Values with a reader of their own, for what the others cannot say.
pub struct By<T> {
    read: fn(&Item<'_>) -> Option<T>,
    kind: fn() -> Kind,
}

// Derived, these would want `T` to be `Copy`.
impl<T> Clone for By<T> {
    fn clone(&self) -> By<T> {
        *self
    }
}

impl<T> Copy for By<T> {}

pub const fn by<T>(read: fn(&Item<'_>) -> Option<T>, kind: fn() -> Kind) -> By<T> {
    By { read, kind }
}

impl<T> Values for By<T> {
    type Read = T;

    fn read(&self, item: &Item<'_>) -> Option<T> {
        (self.read)(item)
    }

    fn kind(&self) -> Kind {
        (self.kind)()
    }
}

/// Values that are read by hand, with what else is known then: see [`super::Table::item`].
#[derive(Clone, Copy)]
pub struct ByHand(fn() -> Kind);

pub const fn by_hand(kind: fn() -> Kind) -> ByHand {
    ByHand(kind)
}

impl Values for ByHand {
    type Read = ();

    fn read(&self, _: &Item<'_>) -> Option<()> {
        Some(())
    }

    fn kind(&self) -> Kind {
        (self.0)()
    }
}

/// A table with keys of its own. Reading it reports those that it does not have.
#[derive(Clone, Copy)]
pub struct Keys(&'static [&'static dyn AnyKey]);

pub(super) const fn keys(keys: &'static [&'static dyn AnyKey]) -> Keys {
    Keys(keys)
}

impl Keys {
    pub(super) fn keys(self) -> &'static [&'static dyn AnyKey] {
        self.0
    }
}

impl Values for Keys {
    type Read = ();

    fn read(&self, item: &Item<'_>) -> Option<()> {
        item.table().map(|table| table.only(self.0))
    }

    fn absent(&self) -> Option<()> {
        Some(())
    }

    fn kind(&self) -> Kind {
        Kind::Table(self.0)
    }
}

/// Values of a key that need not be there.
#[derive(Clone, Copy)]
pub struct Optional<V>(pub(super) V);

impl<V: Values> Values for Optional<V> {
    type Read = Option<V::Read>;

    fn read(&self, item: &Item<'_>) -> Option<Option<V::Read>> {
        self.0.read(item).map(Some)
    }

    fn absent(&self) -> Option<Option<V::Read>> {
        Some(None)
    }

    fn kind(&self) -> Kind {
        self.0.kind()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_as_they_hold() {
        assert_eq!(above(0.0).limits(), "above 0");
        assert_eq!(at_least(0.0).below(1.0).limits(), "at least 0 and below 1");
        assert_eq!(between(0.0, 1.0).limits(), "from 0 to 1");
        assert_eq!(number().limits(), "");
        assert!(!above(0.0).contains(0.0) && above(0.0).contains(1e-9));
        assert!(between(0.0, 1.0).contains(1.0) && !at_least(0.0).below(1.0).contains(1.0));
    }
}
