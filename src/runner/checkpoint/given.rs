//! The model of a checkpoint as what another job starts from: where in its files each tensor lies. Needs no libtorch.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use super::tensors::{ByteRun, Found, Layer};
use super::whole::{self, ids_name};
use crate::job::Place;
use crate::job::weights::{Dtype, Piece, Scattered};
use crate::model::torch_name;

/// The tensors of `of` and of its `base`, as the weights that a model is given. `sha256`: of the manifest.
///
/// # Errors
/// It is not in a folder; a file cannot be read, or has not what the manifest says; numbers of a tensor are missing.
pub fn scattered(of: Layer<'_>, base: Option<Layer<'_>>, sha256: String) -> Result<Scattered> {
    let tensors = whole::tensors(of, base)?;
    let files = Files::of(tensors.values().flatten())?;
    let mut scattered = Scattered::new(files.0.clone(), sha256);
    for (name, parts) in &tensors {
        let entry = &parts[0].saved.entry;
        let dtype = Dtype::named(torch_name(entry.kind));
        let dtype = dtype.with_context(|| format!("`{name}` is of no dtype that weights have"))?;
        let added = match ids_name(name, parts) {
            Some(ids) => add_rows(&mut scattered, &files, (name, &ids, dtype), parts),
            None => add_numbers(&mut scattered, &files, (name, dtype), parts),
        };
        added.with_context(|| format!("`{name}`"))?;
    }
    Ok(scattered)
}

/// The files of a checkpoint, and of its base.
struct Files(Vec<PathBuf>);

impl Files {
    fn of<'a>(all: impl Iterator<Item = &'a Found<'a>>) -> Result<Files> {
        let mut files = all.map(path).collect::<Result<Vec<_>>>()?;
        files.sort();
        files.dedup();
        Ok(Files(files))
    }

    fn pieces<'a>(
        &self,
        found: &Found<'_>,
        runs: Vec<ByteRun>,
    ) -> Result<impl Iterator<Item = Piece> + use<'a>> {
        let file = self.0.binary_search(&path(found)?).ok().context("a file that nobody has looked for")?;
        Ok(runs.into_iter().map(move |ByteRun { start, len }| Piece { file, start, len }))
    }
}

fn path(found: &Found<'_>) -> Result<PathBuf> {
    match found.place() {
        Place::Folder(path) => Ok(path.clone()),
        Place::Bucket(_) => bail!("`{}` is not in a folder", found.place()),
    }
}

fn add_numbers(
    scattered: &mut Scattered,
    files: &Files,
    (name, dtype): (&str, Dtype),
    parts: &[Found<'_>],
) -> Result<()> {
    let (mut next, mut pieces) = (0, Vec::new());
    for part in whole::without_repetition(parts) {
        ensure!(part.saved.from == next, "its numbers {next} to {} are missing", part.saved.from);
        next += part.saved.count;
        pieces.extend(files.pieces(part, part.value_runs()?)?);
    }
    let entry = &parts[0].saved.entry;
    let all = entry.shape.iter().product::<i64>() as u64;
    ensure!(next == all, "it has {next} of its {all} numbers");
    scattered.add(name, dtype, entry.shape.clone(), pieces);
    Ok(())
}

fn add_rows(
    scattered: &mut Scattered,
    files: &Files,
    (name, ids, dtype): (&str, &str, Dtype),
    parts: &[Found<'_>],
) -> Result<()> {
    let (mut of_ids, mut of_values) = (Vec::new(), Vec::new());
    for part in parts {
        of_ids.extend(files.pieces(part, part.id_runs()?)?);
        of_values.extend(files.pieces(part, part.value_runs()?)?);
    }
    let mut shape = parts[0].saved.entry.shape.clone();
    shape[0] = parts.iter().map(Found::count).sum::<u64>() as i64;
    scattered.add(ids, Dtype::int64(), vec![shape[0]], of_ids);
    scattered.add(name, dtype, shape, of_values);
    Ok(())
}
