//! A state as whoever reads it holds it.

use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};

use super::server::offer;
use super::{Entry, Extent, OwnerState, PIECE_BYTES, RowChoice, StepCounters};
use crate::autograd::Autograd;
use crate::parallel::calls::state::{Piece, Read, SwapAverages, Take, Taken};
use crate::rpc::{Json, PendingReply, RRef};
use crate::topology::Rank;

/// What one owner had at one moment, for as long as this is held.
pub struct StateSnapshot {
    autograd: Arc<Autograd>,
    snapshot: RRef,
    /// The state itself, of this rank: it can be read when the mesh has ended, too.
    here: Option<Arc<Mutex<OwnerState>>>,
    pub entries: Vec<Entry>,
    /// Further names of tensors, each with the name under which it is one of the entries.
    pub aliases: Vec<(String, String)>,
    pub counters: StepCounters,
    /// What later ones may have the rows of a table [`Since`](RowChoice::Since).
    pub version: u64,
}

impl StateSnapshot {
    /// What `owner` has of a module now.
    ///
    /// # Errors
    /// When it has nothing of it.
    pub fn take(
        autograd: &Arc<Autograd>,
        owner: Rank,
        module: &str,
        rows: RowChoice,
    ) -> Result<StateSnapshot> {
        let take = Take { module: module.into(), rows: Json(rows) };
        Ok(StateSnapshot::of(autograd, autograd.call(owner, take, None).wait()?))
    }

    /// Has the averages that `owner` keeps of a module's parameters take the parameters' place, and these theirs. The answer
    /// is to be waited for.
    #[must_use = "only the answer tells that it is done"]
    pub fn swap_averages(autograd: &Arc<Autograd>, owner: Rank, module: &str) -> PendingReply<()> {
        autograd.call(owner, SwapAverages { module: module.into() }, None)
    }

    /// A state of this rank.
    pub(in crate::parallel) fn here(
        autograd: &Arc<Autograd>,
        state: Arc<Mutex<OwnerState>>,
    ) -> StateSnapshot {
        let taken = offer(autograd.objects(), state.clone());
        StateSnapshot { here: Some(state), ..StateSnapshot::of(autograd, taken) }
    }

    /// The one that another rank has passed on.
    pub(crate) fn of(autograd: &Arc<Autograd>, taken: Taken) -> StateSnapshot {
        let Taken { snapshot, entries: Json(entries), aliases, counters: Json(counters), version } = taken;
        StateSnapshot {
            autograd: autograd.clone(),
            snapshot,
            here: None,
            entries,
            aliases,
            counters,
            version,
        }
    }

    /// To pass on in a call.
    pub(crate) fn into_taken(self) -> Taken {
        let StateSnapshot { snapshot, entries, aliases, counters, version, .. } = self;
        Taken { snapshot, entries: Json(entries), aliases, counters: Json(counters), version }
    }

    /// Some numbers, or rows, of an entry.
    ///
    /// # Errors
    /// The call fails, or what comes is not what was asked for.
    pub fn read(&self, at: usize, from: u64, count: u64) -> Result<Piece> {
        if let Some(state) = &self.here {
            return state.lock().expect("nobody panics reading a state").read(at as u64, from, count);
        }
        let entry = &self.entries[at];
        let read = Read { snapshot: self.snapshot.clone(), entry: at as u64, from, count };
        let piece = self.autograd.call(self.snapshot.owner(), read, None).wait()?;
        let (rows, kind, size) = (piece.ids.is_some(), piece.values.f_kind()?, piece.values.size());
        let mut wanted = vec![count as i64];
        wanted.extend(entry.shape.iter().skip(1).filter(|_| rows));
        let by_rows = matches!(entry.extent, Extent::Rows { .. });
        let ids_fit = piece.ids.as_ref().is_none_or(|ids| ids.size() == [count as i64]);
        ensure!(
            kind == entry.kind && size == wanted && rows == by_rows && ids_fit,
            "rank {} sent {kind:?} {size:?} of `{}`, and {:?} {wanted:?} was asked for",
            self.snapshot.owner(),
            entry.tensor,
            entry.kind
        );
        Ok(piece)
    }

    /// An entry in pieces, in order.
    pub fn pieces(&self, at: usize) -> impl Iterator<Item = Result<Piece>> {
        self.pieces_between(at, 0, self.entries[at].len())
    }

    /// So many rows of an entry, or numbers, from one on: counted as the entry's extent counts, in the whole tensor.
    pub fn pieces_of(&self, at: usize, from: u64, count: u64) -> impl Iterator<Item = Result<Piece>> {
        let first = self.entries[at].first();
        self.pieces_between(at, from - first, from - first + count)
    }

    fn pieces_between(&self, at: usize, start: u64, end: u64) -> impl Iterator<Item = Result<Piece>> {
        let each = self.entries[at].of_piece();
        (start..end).step_by(each as usize).map(move |from| self.read(at, from, each.min(end - from)))
    }
}

impl Entry {
    /// Where its numbers begin in the tensor, taken as a vector; 0 for what has no place of its own in it.
    pub fn first(&self) -> u64 {
        match self.extent {
            Extent::Elements { from, .. } => from,
            Extent::Shared | Extent::Rows { .. } | Extent::RowsOf(_) => 0,
        }
    }

    /// How many numbers, or rows, there are.
    pub fn len(&self) -> u64 {
        match self.extent {
            Extent::Elements { from, to } => to - from,
            Extent::Shared => self.shape.iter().product::<i64>() as u64,
            Extent::Rows { rows, .. } => rows,
            Extent::RowsOf(_) => 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them a piece takes, one at least.
    fn of_piece(&self) -> u64 {
        let width = match self.extent {
            Extent::Rows { .. } | Extent::RowsOf(_) => {
                self.shape.iter().skip(1).product::<i64>().max(1) as u64
            }
            Extent::Elements { .. } | Extent::Shared => 1,
        };
        (PIECE_BYTES / (width * self.kind.elt_size_in_bytes() as u64)).max(1)
    }
}
