//! A state on its way to an owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use tch::{Kind, Tensor};

use super::{Entry, Extent, PIECE_BYTES, StateKey, Stateful, StepCounters};
use crate::optimizers::NamedSlot;
use crate::parallel::calls::state::Put;
use crate::rpc::Json;
use crate::topology::Rank;

/// What an owner goes on from: of each tensor the numbers that the owner has, as a vector.
#[derive(Default)]
pub(in crate::parallel) struct Restored {
    values: BTreeMap<String, Tensor>,
    slots: BTreeMap<(String, Option<Rank>), Vec<NamedSlot>>,
    pub counters: StepCounters,
}

impl Restored {
    /// Where the numbers of a value or of a slot go; made when its first ones come.
    fn place(
        &mut self,
        StateKey { tensor, slot, lane }: StateKey,
        shared: bool,
        elements: i64,
        kind: Kind,
    ) -> Result<Tensor> {
        let empty = || Tensor::f_zeros([elements], (kind, tch::Device::Cpu));
        let Some(name) = slot else {
            if let Some(value) = self.values.get(&tensor) {
                return Ok(value.shallow_clone());
            }
            let value = empty()?;
            self.values.insert(tensor, value.shallow_clone());
            return Ok(value);
        };
        let slots = self.slots.entry((tensor, lane)).or_default();
        if let Some(slot) = slots.iter().find(|slot| slot.name == name) {
            return Ok(slot.value.shallow_clone());
        }
        let value = empty()?;
        slots.push(NamedSlot { name, value: value.shallow_clone(), per_element: !shared });
        Ok(value)
    }

    pub(super) fn set_value(&mut self, tensor: &str, value: Tensor) {
        self.values.insert(tensor.into(), value);
    }

    pub(super) fn add_slot(&mut self, tensor: &str, lane: Option<Rank>, slot: NamedSlot) {
        self.slots.entry((tensor.into(), lane)).or_default().push(slot);
    }

    /// What the optimizer (of a trainer, without order) remembers of a tensor; nothing before its first step.
    pub fn slots(&self, tensor: &str, lane: Option<Rank>) -> &[NamedSlot] {
        self.slots.get(&(tensor.to_owned(), lane)).map_or(&[], Vec::as_slice)
    }

    /// The value of a tensor, of a shape.
    pub fn value(&self, tensor: &str, shape: &[i64]) -> Result<Tensor> {
        let value = self.values.get(tensor).with_context(|| format!("`{tensor}` is missing in the state"))?;
        Ok(value.f_view(shape)?)
    }

    /// [`slots`](Restored::slots), those with a number for each of the tensor in its shape.
    pub fn shaped_slots(&self, tensor: &str, lane: Option<Rank>, shape: &[i64]) -> Result<Vec<NamedSlot>> {
        let shaped = |slot: &NamedSlot| {
            let value =
                if slot.per_element { slot.value.f_view(shape)? } else { slot.value.f_view([0i64; 0])? };
            Ok(NamedSlot { name: slot.name.clone(), value, per_element: slot.per_element })
        };
        self.slots(tensor, lane).iter().map(shaped).collect()
    }
}

/// The most in one message: rows are not cut.
const MOST_BYTES: u64 = 16 * PIECE_BYTES;

/// What has come of a state so far.
pub(super) struct Restoring {
    owner: Arc<dyn Stateful>,
    wanted: Vec<Entry>,
    restored: Restored,
    /// How many numbers of each have come. They come in order.
    filled: BTreeMap<StateKey, u64>,
}

impl Restoring {
    pub fn new(owner: Arc<dyn Stateful>) -> Result<Restoring> {
        let wanted = owner.wanted()?;
        Ok(Restoring { owner, wanted, restored: Restored::default(), filled: BTreeMap::new() })
    }

    pub fn wanted(&self) -> &[Entry] {
        &self.wanted
    }

    /// # Errors
    /// What comes is not of what the owner has.
    pub fn put(&mut self, put: Put) -> Result<()> {
        let Put { tensor, slot, shared, lane: Json(lane), from, ids, values, .. } = put;
        let entry = self.wanted.iter().find(|entry| entry.tensor == tensor);
        let entry = entry.with_context(|| format!("`{tensor}` is not of this owner"))?;
        let (kind, size) = (values.f_kind()?, values.size());
        let bytes = (values.numel() * kind.elt_size_in_bytes()) as u64;
        ensure!(bytes <= MOST_BYTES, "{bytes} bytes of `{tensor}` are too many for a piece");
        if let Some(ids) = ids {
            ensure!(matches!(entry.extent, Extent::RowsOf(_)), "`{tensor}` does not go by rows");
            ensure!(ids.f_kind()? == Kind::Int64 && ids.size().len() == 1, "ids are int64 [n]");
            return self.owner.put_rows(&tensor, slot.as_deref(), &Vec::<i64>::try_from(&ids)?, &values);
        }
        ensure!(size.len() == 1, "values of shape {size:?} came for `{tensor}`");
        let elements = match entry.extent {
            _ if shared => values.numel() as u64,
            Extent::Elements { from, to } => to - from,
            Extent::Shared | Extent::Rows { .. } | Extent::RowsOf(_) => bail!("`{tensor}` goes by rows"),
        };
        ensure!(slot.is_some() || kind == entry.kind, "{kind:?} came of `{tensor}` for {:?}", entry.kind);
        let key = StateKey { tensor, slot, lane };
        let filled = self.filled.entry(key.clone()).or_default();
        ensure!(from == *filled, "numbers from {from} on came of {key}, where {filled} is next");
        *filled += values.numel() as u64;
        ensure!(*filled <= elements, "{filled} numbers came of {key} for {elements}");
        let into = self.restored.place(key, shared, elements as i64, kind)?;
        into.f_narrow(0, from as i64, values.numel() as i64)?.f_copy_(&values)?;
        Ok(())
    }

    /// # Errors
    /// Something is missing, or the owner cannot go on from it.
    pub fn finish(mut self, counters: StepCounters) -> Result<()> {
        for entry in &self.wanted {
            let Extent::Elements { from, to } = entry.extent else { continue };
            let came = self.filled.get(&StateKey::value(&entry.tensor)).copied().unwrap_or(0);
            let (name, wanted) = (&entry.tensor, to - from);
            ensure!(came == wanted, "{came} of the {wanted} numbers of `{name}` have come");
        }
        self.restored.counters = counters;
        self.owner.restore(self.restored)
    }
}
