//! The state of a server's range: given, and taken back.

use std::sync::Arc;

use anyhow::{Result, bail};
use tch::{Kind, Tensor};

use super::range::{PartOfParameter, ServerRange};
use crate::parallel::state::{Entry, Extent, OwnerState, Restored, RowChoice, Stateful};
use crate::topology::Rank;

impl Stateful for ServerRange {
    fn snapshot(self: Arc<Self>, _caller: Rank, _rows: RowChoice) -> Result<OwnerState> {
        let mut state = OwnerState::default();
        let mut first = true;
        state.counters = self.updates.snapshot(|lane, segments| {
            if std::mem::take(&mut first) {
                let snapshot = segments.values.snapshot();
                for (part, value) in self.parts.iter().zip(&snapshot.tensors) {
                    state.add(&part.name, None, None, part.shape.clone(), part.extent(), value)?;
                }
                state.guard(snapshot);
            }
            let Some(optimizer) = &segments.optimizer else { return Ok(()) };
            for (part, slots) in self.parts.iter().zip(optimizer.state()?) {
                state.add_slots(&part.name, lane, &part.shape, part.extent(), slots)?;
            }
            Ok(())
        })?;
        Ok(state)
    }

    fn wanted(&self) -> Result<Vec<Entry>> {
        let entry = |part: &PartOfParameter| {
            let (tensor, shape, extent) = (part.name.clone(), part.shape.clone(), part.extent());
            Entry { tensor, slot: None, lane: None, kind: Kind::Float, shape, extent }
        };
        Ok(self.parts.iter().map(entry).collect())
    }

    fn restore(&self, state: Restored) -> Result<()> {
        let all = vec![true; self.parts.len()];
        let mut first = true;
        self.updates.restore(&state.counters, |lane, segments| {
            if std::mem::take(&mut first) {
                segments.values.update(&all, |values| {
                    for (part, value) in self.parts.iter().zip(values) {
                        value.shallow_clone().f_copy_(&state.value(&part.name, &value.size())?)?;
                    }
                    anyhow::Ok(())
                })?;
                self.changes.mark(&all);
            }
            let Some(optimizer) = &mut segments.optimizer else { return Ok(()) };
            let slots =
                |(part, length): (&PartOfParameter, &i64)| state.shaped_slots(&part.name, lane, &[*length]);
            let slots = self.parts.iter().zip(&self.lengths).map(slots).collect::<Result<Vec<_>>>()?;
            let named: Vec<_> =
                self.parts.iter().zip(&slots).map(|(part, slots)| (part.name.as_str(), &slots[..])).collect();
            Ok(optimizer.load_state(&named)?)
        })
    }

    fn swap_averages(&self) -> Result<()> {
        let all = vec![true; self.parts.len()];
        self.updates.prepare(|segments| {
            let Some(optimizer) = &mut segments.optimizer else { return Ok(()) };
            segments.values.update(&all, |values| anyhow::Ok(optimizer.swap_averages(values)?))?;
            self.changes.mark(&all);
            Ok(())
        })
    }

    fn put_rows(&self, _tensor: &str, _slot: Option<&str>, _ids: &[i64], _values: &Tensor) -> Result<()> {
        bail!("module `{}` does not go by rows", self.module)
    }
}

impl PartOfParameter {
    fn extent(&self) -> Extent {
        Extent::Elements { from: self.from, to: self.to }
    }
}
