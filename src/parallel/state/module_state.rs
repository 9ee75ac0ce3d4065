//! All of a module's state in one place, and back to owners of any cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use tch::{Device, Kind, Tensor};

use super::{Entry, Extent, PIECE_BYTES, Restored, RowShare, StateSnapshot, StepCounters};
use crate::autograd::Autograd;
use crate::optimizers::NamedSlot;
use crate::parallel::calls::state::{Finish, Piece, Put, Restore, Wanted};
use crate::rpc::{Json, RRef};
use crate::topology::Rank;

/// The state of a module, of all its stages, ranges or rows, in this rank's memory.
#[derive(Default)]
pub struct ModuleState {
    tensors: BTreeMap<Key, Stored>,
    pub counters: StepCounters,
}

/// The tensor, the slot, and whose.
type Key = (String, Option<String>, Option<Rank>);

struct Stored {
    /// The whole tensor, or the rows that there are.
    value: Tensor,
    /// The ids of a table's rows.
    ids: Option<Tensor>,
    shared: bool,
    /// Numbers that have come.
    came: u64,
}

impl ModuleState {
    /// What all owners of a module had.
    ///
    /// # Errors
    /// An owner cannot be read; something of a tensor is missing.
    pub fn collect(snapshots: &[StateSnapshot]) -> Result<ModuleState> {
        let mut state = ModuleState::default();
        for snapshot in snapshots {
            state.counters.merge(&snapshot.counters);
            for at in 0..snapshot.entries.len() {
                state.collect_entry(snapshot, at)?;
            }
        }
        for ((tensor, slot, _), stored) in &state.tensors {
            let (came, all) = (stored.came, stored.value.numel() as u64);
            ensure!(came >= all, "{came} of the {all} numbers of `{tensor}` {slot:?} are in the snapshots");
        }
        Ok(state)
    }

    fn collect_entry(&mut self, snapshot: &StateSnapshot, at: usize) -> Result<()> {
        let entry = &snapshot.entries[at];
        let key = (entry.tensor.clone(), entry.slot.clone(), entry.lane);
        let options = (entry.kind, Device::Cpu);
        let (from, shared) = match entry.extent {
            Extent::Elements { from, .. } => (from, false),
            Extent::Shared => (0, true),
            Extent::Rows { .. } => return self.collect_rows(key, snapshot, at),
            Extent::RowsOf(_) => bail!("`{}` has no rows of its own", entry.tensor),
        };
        let stored = match self.tensors.entry(key) {
            // A replica of what is here already.
            std::collections::btree_map::Entry::Occupied(stored)
                if stored.get().came == stored.get().value.numel() as u64 =>
            {
                return Ok(());
            }
            std::collections::btree_map::Entry::Occupied(stored) => stored.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let value = Tensor::f_zeros(entry.shape.as_slice(), options)?;
                vacant.insert(Stored { value, ids: None, shared, came: 0 })
            }
        };
        let (flat, mut next) = (stored.value.f_view([-1])?, from as i64);
        for piece in snapshot.pieces(at) {
            let Piece { values, .. } = piece?;
            let count = values.numel() as i64;
            flat.f_narrow(0, next, count)?.f_copy_(&values)?;
            next += count;
        }
        stored.came += (next - from as i64) as u64;
        Ok(())
    }

    fn collect_rows(&mut self, key: Key, snapshot: &StateSnapshot, at: usize) -> Result<()> {
        let entry = &snapshot.entries[at];
        let mut shape = entry.shape.clone();
        shape[0] = 0;
        let (mut ids, mut rows) = match self.tensors.remove(&key) {
            Some(Stored { value, ids: Some(ids), .. }) => (vec![ids], vec![value]),
            Some(_) => bail!("`{}` goes by rows and does not", entry.tensor),
            None => {
                let empty = Tensor::f_empty(shape.as_slice(), (entry.kind, Device::Cpu))?;
                (vec![Tensor::f_empty([0], (Kind::Int64, Device::Cpu))?], vec![empty])
            }
        };
        for piece in snapshot.pieces(at) {
            let piece = piece?;
            ids.push(piece.ids.context("rows without ids")?);
            rows.push(piece.values);
        }
        let (ids, value) = (Tensor::f_cat(&ids, 0)?, Tensor::f_cat(&rows, 0)?);
        let came = value.numel() as u64;
        self.tensors.insert(key, Stored { value, ids: Some(ids), shared: false, came });
        Ok(())
    }

    /// The value of a tensor; of a table the rows that there are, in the order of [`ids`](ModuleState::ids).
    pub fn value(&self, tensor: &str) -> Option<&Tensor> {
        self.tensors.get(&(tensor.to_owned(), None, None)).map(|stored| &stored.value)
    }

    /// The ids of the rows of a table.
    pub fn ids(&self, tensor: &str) -> Option<&Tensor> {
        self.tensors.get(&(tensor.to_owned(), None, None)).and_then(|stored| stored.ids.as_ref())
    }

    /// Everything, by tensor, slot and lane.
    pub fn tensors(&self) -> impl Iterator<Item = (&Key, &Tensor)> {
        self.tensors.iter().map(|(key, stored)| (key, &stored.value))
    }

    /// Gives `owner` what it has of the module.
    ///
    /// # Errors
    /// Something of it is not in the state; the owner cannot go on from it.
    pub fn restore(&self, autograd: &Arc<Autograd>, owner: Rank, module: &str) -> Result<()> {
        let Wanted { restoring, entries: Json(entries) } =
            autograd.call(owner, Restore { module: module.into() }, None).wait()?;
        let to = Receiver { autograd, owner, restoring };
        for entry in &entries {
            let found = self.of_tensor(&entry.tensor).next();
            found.with_context(|| format!("`{}` of module `{module}` is not in the state", entry.tensor))?;
            for (key, stored) in self.of_tensor(&entry.tensor) {
                to.put(entry, key, stored)?;
            }
        }
        let finish = Finish { restoring: to.restoring, counters: Json(self.counters.clone()) };
        Ok(autograd.call(owner, finish, None).wait()?)
    }

    /// For an owner on this rank of whole tensors.
    pub(in crate::parallel) fn restored(&self, wanted: &[Entry]) -> Result<Restored> {
        let mut restored = Restored::default();
        restored.counters = self.counters.clone();
        for entry in wanted {
            for ((tensor, slot, lane), stored) in self.of_tensor(&entry.tensor) {
                let value = stored.value.f_reshape([-1])?.f_detach_copy()?;
                match slot {
                    None => restored.set_value(tensor, value),
                    Some(name) => {
                        let slot = NamedSlot { name: name.clone(), value, per_element: !stored.shared };
                        restored.add_slot(tensor, *lane, slot);
                    }
                }
            }
        }
        Ok(restored)
    }

    fn of_tensor<'a>(&'a self, tensor: &'a str) -> impl Iterator<Item = (&'a Key, &'a Stored)> {
        self.tensors.iter().filter(move |((name, ..), _)| name == tensor)
    }
}

/// An owner that a state goes to.
struct Receiver<'a> {
    autograd: &'a Autograd,
    owner: Rank,
    restoring: RRef,
}

impl Receiver<'_> {
    /// What the owner has of a value or a slot.
    fn put(&self, wanted: &Entry, key: &Key, stored: &Stored) -> Result<()> {
        if stored.shared {
            return self.put_numbers(key, true, &stored.value.f_reshape([-1])?);
        }
        match (wanted.extent, &stored.ids) {
            (Extent::Elements { from, to }, None) => {
                ensure!(
                    wanted.shape == stored.value.size(),
                    "`{}` is {:?} in the state and {:?} at rank {}",
                    key.0,
                    stored.value.size(),
                    wanted.shape,
                    self.owner
                );
                let part = stored.value.f_reshape([-1])?.f_narrow(0, from as i64, (to - from) as i64)?;
                self.put_numbers(key, false, &part)
            }
            (Extent::RowsOf(share), Some(ids)) => self.put_rows(key, share, ids, &stored.value),
            _ => {
                bail!("`{}` goes by rows in the state or at rank {}, and not in the other", key.0, self.owner)
            }
        }
    }

    fn put_numbers(&self, key: &Key, shared: bool, numbers: &Tensor) -> Result<()> {
        let (all, size) = (numbers.numel() as u64, numbers.kind().elt_size_in_bytes() as u64);
        let each = PIECE_BYTES / size;
        for from in (0..all).step_by(each as usize) {
            let count = each.min(all - from) as i64;
            self.send(key, shared, from, None, numbers.f_narrow(0, from as i64, count)?)?;
        }
        Ok(())
    }

    fn put_rows(&self, key: &Key, share: RowShare, ids: &Tensor, rows: &Tensor) -> Result<()> {
        let places: Vec<i64> = (0..)
            .zip(Vec::<i64>::try_from(ids)?)
            .filter(|(_, id)| share.contains(*id))
            .map(|(at, _)| at)
            .collect();
        let width = rows.size().iter().skip(1).product::<i64>().max(1) as usize;
        let each = (PIECE_BYTES as usize / (width * rows.kind().elt_size_in_bytes())).max(1);
        for places in places.chunks(each) {
            let places = Tensor::f_from_slice(places)?;
            let (ids, rows) = (ids.f_index_select(0, &places)?, rows.f_index_select(0, &places)?);
            self.send(key, false, 0, Some(ids), rows)?;
        }
        Ok(())
    }

    fn send(&self, key: &Key, shared: bool, from: u64, ids: Option<Tensor>, values: Tensor) -> Result<()> {
        let (tensor, slot, lane) = key.clone();
        let restoring = self.restoring.clone();
        let put = Put { restoring, tensor, slot, shared, lane: Json(lane), from, ids, values };
        Ok(self.autograd.call(self.owner, put, None).wait()?)
    }
}
