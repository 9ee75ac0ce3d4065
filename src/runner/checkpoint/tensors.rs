//! The tensors of a checkpoint, in whichever of its files they are.
//!
//! A checkpoint may have only those rows of a table that were written since an earlier one, its base: then those of the base
//! come before them, but what was written since, and what is gone.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use anyhow::{Context as _, Result, anyhow, ensure};
use tch::{Kind, Tensor};

use super::part::{ID_BYTES, Part, PartFile, Saved};
use super::state::Successor;
use super::store::{InOrder, Source, Store};
use crate::job::Place;
use crate::job::weights::{Header, Stored};
use crate::parallel::{AGE, Entry, Extent, ModuleState, PIECE_BYTES, Piece, StateKey};
use crate::topology::Rank;

/// What is in one place.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    pub store: &'a dyn Store,
    pub parts: &'a [Part],
}

/// A file of tensors that was opened.
struct Opened {
    source: Box<dyn Source>,
    header: Header,
    place: Place,
}

impl Opened {
    /// # Errors
    /// The file cannot be read, or is none of tensors.
    fn of(store: &dyn Store, file: &str) -> Result<Opened> {
        let (source, place) = (store.open(file)?, store.place().join(file));
        let header = Header::read(InOrder::new(&*source), source.bytes());
        let header = header.map_err(|message| anyhow!("{place}: cannot be read: {message}"))?;
        Ok(Opened { source, header, place })
    }

    /// Where a tensor lies, which has the bytes that it is to have: see [`Saved::check`].
    fn stored(&self, name: &str) -> Result<&Stored> {
        self.header.get(name).with_context(|| format!("`{name}` is not in the file"))
    }
}

/// Bytes of a file, one after the other.
pub struct ByteRun {
    pub start: u64,
    pub len: u64,
}

/// What one file has of a tensor.
pub struct Found<'a> {
    opened: Rc<Opened>,
    /// In the file.
    name: &'a str,
    pub saved: &'a Saved,
    /// Which of a base's rows there still are, the same for all that is kept of a table.
    still: Option<Rc<Still>>,
}

/// Which rows of a base are what they were.
struct Still {
    written: HashSet<i64>,
    /// Where rows come and go, those that there are.
    living: Option<HashSet<i64>>,
    count: u64,
}

impl Still {
    /// Those of `base` but what was `written` since; `ages`: of those that there are, where rows come and go.
    fn of(base: &Found<'_>, written: &Found<'_>, ages: Option<&Found<'_>>) -> Result<Still> {
        let ids = |found: &Found<'_>| anyhow::Ok(found.ids()?.into_iter().collect::<HashSet<i64>>());
        let mut still = Still { written: ids(written)?, living: ages.map(ids).transpose()?, count: 0 };
        still.count = base.ids()?.into_iter().filter(|id| still.has(*id)).count() as u64;
        Ok(still)
    }

    fn has(&self, id: i64) -> bool {
        !self.written.contains(&id) && self.living.as_ref().is_none_or(|living| living.contains(&id))
    }

    /// Those rows of a piece that there still are, if there are any.
    fn in_piece(&self, piece: Piece) -> Result<Option<Piece>> {
        let ids = piece.ids.context("rows have come without ids")?;
        let all = (0..).zip(Vec::<i64>::try_from(&ids)?);
        let there: Vec<i64> = all.filter(|(_, id)| self.has(*id)).map(|(place, _)| place).collect();
        if there.is_empty() {
            return Ok(None);
        }
        let there = Tensor::f_from_slice(&there)?;
        let values = piece.values.f_index_select(0, &there)?;
        Ok(Some(Piece { ids: Some(ids.f_index_select(0, &there)?), values }))
    }
}

/// The tensors that are `wanted`, each file from its beginning to its end, as stores are read best. `base`: what rows were
/// written since.
///
/// # Errors
/// A file cannot be read, or has not what the manifest says.
pub fn find<'a>(
    of: Layer<'a>,
    base: Option<Layer<'a>>,
    wanted: impl Fn(&Saved) -> bool,
) -> Result<Vec<Found<'a>>> {
    let mut found = Vec::new();
    for part in of.parts {
        let own = in_part(of.store, part, &wanted)?;
        if own.iter().any(|found| found.has_changed_rows()) {
            found.extend(of_base(base, part.rank, &own)?);
        }
        // Without what only tells which rows there are.
        found.extend(own.into_iter().filter(|found| wanted(found.saved)));
    }
    Ok(found)
}

fn in_part<'a>(
    store: &dyn Store,
    part: &'a Part,
    wanted: &impl Fn(&Saved) -> bool,
) -> Result<Vec<Found<'a>>> {
    let mut found = Vec::new();
    for PartFile { file, tensors, .. } in &part.files {
        let is_needed = |saved: &Saved| wanted(saved) || saved.entry.slot.as_deref() == Some(AGE);
        if !tensors.values().any(wanted) {
            continue;
        }
        let opened = Rc::new(Opened::of(store, file)?);
        let of_file = tensors.iter().filter(|(_, saved)| is_needed(saved));
        let mut of_file: Vec<(&String, &Saved)> = of_file.collect();
        for (name, saved) in &of_file {
            saved.check(name, &opened.header).with_context(|| format!("`{}`", opened.place))?;
        }
        of_file.sort_by_key(|(name, _)| opened.header.get(name).map(|stored| stored.start));
        found.extend(of_file.into_iter().map(|(name, saved)| Found {
            opened: opened.clone(),
            name,
            saved,
            still: None,
        }));
    }
    Ok(found)
}

/// What the rank's part of the base has of the rows of which `own` are those that were written since.
fn of_base<'a>(base: Option<Layer<'a>>, rank: Rank, own: &[Found<'_>]) -> Result<Vec<Found<'a>>> {
    let base =
        base.context("it has rows that were written since another one, and does not say since which")?;
    let part = base.parts.iter().find(|part| part.rank == rank);
    let part = part.with_context(|| format!("`{}` has no part of rank {rank}", base.store.place()))?;
    let changed: Vec<&Found<'_>> = own.iter().filter(|found| found.has_changed_rows()).collect();
    let since = |saved: &Saved| {
        let slot = saved.entry.slot.as_deref();
        changed.iter().find(|found| found.is_of(saved, slot)).copied()
    };
    let is_changed = |saved: &Saved| since(saved).is_some();
    let mut before = in_part(base.store, part, &is_changed)?;
    before.retain(|found| is_changed(found.saved));
    ensure!(
        before.len() == changed.len(),
        "`{}` has {} of the {} tables of which rows were written since",
        base.store.place(),
        before.len(),
        changed.len()
    );
    let mut tables = BTreeMap::new();
    for found in &mut before {
        let Saved { module, entry, .. } = found.saved;
        let still = match tables.entry((module, &entry.tensor)) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(table) => {
                let since = since(found.saved).context("a table that nobody has wanted")?;
                let ages = own.iter().find(|ages| ages.is_of(found.saved, Some(AGE)));
                table.insert(Rc::new(Still::of(found, since, ages)?))
            }
        };
        found.still = Some(still.clone());
    }
    Ok(before)
}

/// The state of a module, for trainers that may be other ranks.
///
/// # Errors
/// A file cannot be read, or has not what the manifest says; something of the module is missing.
pub fn read(
    of: Layer<'_>,
    base: Option<Layer<'_>>,
    module: &str,
    trainers: &[Successor],
) -> Result<ModuleState> {
    let mut state = ModuleState::default();
    for counters in of.parts.iter().filter_map(|part| part.counters.get(module)) {
        state.counters.merge(counters);
    }
    let all = find(of, base, |saved| saved.module == module)?;
    check_all_there(&all)?;
    for found in all {
        let successor = |rank| trainers.iter().find(|of| of.before == Some(rank)).map(|of| of.now);
        let Saved { entry, from, .. } = found.saved;
        let entry = Entry { lane: entry.lane.and_then(successor), ..entry.clone() };
        let added = state.add(&entry, *from, found.pieces());
        added.with_context(|| format!("`{}` in `{}`", found.name, found.opened.place))?;
    }
    state.whole()
}

/// That what is to be made room for is in the files, whatever shape a manifest says.
fn check_all_there(all: &[Found<'_>]) -> Result<()> {
    let mut there: BTreeMap<StateKey, u64> = BTreeMap::new();
    let by_number = || all.iter().filter(|found| found.saved.ids.is_none());
    for Found { saved, .. } in by_number() {
        let of_tensor = there.entry(saved.entry.key()).or_default();
        *of_tensor = of_tensor.saturating_add(saved.count);
    }
    for Found { saved, name, opened, .. } in by_number() {
        let (wanted, there) = (saved.numbers(), there[&saved.entry.key()]);
        ensure!(
            wanted.is_some_and(|wanted| wanted <= there),
            "`{name}` in `{}`: {there} numbers are saved of shape {:?}",
            opened.place,
            saved.entry.shape
        );
    }
    Ok(())
}

impl<'a> Found<'a> {
    /// The name that the model has it under.
    pub fn model_name(&self) -> String {
        self.saved.model_name(self.name)
    }

    fn has_changed_rows(&self) -> bool {
        matches!(self.saved.entry.extent, Extent::Rows { changed: true, .. })
    }

    /// Is it the `slot` of the tensor of a module that `saved` is of?
    fn is_of(&self, saved: &Saved, slot: Option<&str>) -> bool {
        let Saved { module, entry, .. } = self.saved;
        *module == saved.module && entry.tensor == saved.entry.tensor && entry.slot.as_deref() == slot
    }

    /// How many numbers or rows there are.
    pub fn count(&self) -> u64 {
        self.still.as_ref().map_or(self.saved.count, |still| still.count)
    }

    /// In their order; none is empty.
    pub fn pieces(&self) -> impl Iterator<Item = Result<Piece>> {
        let all = Pieces { found: self, next: 0 };
        all.filter_map(|piece| match &self.still {
            None => Some(piece),
            Some(still) => piece.and_then(|piece| still.in_piece(piece)).transpose(),
        })
    }

    /// The file that it is in.
    pub fn place(&self) -> &Place {
        &self.opened.place
    }

    /// Where its values are in the file.
    ///
    /// # Errors
    /// The file has not what the manifest says, or cannot be read.
    pub fn value_runs(&self) -> Result<Vec<ByteRun>> {
        self.runs(self.name, self.width() * self.saved.entry.kind.elt_size_in_bytes() as u64)
    }

    /// Where the ids of its rows are in the file.
    ///
    /// # Errors
    /// As [`Found::value_runs`]; it has none.
    pub fn id_runs(&self) -> Result<Vec<ByteRun>> {
        self.runs(self.ids_name()?, ID_BYTES)
    }

    /// The runs of a tensor with `each` bytes a row, or a number where it does not go by rows.
    fn runs(&self, name: &str, each: u64) -> Result<Vec<ByteRun>> {
        let stored = self.opened.stored(name)?;
        let Some(still) = &self.still else {
            return Ok(vec![ByteRun { start: stored.start, len: stored.len }]);
        };
        let mut runs: Vec<ByteRun> = Vec::new();
        for (row, _) in (0..).zip(self.ids()?).filter(|(_, id)| still.has(*id)) {
            let start = stored.start + row * each;
            match runs.last_mut().filter(|last| last.start + last.len == start) {
                Some(last) => last.len += each,
                None => runs.push(ByteRun { start, len: each }),
            }
        }
        Ok(runs)
    }

    /// Numbers of a row; 1 where it does not go by rows.
    fn width(&self) -> u64 {
        match self.saved.ids {
            Some(_) => self.saved.entry.shape.iter().skip(1).product::<i64>().max(1) as u64,
            None => 1,
        }
    }

    fn ids_name(&self) -> Result<&str> {
        self.saved.ids.as_deref().with_context(|| format!("`{}` has no ids", self.name))
    }

    fn ids(&self) -> Result<Vec<i64>> {
        let stored = self.opened.stored(self.ids_name()?)?;
        // The header's lengths were compared with the file's, so there is no more to allocate than the file has.
        let mut bytes = vec![0; usize::try_from(stored.len)?];
        self.opened.source.read_at(&mut bytes, stored.start)?;
        let (ids, _) = bytes.as_chunks::<{ ID_BYTES as usize }>();
        Ok(ids.iter().map(|id| i64::from_le_bytes(*id)).collect())
    }
}

/// A tensor of a file, piece by piece.
struct Pieces<'a> {
    found: &'a Found<'a>,
    /// Numbers or rows that were read.
    next: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        let Saved { entry, count, ids, .. } = self.found.saved;
        if self.next >= *count {
            return None;
        }
        let width = self.found.width();
        let each = (PIECE_BYTES / (width * entry.kind.elt_size_in_bytes() as u64)).max(1);
        let of = (self.next, each.min(count - self.next));
        self.next += of.1;
        let read = || {
            let values = self.numbers(self.found.name, entry.kind, (of.0 * width, of.1 * width))?;
            let Some(ids) = ids else { return Ok(Piece { ids: None, values }) };
            let shape: Vec<i64> = [of.1 as i64].into_iter().chain(entry.shape[1..].iter().copied()).collect();
            let ids = self.numbers(ids, Kind::Int64, of)?;
            Ok(Piece { ids: Some(ids), values: values.f_view(shape.as_slice())? })
        };
        Some(read())
    }
}

impl Pieces<'_> {
    /// So many numbers of a tensor, from one on.
    fn numbers(&self, name: &str, kind: Kind, (from, count): (u64, u64)) -> Result<Tensor> {
        let size = kind.elt_size_in_bytes() as u64;
        let Opened { source, .. } = &*self.found.opened;
        let stored = self.found.opened.stored(name)?;
        let mut bytes = vec![0; (count * size) as usize];
        source.read_at(&mut bytes, stored.start + from * size)?;
        Ok(Tensor::f_from_data_size(&bytes, &[count as i64], kind)?)
    }
}
