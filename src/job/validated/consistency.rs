//! How the updates of many trainers meet: what a job can say. What it means is in `parallel/updates`, a file for each.

use std::fmt;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// An update is applied when it comes.
    Async,
    /// In rounds of all trainers.
    Bsp,
    /// No trainer is more than `staleness` steps ahead of the slowest.
    Ssp { staleness: u32 },
    /// In place, without order.
    Hogwild,
    /// Trainers take turns.
    Sequential,
}

/// As a job writes them; a bound has a key of its own.
pub(in crate::job) const CONSISTENCIES: [(&str, Consistency); 5] = [
    ("async", Consistency::Async),
    ("bsp", Consistency::Bsp),
    ("ssp", Consistency::Ssp { staleness: 0 }),
    ("hogwild", Consistency::Hogwild),
    ("sequential", Consistency::Sequential),
];

/// How far trainers are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// They take each step together, for as long as they have steps.
    Together,
    /// The fastest waits when it is so many steps ahead of the slowest.
    AtMost(u64),
    /// None waits for another.
    Freely,
}

impl Consistency {
    /// How far it lets trainers be apart.
    pub fn apart(self) -> Apart {
        match self {
            Consistency::Bsp => Apart::Together,
            // A step is asked for before the one before it is applied.
            Consistency::Ssp { staleness } => Apart::AtMost(u64::from(staleness) + 2),
            Consistency::Sequential => Apart::AtMost(2),
            Consistency::Async | Consistency::Hogwild => Apart::Freely,
        }
    }

    /// Whether each step is a round of all trainers: one update, from what all of them have given.
    pub fn has_rounds(self) -> bool {
        self.apart() == Apart::Together
    }

    /// Whether a trainer's step begins when the ones before it, of other trainers, are over.
    pub fn takes_turns(self) -> bool {
        match self {
            Consistency::Sequential => true,
            Consistency::Async | Consistency::Bsp | Consistency::Ssp { .. } | Consistency::Hogwild => false,
        }
    }

    /// Whether updates have an order. Without one no step has weights of its own, and each trainer has an optimizer with a state
    /// of its own.
    pub fn is_ordered(self) -> bool {
        match self {
            Consistency::Async | Consistency::Bsp | Consistency::Ssp { .. } | Consistency::Sequential => true,
            Consistency::Hogwild => false,
        }
    }

    /// The one that a job calls so.
    pub fn named(word: &str) -> Option<Consistency> {
        CONSISTENCIES.iter().find(|(known, _)| *known == word).map(|(_, consistency)| *consistency)
    }

    /// With a bound on staleness. `None`: it has none.
    pub(in crate::job) fn bounded(self, staleness: u32) -> Option<Consistency> {
        match self {
            Consistency::Ssp { .. } => Some(Consistency::Ssp { staleness }),
            Consistency::Async | Consistency::Bsp | Consistency::Hogwild | Consistency::Sequential => None,
        }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = |known: &Consistency| std::mem::discriminant(known) == std::mem::discriminant(self);
        let word = CONSISTENCIES.iter().find(|(_, known)| same(known)).map_or("", |(word, _)| word);
        f.write_str(word)?;
        match self {
            Consistency::Ssp { staleness } => write!(f, " with staleness {staleness}"),
            Consistency::Async | Consistency::Bsp | Consistency::Hogwild | Consistency::Sequential => Ok(()),
        }
    }
}
