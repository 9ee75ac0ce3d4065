//! The model of a checkpoint in one file, as a run writes it at its end.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use tch::{Kind, Tensor};

use super::part::Saved;
use super::tensors::{Found, Layer, find};
use crate::model::{Region, TensorFile};
use crate::optimizers::AVERAGE;
use crate::parallel::Extent;
use crate::profile::beat;
use crate::runner::merged_rows::{Rows, merge};
use crate::runner::saved_model::Numbers;

/// By the name that the model's file has it under.
type Tensors<'a> = BTreeMap<String, Vec<Found<'a>>>;

/// Writes the model that is in `of`, and in the `base` of that, to `file`, which will be at `path`. Of a table that was cut over ranks
/// it has the rows that were used, and beside `NAME.weight` their ids, as `NAME.ids`.
///
/// # Errors
/// A file cannot be read or written; numbers of a tensor are missing.
pub fn write(
    of: Layer<'_>,
    base: Option<Layer<'_>>,
    numbers: Numbers,
    file: &File,
    path: &Path,
) -> Result<()> {
    let of_slot = |slot: Option<&'static str>| move |saved: &Saved| saved.entry.slot.as_deref() == slot;
    let mut tensors = Tensors::new();
    for found in find(of, base, of_slot(None))? {
        tensors.entry(found.model_name()).or_default().push(found);
    }
    if numbers == Numbers::Averages {
        take_averages(&mut tensors, find(of, base, of_slot(Some(AVERAGE)))?);
    }
    for found in tensors.values_mut() {
        found.sort_by_key(|found| found.saved.from);
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
    whole.finish()?;
    Ok(())
}

/// In place of the parameters of which there are averages.
fn take_averages<'a>(tensors: &mut Tensors<'a>, all: Vec<Found<'a>>) {
    let mut averages: BTreeMap<(&str, &str), Vec<Found<'a>>> = BTreeMap::new();
    for found in all {
        averages.entry((&found.saved.module, &found.saved.entry.tensor)).or_default().push(found);
    }
    for parts in tensors.values_mut() {
        let Saved { module, entry, .. } = parts[0].saved;
        if let Some(averages) = averages.remove(&(module.as_str(), entry.tensor.as_str())) {
            *parts = averages;
        }
    }
}

/// Of the list of ids, of a table of which rows were saved.
fn ids_name(name: &str, parts: &[Found<'_>]) -> Option<String> {
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

fn write_numbers(whole: &mut TensorFile, name: &str, parts: &[Found<'_>]) -> Result<()> {
    let mut next = 0;
    // What is the same for all parts each owner has saved.
    for part in parts.iter().filter(|part| part.saved.count > 0) {
        if part.saved.from + part.saved.count <= next {
            continue;
        }
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
