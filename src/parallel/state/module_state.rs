//! All of a module's state in one place, and back to owners of any cut.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use tch::{Device, Kind, Tensor};

use super::coverage::Coverage;
use super::{Entry, Extent, PIECE_BYTES, Restored, RowShare, StateKey, StepCounters};
use crate::autograd::Autograd;
use crate::optimizers::NamedSlot;
use crate::parallel::calls::state::{Finish, Piece, Put, Restore, Wanted};
use crate::rpc::{Json, RRef};
use crate::topology::Rank;

/// The state of a module, of all its stages, ranges or rows, in this rank's memory.
#[derive(Default)]
pub struct ModuleState {
    tensors: BTreeMap<StateKey, Stored>,
    pub counters: StepCounters,
}

struct Stored {
    /// The whole tensor, or the rows that there are.
    value: Tensor,
    /// The ids of a table's rows.
    ids: Option<Tensor>,
    shared: bool,
    /// Numbers that have come; of rows nobody knows how many there are.
    came: Coverage,
}

impl ModuleState {
    /// Takes in what was saved of a tensor or slot: rows, or numbers from one on of the tensor taken as a vector.
    ///
    /// # Errors
    /// A piece cannot be read, or does not fit to what is there.
    pub fn add(
        &mut self,
        entry: &Entry,
        from: u64,
        pieces: impl Iterator<Item = Result<Piece>>,
    ) -> Result<()> {
        match entry.extent {
            Extent::Elements { .. } => self.add_numbers(entry, from, false, pieces),
            Extent::Shared => self.add_numbers(entry, 0, true, pieces),
            Extent::Rows { .. } => self.add_rows(entry, pieces),
            Extent::RowsOf(_) => bail!("`{}` has no rows of its own", entry.tensor),
        }
    }

    /// When all has been added.
    ///
    /// # Errors
    /// Something of a tensor is missing (ST-3).
    pub fn whole(self) -> Result<ModuleState> {
        for (key, stored) in &self.tensors {
            match &stored.ids {
                Some(ids) => {
                    let mut ids = Vec::<i64>::try_from(ids)?;
                    ids.sort_unstable();
                    let twice = ids.windows(2).find(|pair| pair[0] == pair[1]);
                    ensure!(twice.is_none(), "row {} of {key} is in two snapshots", twice.unwrap_or(&[0])[0]);
                }
                None => {
                    let all = stored.value.numel() as u64;
                    if let Some(missing) = stored.came.missing(all) {
                        let (first, last) = (missing.start, missing.end - 1);
                        bail!("numbers {first} to {last} of {key}, which has {all}, are in no snapshot");
                    }
                }
            }
        }
        Ok(self)
    }

    fn add_numbers(
        &mut self,
        entry: &Entry,
        from: u64,
        shared: bool,
        pieces: impl Iterator<Item = Result<Piece>>,
    ) -> Result<()> {
        let stored = match self.tensors.entry(entry.key()) {
            MapEntry::Occupied(stored) => stored.into_mut(),
            MapEntry::Vacant(vacant) => {
                let value = Tensor::f_zeros(entry.shape.as_slice(), (entry.kind, Device::Cpu))?;
                vacant.insert(Stored { value, ids: None, shared, came: Coverage::default() })
            }
        };
        let (kind, shape) = (stored.value.f_kind()?, stored.value.size());
        ensure!(
            (kind, &shape, stored.shared) == (entry.kind, &entry.shape, shared) && stored.ids.is_none(),
            "{} is {kind:?} {shape:?} at one owner and {:?} {:?} at another",
            entry.key(),
            entry.kind,
            entry.shape
        );
        let all = stored.value.numel() as u64;
        if all > 0 && stored.came.missing(all).is_none() {
            // A replica of what is here already.
            return Ok(());
        }
        let (flat, mut next) = (stored.value.f_view([-1])?, from);
        for piece in pieces {
            let Piece { values, .. } = piece?;
            let count = values.numel();
            flat.f_narrow(0, next as i64, count as i64)?.f_copy_(&values)?;
            next += count as u64;
        }
        stored.came.add(from..next);
        Ok(())
    }

    fn add_rows(&mut self, entry: &Entry, pieces: impl Iterator<Item = Result<Piece>>) -> Result<()> {
        let key = entry.key();
        let mut shape = entry.shape.clone();
        shape[0] = 0;
        let (mut ids, mut rows) = match self.tensors.remove(&key) {
            Some(Stored { value, ids: Some(ids), .. }) => (vec![ids], vec![value]),
            Some(_) => bail!("{key} goes by rows at one owner and not at another"),
            None => {
                let empty = Tensor::f_empty(shape.as_slice(), (entry.kind, Device::Cpu))?;
                (vec![Tensor::f_empty([0], (Kind::Int64, Device::Cpu))?], vec![empty])
            }
        };
        for piece in pieces {
            let piece = piece?;
            ids.push(piece.ids.context("rows without ids")?);
            rows.push(piece.values);
        }
        let (ids, value) = (Tensor::f_cat(&ids, 0)?, Tensor::f_cat(&rows, 0)?);
        let stored = Stored { value, ids: Some(ids), shared: false, came: Coverage::default() };
        self.tensors.insert(key, stored);
        Ok(())
    }

    /// The value of a tensor; of a table the rows that there are, as [`ids`](ModuleState::ids) has them.
    pub fn value(&self, tensor: &str) -> Option<&Tensor> {
        self.tensors.get(&StateKey::value(tensor)).map(|stored| &stored.value)
    }

    /// The ids of the rows of a table, or of what is remembered of some of them.
    pub fn ids(&self, of: &StateKey) -> Option<&Tensor> {
        self.tensors.get(of).and_then(|stored| stored.ids.as_ref())
    }

    /// Everything, by tensor, slot and lane.
    pub fn tensors(&self) -> impl Iterator<Item = (&StateKey, &Tensor)> {
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
            for (StateKey { tensor, slot, lane }, stored) in self.of_tensor(&entry.tensor) {
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

    fn of_tensor<'a>(&'a self, tensor: &'a str) -> impl Iterator<Item = (&'a StateKey, &'a Stored)> {
        self.tensors.iter().filter(move |(key, _)| key.tensor == tensor)
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
    fn put(&self, wanted: &Entry, key: &StateKey, stored: &Stored) -> Result<()> {
        if stored.shared {
            return self.put_numbers(key, true, &stored.value.f_reshape([-1])?);
        }
        match (wanted.extent, &stored.ids) {
            (Extent::Elements { from, to }, None) => {
                ensure!(
                    wanted.shape == stored.value.size(),
                    "{key} is {:?} in the state and {:?} at rank {}",
                    stored.value.size(),
                    wanted.shape,
                    self.owner
                );
                let part = stored.value.f_reshape([-1])?.f_narrow(0, from as i64, (to - from) as i64)?;
                self.put_numbers(key, false, &part)
            }
            (Extent::RowsOf(share), Some(ids)) => self.put_rows(key, share, ids, &stored.value),
            _ => {
                bail!("{key} goes by rows in the state or at rank {}, and not in the other", self.owner)
            }
        }
    }

    fn put_numbers(&self, key: &StateKey, shared: bool, numbers: &Tensor) -> Result<()> {
        let (all, size) = (numbers.numel() as u64, numbers.kind().elt_size_in_bytes() as u64);
        let each = PIECE_BYTES / size;
        for from in (0..all).step_by(each as usize) {
            let count = each.min(all - from) as i64;
            self.send(key, shared, from, None, numbers.f_narrow(0, from as i64, count)?)?;
        }
        Ok(())
    }

    fn put_rows(&self, key: &StateKey, share: RowShare, ids: &Tensor, rows: &Tensor) -> Result<()> {
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

    fn send(
        &self,
        key: &StateKey,
        shared: bool,
        from: u64,
        ids: Option<Tensor>,
        values: Tensor,
    ) -> Result<()> {
        let StateKey { tensor, slot, lane } = key.clone();
        let restoring = self.restoring.clone();
        let put = Put { restoring, tensor, slot, shared, lane: Json(lane), from, ids, values };
        Ok(self.autograd.call(self.owner, put, None).wait()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(slot: Option<&str>, from: u64, to: u64) -> Entry {
        let (tensor, slot) = ("net.weight".into(), slot.map(str::to_owned));
        let extent = Extent::Elements { from, to };
        Entry { tensor, slot, lane: None, kind: Kind::Float, shape: vec![5, 2], extent }
    }

    fn numbers(from: u64, to: u64) -> impl Iterator<Item = Result<Piece>> {
        let piece = |number: u64| Ok(Piece { ids: None, values: Tensor::from_slice(&[number as f32]) });
        (from..to).map(piece)
    }

    fn collected(slot: Option<&str>, ranges: &[(u64, u64)]) -> Result<ModuleState> {
        let mut state = ModuleState::default();
        for &(from, to) in ranges {
            state.add(&weight(slot, from, to), from, numbers(from, to))?;
        }
        state.whole()
    }

    #[track_caller]
    fn said(state: Result<ModuleState>) -> String {
        state.err().expect("it is refused").to_string()
    }

    /// ST-3
    #[test]
    fn a_range_that_came_twice_stands_for_no_other() {
        insta::assert_snapshot!(
            said(collected(None, &[(0, 5), (0, 5)])),
            @"numbers 5 to 9 of `net.weight`, which has 10, are in no snapshot"
        );
        insta::assert_snapshot!(
            said(collected(Some("exp_avg"), &[(0, 3), (7, 10), (0, 4)])),
            @"numbers 4 to 6 of `exp_avg` of `net.weight`, which has 10, are in no snapshot"
        );
    }

    #[test]
    fn ranges_of_any_cut_and_replicas_make_a_whole_tensor() {
        let expected: Vec<f32> = (0..10u8).map(f32::from).collect();
        for ranges in [&[(5, 10), (0, 5)][..], &[(0, 10), (0, 10)], &[(0, 4), (2, 10)]] {
            let state = collected(None, ranges).unwrap();
            let value = state.value("net.weight").unwrap();
            assert_eq!(value.size(), [5, 2]);
            assert_eq!(Vec::<f32>::try_from(value.reshape([-1])).unwrap(), expected, "{ranges:?}");
        }
    }

    #[test]
    fn owners_that_differ_in_a_tensor_are_refused() {
        let mut state = ModuleState::default();
        state.add(&weight(None, 0, 5), 0, numbers(0, 5)).unwrap();
        let other = Entry { shape: vec![10], ..weight(None, 5, 10) };
        insta::assert_snapshot!(
            state.add(&other, 5, numbers(5, 10)).unwrap_err(),
            @"`net.weight` is Float [5, 2] at one owner and Float [10] at another"
        );
    }

    #[test]
    fn a_row_of_two_owners_is_refused() {
        let mut state = ModuleState::default();
        for _ in 0..2 {
            let entry = Entry {
                shape: vec![2, 3],
                extent: Extent::Rows { rows: 2, changed: false },
                ..weight(None, 0, 0)
            };
            let (ids, values) = (Some(Tensor::from_slice(&[4i64, 7])), Tensor::from_slice(&[1.0f32; 6]));
            state.add(&entry, 0, [Ok(Piece { ids, values: values.reshape([2, 3]) })].into_iter()).unwrap();
        }
        insta::assert_snapshot!(
            said(state.whole()),
            @"row 4 of `net.weight` is in two snapshots"
        );
    }
}
