//! A state at its owner.

use std::any::Any;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use tch::{Device, Tensor};

use super::{Entry, Extent, PIECE_BYTES, Restored, RowChoice, StepCounters};
use crate::optimizers::ParameterSlots;
use crate::parallel::calls::state::Piece;
use crate::topology::Rank;

/// Owns the state of a module, or of a part of it.
pub(in crate::parallel) trait Stateful: Send + Sync {
    /// What it has at this moment, as `caller` may see it; of a table these rows.
    fn snapshot(self: Arc<Self>, caller: Rank, rows: RowChoice) -> Result<OwnerState>;

    /// The values that it has, whatever they are.
    fn wanted(&self) -> Result<Vec<Entry>>;

    /// Goes on from a state. Rows have been put before.
    fn restore(&self, state: Restored) -> Result<()>;

    /// The averages take the parameters' place, and these theirs.
    fn swap_averages(&self) -> Result<()>;

    /// Takes rows of a tensor over.
    fn put_rows(&self, tensor: &str, slot: Option<&str>, ids: &[i64], values: &Tensor) -> Result<()>;
}

/// What an owner had at one moment, for as long as this is held.
#[derive(Default)]
pub(crate) struct OwnerState {
    entries: Vec<Entry>,
    sources: Vec<Source>,
    /// Further names of tensors, each with the name under which it is one of the entries.
    pub aliases: Vec<(String, String)>,
    pub counters: StepCounters,
    /// How many updates a table has had.
    pub version: u64,
    /// Keeps the tensors from being written.
    guards: Vec<Box<dyn Any + Send>>,
}

/// Where an entry's numbers are.
enum Source {
    Tensor(Tensor),
    Rows { of: Arc<dyn RowSource>, slot: Option<usize> },
}

/// The rows of a table as they were at one moment.
pub(in crate::parallel) trait RowSource: Send + Sync {
    /// Ids and numbers of some rows, counted in the order of their ids. `slot`: what the optimizer remembers of them.
    fn rows(&self, slot: Option<usize>, from: u64, count: u64) -> Result<Piece>;
}

impl OwnerState {
    /// When so many steps had been applied.
    pub fn new(counters: StepCounters) -> OwnerState {
        OwnerState { counters, ..OwnerState::default() }
    }

    pub fn into_entries(self) -> Vec<Entry> {
        self.entries
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Has nothing written to the tensors as long as `guard` lives.
    pub fn guard(&mut self, guard: impl Any + Send) {
        self.guards.push(Box::new(guard));
    }

    /// The value of a whole tensor.
    pub fn add_whole(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let to = value.numel() as u64;
        self.add(name, None, None, value.size(), Extent::Elements { from: 0, to }, value)
    }

    /// What an optimizer remembers of those numbers of a tensor that `extent` says. `shape`: of the whole tensor.
    pub fn add_slots(
        &mut self,
        name: &str,
        lane: Option<Rank>,
        shape: &[i64],
        extent: Extent,
        slots: ParameterSlots,
    ) -> Result<()> {
        for slot in &slots.slots {
            let (shape, extent) =
                if slot.per_element { (shape.to_vec(), extent) } else { (slot.value.size(), Extent::Shared) };
            self.add(name, Some(&slot.name), lane, shape, extent, &slot.value)?;
        }
        self.guard(slots);
        Ok(())
    }

    pub fn add(
        &mut self,
        name: &str,
        slot: Option<&str>,
        lane: Option<Rank>,
        shape: Vec<i64>,
        extent: Extent,
        value: &Tensor,
    ) -> Result<()> {
        let (tensor, slot, kind) = (name.to_owned(), slot.map(str::to_owned), value.f_kind()?);
        self.entries.push(Entry { tensor, slot, lane, kind, shape, extent });
        self.sources.push(Source::Tensor(value.f_detach()?));
        Ok(())
    }

    pub fn add_rows(&mut self, entry: Entry, of: Arc<dyn RowSource>, slot: Option<usize>) {
        self.entries.push(entry);
        self.sources.push(Source::Rows { of, slot });
    }

    /// Keeps its own copies of the values that are about to be written in place. What the optimizer remembers of them needs
    /// none: an optimizer writes to no tensor that a snapshot holds (OP-3).
    pub fn leave(&mut self, written: &[&str]) -> Result<()> {
        for (entry, source) in self.entries.iter().zip(&mut self.sources) {
            if let Source::Tensor(tensor) = source
                && entry.slot.is_none()
                && written.contains(&entry.tensor.as_str())
            {
                *tensor = tensor.f_detach_copy()?;
            }
        }
        Ok(())
    }

    /// Some numbers, or rows, of an entry.
    ///
    /// # Errors
    /// There are not so many, or they are more than a piece takes.
    pub fn read(&self, entry: u64, from: u64, count: u64) -> Result<Piece> {
        let at = usize::try_from(entry)?;
        let (entry, source) = self
            .entries
            .get(at)
            .zip(self.sources.get(at))
            .with_context(|| format!("there is no entry {entry} of {}", self.entries.len()))?;
        let width = match entry.extent {
            Extent::Rows { .. } => entry.shape.iter().skip(1).product::<i64>().max(1) as u64,
            Extent::Elements { .. } | Extent::Shared | Extent::RowsOf(_) => 1,
        };
        let bytes = count.saturating_mul(width).saturating_mul(entry.kind.elt_size_in_bytes() as u64);
        ensure!(
            count == 1 || bytes <= PIECE_BYTES,
            "{bytes} bytes of `{}` are too many for a piece",
            entry.tensor
        );
        match source {
            Source::Tensor(tensor) => {
                let all = tensor.numel() as u64;
                let fits = from.checked_add(count).is_some_and(|end| end <= all);
                ensure!(
                    fits,
                    "numbers {from} and {count} more are not among the {all} of `{}`",
                    entry.tensor
                );
                let part = tensor.f_reshape([-1])?.f_narrow(0, from as i64, count as i64)?;
                Ok(Piece { ids: None, values: part.f_to_device(Device::Cpu)?.f_detach_copy()? })
            }
            Source::Rows { of, slot } => of.rows(*slot, from, count),
        }
    }
}
