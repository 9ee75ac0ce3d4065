//! What the steps of trainers bring to an owner's rows.

use c10d::vectors::Numbers;

use super::Place;
use crate::parallel::StepTerms;

/// What a look-up remembers of its rows.
#[derive(Clone)]
pub(super) enum LookedUp {
    Places(Vec<Place>),
    /// Where they come and go, an update finds out which of them there are.
    Ids(Vec<i64>),
}

impl LookedUp {
    pub fn len(&self) -> usize {
        match self {
            LookedUp::Places(places) => places.len(),
            LookedUp::Ids(ids) => ids.len(),
        }
    }
}

/// What one trainer's step brings.
pub(super) struct Contribution {
    pub terms: StepTerms,
    pub looked_up: Vec<Gradients>,
}

impl Contribution {
    /// What it asks for, by look-up, where rows come and go.
    pub fn ids(&self) -> Vec<&[i64]> {
        let ids = self.looked_up.iter().filter_map(|gradients| match &gradients.of {
            LookedUp::Ids(ids) => Some(ids.as_slice()),
            LookedUp::Places(_) => None,
        });
        ids.collect()
    }
}

/// The gradients of the rows of one look-up.
pub(super) struct Gradients {
    /// The ids of the rows; filled for several tables only.
    pub ids: Vec<i64>,
    pub of: LookedUp,
    /// Row after row.
    pub numbers: Numbers,
}
