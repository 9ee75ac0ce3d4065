//! A module's rows at one owner: look-ups, and how the trainers' updates meet.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context as _, Result, bail, ensure};
use c10d::vectors::Numbers;
use tch::{Kind, Tensor};

use super::contribution::{Contribution, Gradients, LookedUp};
use super::life::{AGE, LifeState, SIGHTINGS};
use super::snapshot::{Listed, ShardRows, TableSnapshot};
use super::table::{Snapshots, Table};
use crate::autograd::ContextState;
use crate::job::shards::{Cut, range};
use crate::job::weights::Weights;
use crate::job::{Consistency, ModuleSpec, Placement};
use crate::layers::{RowTable, TablePart, TableSpec};
use crate::model::TableRows;
use crate::optimizers::{AVERAGE, Optimization, OptimizerSpec};
use crate::parallel::finite::wrong_rows;
use crate::parallel::registry::{Counters, OptimizerChoice};
use crate::parallel::state::{Entry, Extent, OwnerState, Restored, RowChoice, RowShare, Stateful};
use crate::parallel::updates::{Updated, Updates};
use crate::parallel::{Applied, Measured, StepTerms};
use crate::profile::{Activity, at_step, running, span};
use crate::topology::Rank;

/// One rank's part of a sharded module, for the whole world.
pub struct Shard {
    module: String,
    /// The tables that are cut as one, named as in their module.
    tables: Vec<TablePart>,
    /// Which rows may be here.
    share: RowShare,
    dim: usize,
    updates: Updates<Table>,
    optimizer: OptimizerChoice,
    counters: Counters,
}

/// The look-ups of a context's step. Hangs on the context.
#[derive(Default)]
struct LookUps(Mutex<Vec<LookUp>>);

struct LookUp {
    module: String,
    /// The table's version when it was copied.
    version: u64,
    /// Under which the context keeps the gradient of the copy.
    watched_name: String,
    /// Which rows they were; filled for several tables only.
    ids: Vec<i64>,
    of: LookedUp,
}

impl LookUps {
    fn of(context: &ContextState) -> Arc<LookUps> {
        context.get_or_insert_with(LookUps::default)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LookUp>> {
        self.0.lock().expect("nobody panics listing look-ups")
    }
}

impl Shard {
    /// The part of `spec`'s table that `rank` has. Takes memory as rows are made.
    ///
    /// # Errors
    /// It has none, or more rows than can be counted.
    pub fn new(
        spec: &ModuleSpec,
        rank: Rank,
        trainers: &[Rank],
        consistency: Consistency,
        seed: u64,
    ) -> Result<Shard> {
        let (Placement::Shards(cut), Some(layer)) = (spec.placement, spec.rows()) else {
            bail!("module `{}` is not sharded", spec.name)
        };
        let (table, tables) = (layer.table, spec.tables(&layer));
        let ranks = &spec.place.ranks;
        let nth = ranks.iter().position(|&owner| owner == rank).context("this rank has no part of it")?;
        let mut rows = match cut {
            Cut::Rows => Table::of_range(&table, range(nth, table.rows, ranks.len()), seed),
            Cut::Hash => Table::hashed(&table, spec.row_life, seed),
        }
        .with_context(|| in_module(&spec.name))?;
        let share = match cut {
            Cut::Rows => {
                let Range { start: from, end: to } = range(nth, table.rows, ranks.len());
                RowShare::Range { from, to }
            }
            Cut::Hash => RowShare::Hash { nth: nth as u64, of: ranks.len() as u64, first: 0 },
        };
        if let Some(weights) = &spec.weights {
            start_from(weights, spec, &layer, share, &mut rows).with_context(|| in_module(&spec.name))?;
        }
        let TableSpec { dim, .. } = table;
        Ok(Shard {
            module: spec.name.clone(),
            tables,
            share,
            dim: dim as usize,
            updates: Updates::new(rows, (), trainers, consistency)?,
            optimizer: OptimizerChoice::default(),
            counters: Counters::default(),
        })
    }

    /// The rows of `ids`, which ascend, as `[n, dim]`: a leaf that the context watches. Waits first until `after` of the
    /// trainer's steps are applied, and while it is too far ahead (`ssp`).
    ///
    /// # Errors
    /// An id is not of this rank, or there is no room for its row.
    pub async fn look_up(
        &self,
        context: &ContextState,
        trainer: Rank,
        after: u64,
        ids: &Tensor,
    ) -> Result<Tensor> {
        let ids = self.ids(ids)?;
        self.updates.turn(trainer, after).await?;
        at_step(context.id().number);
        let _span = span(Activity::Forward);
        let (version, copied) = self.updates.read(trainer, |table| table.look_up(&ids));
        let (of, rows) = copied.with_context(|| in_module(&self.module))?;
        let leaf = rows.f_set_requires_grad(true)?;
        let look_ups = LookUps::of(context);
        let mut look_ups = look_ups.lock();
        let watched_name = format!("{}.rows.{}", self.module, look_ups.len());
        context.watch(watched_name.as_str(), &leaf)?;
        let ids = if self.tables.len() > 1 { ids } else { Vec::new() };
        look_ups.push(LookUp { module: self.module.clone(), version, watched_name, ids, of });
        Ok(leaf)
    }

    /// The rows of `ids`, which ascend, as `[n, dim]`; nothing is recorded and none is made.
    ///
    /// # Errors
    /// An id is not of this rank.
    pub fn peek(&self, caller: Rank, ids: &Tensor) -> Result<Tensor> {
        let ids = self.ids(ids)?;
        let (_, rows) = self.updates.read(caller, |table| table.peek(&ids));
        rows.with_context(|| in_module(&self.module))
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    pub(super) fn with_table<T>(&self, caller: Rank, look: impl FnOnce(&mut Table) -> T) -> T {
        self.updates.read(caller, look).1
    }

    /// Chooses what updates the rows. The first call makes it, further ones must name the same.
    ///
    /// # Errors
    /// When another one was chosen before, or it cannot update single rows.
    pub fn set_optimizer(&self, optimization: &Optimization) -> Result<()> {
        let spec = self.options(optimization)?;
        self.optimizer.choose(&self.module, optimization, || {
            let set = self.updates.prepare(|table| table.set_optimizer(spec, optimization));
            set.with_context(|| in_module(&self.module))
        })
    }

    /// The tables of a module are updated as one.
    fn options<'a>(&self, optimization: &'a Optimization) -> Result<&'a OptimizerSpec> {
        let of = |table: &TablePart| optimization.of(&format!("{}.{}", self.module, table.name));
        let first = of(&self.tables[0]);
        match self.tables.iter().find(|table| of(table) != first) {
            None => Ok(first),
            Some(other) => bail!(
                "module `{}`: tables `{}` and `{}` are in different groups of the optimizer, and the tables of a module are \
                 updated as one\n  hint: give them a pattern that has all of them, or make two modules of them",
                self.module,
                self.tables[0].name,
                other.name
            ),
        }
    }

    /// Updates the rows that the context has looked up with what its backward gave, on these terms. `None`: the step
    /// happens without an update, as one does whose gradients are not finite. A step that needed no row of this rank counts
    /// as well (SH-3).
    ///
    /// # Errors
    /// When the step cannot be applied.
    pub async fn step(
        &self,
        context: &ContextState,
        trainer: Rank,
        terms: Option<StepTerms>,
    ) -> Result<Applied> {
        let work = async {
            let (used, given, not_finite) = self.contribution(context, terms)?;
            let applied =
                self.updates.step(trainer, used, given).await.with_context(|| in_module(&self.module))?;
            self.counters.add(&applied);
            Ok(Applied { not_finite, ..applied })
        };
        running(Activity::Step, context.id().number, work).await
    }

    /// As [`HostedModule::measure`](crate::parallel::HostedModule::measure).
    ///
    /// # Errors
    /// When the gradients cannot be averaged.
    pub(crate) async fn measure(
        &self,
        context: &ContextState,
        trainer: Rank,
        step: u64,
        terms: Option<StepTerms>,
    ) -> Result<Measured> {
        let work = async {
            let (_, given, not_finite) = self.contribution(context, terms)?;
            let squares = self.updates.measure(trainer, step, given).await;
            let squares = squares.with_context(|| in_module(&self.module))?;
            Ok(Measured { squares: vec![squares], not_finite })
        };
        running(Activity::Step, context.id().number, work).await
    }

    /// As [`HostedModule::step_measured`](crate::parallel::HostedModule::step_measured).
    ///
    /// # Errors
    /// When the gradients cannot be applied.
    pub(crate) fn step_measured(&self, trainer: Rank, step: u64, factor: f64) -> Result<Applied> {
        let _span = span(Activity::Step);
        let applied =
            self.updates.step_measured(trainer, step, factor).with_context(|| in_module(&self.module))?;
        self.counters.add(&applied);
        Ok(applied)
    }

    pub(super) fn has_rounds(&self) -> bool {
        self.updates.has_rounds()
    }

    /// The version that a step has read, what it brings, and what of that is not finite, which brings nothing.
    fn contribution(
        &self,
        context: &ContextState,
        terms: Option<StepTerms>,
    ) -> Result<(u64, Option<Contribution>, Option<String>)> {
        let (used, looked_up) = self.take_gradients(context)?;
        let judged = terms.filter(|terms| !terms.scaled);
        let not_finite = judged.and_then(|_| looked_up.iter().find_map(|given| self.wrong(given)));
        let given = terms.filter(|_| not_finite.is_none());
        Ok((used, given.map(|terms| Contribution { terms, looked_up }), not_finite))
    }

    /// The first of some rows' gradients that is not finite, in words.
    fn wrong(&self, given: &Gradients) -> Option<String> {
        let said = |table: &TablePart, rows: &[f32]| wrong_rows(&self.module, &table.name, rows);
        let first = said(&self.tables[0], &given.numbers)?;
        let mut rows = given.ids.iter().zip(given.numbers.chunks(self.dim));
        let row = rows.find(|(_, row)| row.iter().any(|number| !number.is_finite()));
        let of_table = row.and_then(|(id, row)| {
            let has = |table: &&TablePart| table.ids.as_ref().is_some_and(|ids| ids.contains(id));
            said(self.tables.iter().find(has)?, row)
        });
        of_table.or(Some(first))
    }

    /// A step of `trainer` cannot be taken: what it has sent after it fails, too.
    pub fn fail(&self, trainer: Rank, reason: &str) {
        self.updates.fail(trainer, reason);
    }

    /// Steps applied so far, by all trainers, and the sum of their staleness.
    pub fn updates(&self) -> (u64, u64) {
        self.counters.read()
    }

    /// The trainer takes no more steps, and nobody waits for it any longer.
    ///
    /// # Errors
    /// When that completes a round which cannot be applied.
    pub fn leave(&self, trainer: Rank) -> Result<()> {
        self.updates.leave(trainer)
    }

    /// The oldest version that the context's look-ups read, and what the backward gave for them.
    fn take_gradients(&self, context: &ContextState) -> Result<(u64, Vec<Gradients>)> {
        let mut gradients = context.gradients();
        let look_ups = LookUps::of(context);
        let mut look_ups = look_ups.lock();
        // A context that has read nothing here has missed nothing.
        let mut oldest = u64::MAX;
        let mut of_rows = Vec::new();
        for look_up in look_ups.iter_mut().filter(|look_up| look_up.module == self.module) {
            oldest = oldest.min(look_up.version);
            if let Some(gradient) = gradients.remove(&look_up.watched_name) {
                let numbers = Numbers::of(gradient)?;
                of_rows.push(Gradients { ids: look_up.ids.clone(), of: look_up.of.clone(), numbers });
            }
        }
        Ok((oldest, of_rows))
    }

    /// Ids as they travel. Ascending, each is there once: there are never more than the table has rows.
    fn ids(&self, ids: &Tensor) -> Result<Vec<i64>> {
        let (shape, kind) = (ids.size(), ids.f_kind()?);
        ensure!(shape.len() == 1 && kind == Kind::Int64, "ids are int64 [n], and {kind:?} {shape:?} came");
        let rows = self.dim * MOST_BYTES_OF_A_NUMBER;
        ensure!(
            ids.numel() <= MOST_BYTES / rows,
            "{} rows of `{}` are more than 4 GiB\n  hint: use a smaller batch",
            ids.numel(),
            self.module
        );
        let mut list = vec![0; ids.numel()];
        ids.f_contiguous()?.f_copy_data(&mut list, ids.numel())?;
        ensure!(
            list.windows(2).all(|pair| pair[0] < pair[1]),
            "ids are to ascend, and {shape:?} came that do not"
        );
        Ok(list)
    }
}

impl Stateful for Shard {
    fn snapshot(self: Arc<Self>, caller: Rank, rows: RowChoice) -> Result<OwnerState> {
        let (mut slots, mut steps, mut snapshot, mut life, mut version) = (Vec::new(), 0, None, None, 0);
        let unused_rows = rows == RowChoice::All;
        let counters = self.updates.snapshot(|_, table| {
            snapshot = Some(table.snapshot(rows));
            version = table.version();
            (slots, steps) = table.slots();
            // Rows that nobody has used have no others.
            slots.retain(|(_, slot)| !unused_rows || *slot == AVERAGE);
            life = if unused_rows { None } else { table.life() };
            Ok(())
        })?;
        let Snapshots { rows, is_partial, averaged } = snapshot.context("a table is updated in order")?;
        rows.sort();
        averaged.iter().for_each(|rows| rows.sort());
        let mut state = OwnerState::new(counters);
        state.version = version;
        for TablePart { name, ids, .. } in &self.tables {
            let entry = |slot: Option<&str>, rows: usize, width: usize, changed: bool| Entry {
                tensor: name.clone(),
                slot: slot.map(str::to_owned),
                lane: None,
                kind: Kind::Float,
                shape: vec![rows as i64, width as i64],
                extent: Extent::Rows { rows: rows as u64, changed },
            };
            let source = |rows: &Arc<TableSnapshot>| {
                Arc::new(ShardRows::new(self.clone(), rows.clone(), caller, ids.as_ref()))
            };
            let of_rows = source(&rows);
            state.add_rows(entry(None, of_rows.len(), self.dim, is_partial), of_rows.clone(), None);
            for (nth, slot) in &slots {
                let averaged = averaged.as_ref().filter(|_| *slot == AVERAGE).map(source);
                let changed = is_partial && averaged.is_none();
                let of_slot = averaged.unwrap_or_else(|| of_rows.clone());
                state.add_rows(entry(Some(*slot), of_slot.len(), self.dim, changed), of_slot, Some(*nth));
            }
            if let Some(LifeState { ages, candidates }) = &life {
                let (ages, candidates) =
                    (Listed::of(ages, ids.as_ref()), Listed::of(candidates, ids.as_ref()));
                state.add_rows(entry(Some(AGE), ages.0.len(), 1, false), Arc::new(ages), None);
                let sightings = entry(Some(SIGHTINGS), candidates.0.len(), 2, false);
                state.add_rows(sightings, Arc::new(candidates), None);
            }
            if !slots.is_empty() && !unused_rows {
                let steps = Tensor::f_from_slice(&[steps as i64])?.f_view([0i64; 0])?;
                state.add(name, Some(STEP), None, vec![], Extent::Shared, &steps)?;
            }
        }
        Ok(state)
    }

    fn wanted(&self) -> Result<Vec<Entry>> {
        let entry = |TablePart { name, ids, rows }: &TablePart| {
            let shape = vec![*rows, self.dim as i64];
            let share = ids.as_ref().map_or(self.share, |ids| self.share.part(ids));
            let (tensor, extent) = (name.clone(), Extent::RowsOf(share));
            Entry { tensor, slot: None, lane: None, kind: Kind::Float, shape, extent }
        };
        Ok(self.tables.iter().map(entry).collect())
    }

    fn restore(&self, state: Restored) -> Result<()> {
        // All tables have taken the same steps.
        let step = self
            .tables
            .iter()
            .find_map(|table| state.slots(&table.name, None).iter().find(|slot| slot.name == STEP));
        let steps = step.map(|step| step.value.f_double_value(&[0])).transpose()?;
        self.updates.restore(&state.counters, |_, table| {
            // Above 2^53 nobody counts.
            steps.into_iter().for_each(|steps| table.set_steps(steps as u64));
            Ok(())
        })
    }

    fn swap_averages(&self) -> Result<()> {
        self.updates.prepare(|table| {
            table.swap_averages();
            Ok(())
        })
    }

    fn put_rows(&self, tensor: &str, slot: Option<&str>, ids: &[i64], values: &Tensor) -> Result<()> {
        ensure!(values.f_kind()? == Kind::Float, "rows are of float32");
        let table = self.tables.iter().find(|table| table.name == tensor);
        let table = table.with_context(|| format!("`{tensor}` is not a table of this rank"))?;
        let ids = in_cut(table, ids)?;
        let numbers = Vec::<f32>::try_from(values.f_contiguous()?.f_view([-1])?)?;
        let mut put = Ok(());
        self.updates.prepare(|table| {
            put = table.put(slot, &ids, &numbers);
            Ok(())
        })?;
        put.with_context(|| in_module(&self.module))
    }
}

/// PyTorch's name for the count of an optimizer's steps.
const STEP: &str = "step";

/// The most in one look-up: what a message carries.
const MOST_BYTES: usize = 4 << 30;
const MOST_BYTES_OF_A_NUMBER: usize = size_of::<f32>();

/// Takes over the rows that weights have of this rank's.
fn start_from(
    weights: &Weights,
    spec: &ModuleSpec,
    layer: &RowTable,
    share: RowShare,
    rows: &mut Table,
) -> Result<()> {
    for (nth, table) in spec.tables(layer).iter().enumerate() {
        let share = table.ids.as_ref().map_or(share, |ids| share.part(ids));
        let (among, end) = match share {
            RowShare::Range { from, to } => (from..to, true),
            RowShare::Hash { .. } => (0..i64::MAX, table.ids.is_some()),
        };
        let mut stored = TableRows::open(weights, spec, nth, end.then_some(table.rows))?;
        stored.visit(
            among,
            |id| share.contains(id),
            |ids, numbers| rows.put(None, &in_cut(table, ids)?, numbers),
        )?;
    }
    Ok(())
}

/// The ids in the table that is cut of some rows of one of those that make it.
fn in_cut(table: &TablePart, ids: &[i64]) -> Result<Vec<i64>> {
    let Some(of) = &table.ids else { return Ok(ids.to_vec()) };
    if let Some(id) = ids.iter().find(|id| !(0..table.rows).contains(*id)) {
        bail!("row {id} of `{}` is not below {}", table.name, table.rows);
    }
    Ok(ids.iter().map(|id| of.start + id).collect())
}

fn in_module(module: &str) -> String {
    format!("module `{module}`")
}
