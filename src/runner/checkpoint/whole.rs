//! The model of a checkpoint in one file, as a run writes it at its end.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use c10d::finite::NotFinite;
use tch::{Kind, Tensor};

use super::part::Saved;
use super::tensors::{Found, Layer, find};
use crate::model::{Region, TensorFile};
use crate::optimizers::AVERAGE;
use crate::parallel::Extent;
use crate::profile::beat;
use crate::runner::merged_rows::{Rows, merge};
use crate::runner::saved_model::Numbers;

/// By the name that the model's file has it under, its parts in their order.
type Tensors<'a> = BTreeMap<String, Vec<Found<'a>>>;

/// A tensor with numbers that are not finite.
pub struct Odd {
    pub module: String,
    pub name: String,
    pub what: NotFinite,
}

/// The model's.
///
/// # Errors
/// A file cannot be read, or has not what the manifest says.
pub fn tensors<'a>(of: Layer<'a>, base: Option<Layer<'a>>) -> Result<Tensors<'a>> {
    let mut tensors = Tensors::new();
    for found in find(of, base, of_slot(None))? {
        tensors.entry(found.model_name()).or_default().push(found);
    }
    for (name, parts) in &mut tensors {
        parts.sort_by_key(|part| part.saved.from);
        let like = |found: &Found<'_>| {
            let Saved { entry, ids, .. } = found.saved;
            // Of rows each part has as many as it has.
            let shape = if ids.is_some() { entry.shape[1..].to_vec() } else { entry.shape.clone() };
            (entry.kind, ids.is_some(), shape)
        };
        let first = like(&parts[0]);
        ensure!(parts.iter().all(|part| like(part) == first), "the parts of `{name}` do not fit together");
    }
    Ok(tensors)
}

fn of_slot(slot: Option<&'static str>) -> impl Fn(&Saved) -> bool {
    move |saved| saved.entry.slot.as_deref() == slot
}

/// Writes the model that is in `of`, and in the `base` of that, to `file`, which will be at `path`. Of a table that was cut over ranks
/// it has the rows that were used, and beside `NAME.weight` their ids, as `NAME.ids`. Tells which tensors are no numbers, by module.
///
/// # Errors
/// A file cannot be read or written; numbers of a tensor are missing.
pub fn write(
    of: Layer<'_>,
    base: Option<Layer<'_>>,
    numbers: Numbers,
    file: &File,
    path: &Path,
) -> Result<Vec<Odd>> {
    let mut tensors = tensors(of, base)?;
    if numbers == Numbers::Averages {
        take_averages(&mut tensors, find(of, base, of_slot(Some(AVERAGE)))?);
    }
    file.set_len(0).with_context(|| path.display().to_string())?;
    let mut whole = TensorFile::begin(file.try_clone()?, path, regions(&tensors))?;
    for (name, parts) in &tensors {
        let written = match ids_name(name, parts) {
            Some(ids) => write_rows(&mut whole, name, &ids, parts),
            None => write_numbers(&mut whole, name, parts),
        };
        written.with_context(|| format!("`{name}`"))?;
    }
    let odd = whole.finish()?.into_iter();
    let module = |name: &str| tensors.get(name).map(|parts| parts[0].saved.module.clone());
    Ok(odd.map(|(name, what)| Odd { module: module(&name).unwrap_or_default(), name, what }).collect())
}

/// In place of the parameters of which there are averages.
fn take_averages<'a>(tensors: &mut Tensors<'a>, all: Vec<Found<'a>>) {
    let mut averages: BTreeMap<(&str, &str), Vec<Found<'a>>> = BTreeMap::new();
    for found in all {
        averages.entry((&found.saved.module, &found.saved.entry.tensor)).or_default().push(found);
    }
    for parts in tensors.values_mut() {
        let Saved { module, entry, .. } = parts[0].saved;
        if let Some(mut averages) = averages.remove(&(module.as_str(), entry.tensor.as_str())) {
            averages.sort_by_key(|part| part.saved.from);
            *parts = averages;
        }
    }
}

/// The name of the list of ids, if rows of a table were saved.
pub fn ids_name(name: &str, parts: &[Found<'_>]) -> Option<String> {
    matches!(parts[0].saved.entry.extent, Extent::Rows { .. })
        .then(|| format!("{}ids", name.strip_suffix("weight").unwrap_or(name)))
}

fn regions(tensors: &Tensors<'_>) -> Vec<Region> {
    let mut regions = Vec::new();
    for (name, parts) in tensors {
        let entry = &parts[0].saved.entry;
        let mut shape = entry.shape.clone();
        if let Some(ids) = ids_name(name, parts) {
            shape[0] = parts.iter().map(Found::count).sum::<u64>() as i64;
            regions.push(Region { name: ids, kind: Kind::Int64, shape: vec![shape[0]] });
        }
        regions.push(Region { name: name.clone(), kind: entry.kind, shape });
    }
    regions
}

/// The parts of a tensor that go on behind the ones before: what is the same for all, each owner has saved.
pub fn without_repetition<'a, 'b>(parts: &'b [Found<'a>]) -> impl Iterator<Item = &'b Found<'a>> {
    let mut next = 0;
    parts.iter().filter(move |part| {
        let end = part.saved.from + part.saved.count;
        let goes_on = end > next;
        next = next.max(end);
        goes_on
    })
}

fn write_numbers(whole: &mut TensorFile, name: &str, parts: &[Found<'_>]) -> Result<()> {
    let mut next = 0;
    for part in without_repetition(parts) {
        ensure!(part.saved.from == next, "its numbers {next} to {} are missing", part.saved.from);
        for piece in part.pieces() {
            whole.append(name, &piece?.values)?;
            beat();
        }
        next += part.saved.count;
    }
    Ok(())
}

fn write_rows(whole: &mut TensorFile, name: &str, ids: &str, parts: &[Found<'_>]) -> Result<()> {
    let dim = parts[0].saved.entry.shape.iter().skip(1).product::<i64>() as usize;
    let rows = parts.iter().map(|part| Rows::new(part.pieces())).collect::<Result<_>>()?;
    merge(rows, dim, |of, rows| {
        whole.append(ids, &Tensor::f_from_slice(of)?)?;
        whole.append(name, &Tensor::f_from_slice(rows)?)?;
        beat();
        Ok(())
    })
}
