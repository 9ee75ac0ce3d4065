//! `model.safetensors`, as the coordinator writes it: piece by piece, as it comes from the owners of the model's parts, so
//! that nothing of it is whole in the coordinator's memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use c10d::finite::NotFinite;
use tch::{Kind, Tensor};

use super::merged_rows::{Rows, merge};
use crate::autograd::Autograd;
use crate::job::shards::Cut;
use crate::job::{ModuleSpec, Placement, Training};
use crate::model::{Region, TensorFile};
use crate::optimizers::AVERAGE;
use crate::parallel::{Extent, Piece, RowChoice, StateSnapshot};
use crate::profile::beat;

/// The states of all modules, each with the snapshots of those who own parts of it.
pub struct States(Vec<(ModuleSpec, Vec<StateSnapshot>)>);

/// Which numbers of a model are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    Weights,
    /// The moving averages of the parameters, and what else there is as it is.
    Averages,
}

/// One part of a tensor.
struct TensorPart<'a> {
    snapshot: &'a StateSnapshot,
    /// Among its entries.
    entry: usize,
}

impl States {
    /// Takes the owners' snapshots. `offered`: those of modules on trainers, by the module's name.
    ///
    /// # Errors
    /// When an owner cannot be asked.
    pub fn take(
        job: &Training,
        autograd: &Arc<Autograd>,
        mut offered: BTreeMap<String, Vec<StateSnapshot>>,
    ) -> Result<States> {
        let mut states = Vec::new();
        for spec in &job.modules {
            let mut snapshots = offered.remove(&spec.name).unwrap_or_default();
            let ranks = spec.place.ranks.as_slice();
            let owners = match spec.placement {
                // Its hosts have the same parameters; the running statistics are those of the first.
                Placement::Remote => &ranks[..1],
                Placement::Shards(_) | Placement::Caller => ranks,
                Placement::Replicas => &[],
            };
            for &owner in owners {
                snapshots.push(StateSnapshot::take(autograd, owner, &spec.name, RowChoice::All)?);
            }
            states.push((spec.clone(), snapshots));
        }
        Ok(States(states))
    }

    /// Writes its numbers to `file`, which will be at `path`, without what optimizers remember. Tells which tensors are no numbers:
    /// those with NaN, and those with infinities unless TorchScript has them, which masks with them.
    ///
    /// # Errors
    /// When the file cannot be written, or an owner does not give what it has.
    pub fn write(&self, job: &Training, numbers: Numbers, file: &File, path: &Path) -> Result<Vec<String>> {
        // Written once more where it was not before.
        file.set_len(0).with_context(|| path.display().to_string())?;
        let mut file = TensorFile::begin(file.try_clone()?, path, self.regions(job, numbers))?;
        let mut masks = BTreeSet::new();
        for (spec, snapshots) in &self.0 {
            for (tensor, parts) in parts(snapshots, numbers) {
                let names = names(job, spec, snapshots, &tensor);
                let Some(first) = names.first() else { continue };
                if spec.torchscript().is_some() {
                    masks.extend(names.iter().cloned());
                }
                let ids = ids_name(job, spec, &tensor);
                write_tensor(&mut file, &names, ids, parts).with_context(|| format!("`{first}`"))?;
            }
        }
        let odd = file.finish()?.into_iter();
        let odd = odd.filter(|(name, what)| *what == NotFinite::Nan || !masks.contains(name));
        Ok(odd.map(|(name, what)| format!("`{name}` ({what})")).collect())
    }

    fn regions(&self, job: &Training, numbers: Numbers) -> Vec<Region> {
        let mut regions = Vec::new();
        for (spec, snapshots) in &self.0 {
            for (tensor, parts) in parts(snapshots, numbers) {
                let entry = parts[0].entry();
                let mut shape = entry.shape.clone();
                if matches!(entry.extent, Extent::Rows { .. }) {
                    shape[0] = parts.iter().map(|part| part.entry().len()).sum::<u64>() as i64;
                    regions.extend(ids_name(job, spec, &tensor).map(|name| Region {
                        name,
                        kind: Kind::Int64,
                        shape: vec![shape[0]],
                    }));
                }
                let names = names(job, spec, snapshots, &tensor).into_iter();
                regions.extend(names.map(|name| Region { name, kind: entry.kind, shape: shape.clone() }));
            }
        }
        regions
    }
}

impl TensorPart<'_> {
    fn entry(&self) -> &crate::parallel::Entry {
        &self.snapshot.entries[self.entry]
    }
}

/// The parts of each tensor, in their order.
fn parts(snapshots: &[StateSnapshot], numbers: Numbers) -> BTreeMap<String, Vec<TensorPart<'_>>> {
    let mut parts: BTreeMap<String, Vec<TensorPart<'_>>> = BTreeMap::new();
    for snapshot in snapshots {
        let entries = || snapshot.entries.iter().enumerate();
        let averages = || entries().filter(|(_, of)| of.slot.as_deref() == Some(AVERAGE));
        for (value, of) in entries().filter(|(_, of)| of.slot.is_none()) {
            let average = averages().find(|(_, average)| {
                numbers == Numbers::Averages && (&average.tensor, average.extent) == (&of.tensor, of.extent)
            });
            let entry = average.map_or(value, |(entry, _)| entry);
            parts.entry(of.tensor.clone()).or_default().push(TensorPart { snapshot, entry });
        }
    }
    for parts in parts.values_mut() {
        // Rows stand in the order of their owners already.
        parts.sort_by_key(|part| part.entry().first());
    }
    parts
}

/// The names of a tensor in the file: its own, and those under which it is there again. None: it is not saved.
fn names(job: &Training, spec: &ModuleSpec, snapshots: &[StateSnapshot], tensor: &str) -> Vec<String> {
    let aliases = snapshots.iter().flat_map(|snapshot| &snapshot.aliases);
    let aliases = aliases.filter(|(_, first)| first == tensor).map(|(alias, _)| alias.as_str());
    let non_persistent = spec.torchscript().map_or(&[][..], |script| script.non_persistent.as_slice());
    let saved = |name: &&str| !non_persistent.iter().any(|left_out| left_out == name);
    let names = [tensor].into_iter().chain(aliases).filter(saved);
    let mut names: Vec<String> = names.map(|name| job.tensor_name(spec, name)).collect();
    names.dedup();
    names
}

/// The name of the list of ids beside a table's rows, which only a table cut by hash has.
fn ids_name(job: &Training, spec: &ModuleSpec, tensor: &str) -> Option<String> {
    let module = tensor.strip_suffix("weight").filter(|_| spec.placement == Placement::Shards(Cut::Hash));
    module.map(|module| job.tensor_name(spec, &format!("{module}ids")))
}

fn write_tensor(
    file: &mut TensorFile,
    names: &[String],
    ids: Option<String>,
    parts: Vec<TensorPart<'_>>,
) -> Result<()> {
    let Some(ids) = ids else {
        // Parts follow one another.
        for part in parts {
            for piece in part.snapshot.pieces(part.entry) {
                let Piece { values, .. } = piece?;
                names.iter().try_for_each(|name| file.append(name, &values))?;
                beat();
            }
        }
        return Ok(());
    };
    let dim = parts[0].entry().shape[1] as usize;
    let sources = parts.into_iter().map(|part| Rows::new(part.snapshot.pieces(part.entry)));
    merge(sources.collect::<Result<_>>()?, dim, |of, rows| {
        file.append(&ids, &Tensor::f_from_slice(of)?)?;
        let rows = Tensor::f_from_slice(rows)?;
        names.iter().try_for_each(|name| file.append(name, &rows))?;
        beat();
        Ok(())
    })
}
