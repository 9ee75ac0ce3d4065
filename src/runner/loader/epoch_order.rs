//! The samples of an epoch, one by one, for one trainer.

use super::dealt::Left;
use super::order::Order;

/// The samples of one trainer in one epoch.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    pub(super) order: Order,
    /// The trainer's are the positions `first`, `first + stride` ... of the order.
    pub(super) first: u64,
    pub(super) stride: u64,
    /// What others have left of the order, where some have taken of it: the positions are among these.
    pub(super) left: Option<Left>,
    /// Where the order is one of the trainer's own part.
    pub(super) parts: Option<OwnSamples>,
    pub(super) count: u64,
    pub(super) batch_size: u64,
}

/// A part of the samples that is a trainer's own, after `before` others.
#[derive(Clone, Debug)]
pub(super) struct OwnSamples {
    pub(super) order: Order,
    pub(super) before: u64,
}

impl EpochOrder {
    /// Positions in the data set, in order of use.
    pub fn samples(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.count).map(|nth| self.sample(nth))
    }

    /// The positions of the `nth` batch, counted from 0; empty past the end.
    pub fn batch(&self, nth: u64) -> Vec<u64> {
        let from = nth.saturating_mul(self.batch_size).min(self.count);
        let to = from.saturating_add(self.batch_size).min(self.count);
        (from..to).map(|nth| self.sample(nth)).collect()
    }

    fn sample(&self, nth: u64) -> u64 {
        let nth = self.first + nth * self.stride;
        let place = self.order.at(self.left.as_ref().map_or(nth, |left| left.at(nth)));
        self.parts.as_ref().map_or(place, |part| part.order.at(part.before + place))
    }
}
