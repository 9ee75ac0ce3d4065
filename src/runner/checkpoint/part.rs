//! An owner's part of a checkpoint: safetensors files, as `torch.distributed.checkpoint` reads them.
//!
//! Parameters have the names of the model's `state_dict`, what an optimizer remembers of one stands under
//! `optim.NAME.exp_avg` and so on, and each file says where in the whole tensor its part begins (`DCP_SHARDING_INFO`), so that
//! PyTorch's `HuggingFaceStorageReader` puts the parts together. A file has a name once: what an owner has of a tensor that is no
//! block of it is in several. Rows of a table stand beside their ids, as `NAME@RANK` and `NAME@RANK.ids`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use tch::Kind;

use super::boxes::blocks;
use super::store::{CountedFile, Store};
use crate::job::weights::Header;
use crate::job::{ModuleSpec, Training};
use crate::model::{Layout, Region, TensorStream, torch_name};
use crate::parallel::{Entry, Extent, Piece, StateSnapshot, StepCounters};
use crate::profile::beat;
use crate::topology::Rank;

/// What a rank has written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub rank: Rank,
    pub files: Vec<PartFile>,
    /// The steps that it had applied, by module.
    pub counters: BTreeMap<String, StepCounters>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartFile {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    /// By the name in the file.
    pub tensors: BTreeMap<String, Saved>,
}

/// Bytes of a row's id.
pub const ID_BYTES: u64 = size_of::<i64>() as u64;

/// What a tensor of a file is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// As a job writes it.
    pub module: String,
    pub entry: Entry,
    /// The first of its numbers in the whole tensor taken as a vector, and how many there are.
    pub from: u64,
    pub count: u64,
    /// Where it is rows, the name of their ids in the file.
    pub ids: Option<String>,
}

impl Saved {
    /// That it can be what it says, whoever has written it, and that the file has that as `name`.
    ///
    /// # Errors
    /// How it contradicts itself, or the file.
    pub fn check(&self, name: &str, header: &Header) -> Result<()> {
        let Saved { entry, from, count, ids, .. } = self;
        let stored = header.get(name).with_context(|| format!("`{name}` is not in the file"))?;
        let (dtype, kind) = (stored.dtype.name(), torch_name(entry.kind));
        ensure!(dtype == kind, "`{name}` is {dtype} in the file, and {kind} in the manifest");
        let width = match (entry.extent, entry.shape.as_slice()) {
            (Extent::Rows { .. }, [_, row @ ..]) => {
                let ids = ids.as_ref().with_context(|| format!("`{name}` has rows, and no ids"))?;
                let of_ids = header.get(ids).with_context(|| format!("`{ids}` is not in the file"))?;
                let right = of_ids.dtype.name() == torch_name(Kind::Int64)
                    && Some(of_ids.len) == count.checked_mul(ID_BYTES);
                ensure!(right, "`{ids}` is not the {count} ids of `{name}`");
                numbers(row).filter(|width| *width > 0)
            }
            (Extent::Rows { .. }, _) => bail!("`{name}` has rows, and no dimensions"),
            (_, shape) => {
                let ends = numbers(shape).zip(from.checked_add(*count));
                let fits = ids.is_none() && ends.is_some_and(|(all, end)| end <= all);
                ensure!(fits, "`{name}` has {count} numbers from {from} on of shape {shape:?}");
                Some(1)
            }
        };
        let bytes = width.and_then(|width| width.checked_mul(entry.kind.elt_size_in_bytes() as u64));
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(*count));
        ensure!(
            bytes == Some(stored.len),
            "`{name}` has {} bytes, which are not {count} of shape {:?}",
            stored.len,
            entry.shape
        );
        Ok(())
    }

    /// Numbers of the whole tensor, where its shape is one.
    pub fn numbers(&self) -> Option<u64> {
        numbers(&self.entry.shape)
    }

    /// The name that the model has it under, of which `name` is the one in the file.
    pub fn model_name(&self, name: &str) -> String {
        let of_rank = self.ids.as_ref().and_then(|_| name.rsplit_once('@'));
        of_rank.map_or(name, |(name, _)| name).into()
    }
}

/// Numbers of a shape, if it is one.
fn numbers(shape: &[i64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, &size| product.checked_mul(u64::try_from(size).ok()?))
}

/// A tensor of a file that is to be written.
struct Wanted<'a> {
    name: String,
    snapshot: &'a StateSnapshot,
    /// Among its entries.
    entry: usize,
    saved: Saved,
    shape: Vec<i64>,
    offsets: Vec<i64>,
}

impl Part {
    /// Writes what `rank` has into a checkpoint that was begun.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(
        store: &dyn Store,
        rank: Rank,
        job: &Training,
        states: &[(ModuleSpec, StateSnapshot)],
    ) -> Result<Part> {
        let mut files: Vec<Vec<Wanted<'_>>> = Vec::new();
        let mut counters: BTreeMap<String, StepCounters> = BTreeMap::new();
        for (spec, snapshot) in states {
            counters.entry(spec.written_name().into()).or_default().merge(&snapshot.counters);
            for entry in 0..snapshot.entries.len() {
                for (nth, wanted) in wanted(job, rank, spec, snapshot, entry).into_iter().enumerate() {
                    files.resize_with(files.len().max(nth + 1), Vec::new);
                    files[nth].push(wanted);
                }
            }
        }
        let count = files.len();
        let write = |(nth, wanted): (usize, Vec<Wanted<'_>>)| {
            let (shard, nth) = (rank.0 + 1, nth + 1);
            let name = format!("shard-{shard:05}-model-{nth:05}-of-{count:05}.safetensors");
            write_file(store, name, wanted)
        };
        let files = files.into_iter().enumerate().map(write).collect::<Result<_>>()?;
        Ok(Part { rank, files, counters })
    }
}

/// The parts of an entry, each for a file of its own.
fn wanted<'a>(
    job: &Training,
    rank: Rank,
    spec: &ModuleSpec,
    snapshot: &'a StateSnapshot,
    at: usize,
) -> Vec<Wanted<'a>> {
    let entry = &snapshot.entries[at];
    let name = name(job, spec, entry);
    let module = spec.written_name().to_owned();
    let of = |name: String, saved: Saved, shape: Vec<i64>, offsets: Vec<i64>| Wanted {
        name,
        snapshot,
        entry: at,
        saved,
        shape,
        offsets,
    };
    let (from, to) = match entry.extent {
        Extent::Elements { from, to } => (from, to),
        Extent::Shared | Extent::RowsOf(_) => (0, entry.len()),
        Extent::Rows { rows, .. } => {
            let name = format!("{name}@{rank}");
            let ids = Some(format!("{name}.ids"));
            let saved = Saved { module, entry: entry.clone(), from: 0, count: rows, ids };
            return vec![of(name, saved, entry.shape.clone(), vec![0; entry.shape.len()])];
        }
    };
    let blocks = blocks(&entry.shape, from, to).into_iter();
    let wanted = blocks.map(|block| {
        let (from, count) = (block.from, block.count);
        let saved = Saved { module: module.clone(), entry: entry.clone(), from, count, ids: None };
        of(name.clone(), saved, block.sizes, block.offsets)
    });
    wanted.collect()
}

/// Under which an entry stands in the files of any cut.
fn name(job: &Training, spec: &ModuleSpec, entry: &Entry) -> String {
    let tensor = job.tensor_name(spec, &entry.tensor);
    let of_slot = entry.slot.as_ref().map(|slot| format!("optim.{tensor}.{slot}"));
    let of_all = of_slot.unwrap_or(tensor);
    // Without order each trainer has an optimizer of its own.
    entry.lane.map(|rank| format!("{of_all}@{rank}")).unwrap_or(of_all)
}

fn write_file(store: &dyn Store, name: String, wanted: Vec<Wanted<'_>>) -> Result<PartFile> {
    let shown = store.place().join(&name);
    let cannot_write = |message: String| anyhow!("cannot write `{shown}`: {message}");
    let (mut regions, mut offsets) = (Vec::new(), serde_json::Map::new());
    for Wanted { name, saved, shape, offsets: first, .. } in &wanted {
        let told = |offsets: &[i64]| serde_json::json!({ "saved_offsets": offsets });
        if let Some(ids) = &saved.ids {
            offsets.insert(ids.clone(), told(&[0]));
            regions.push(Region { name: ids.clone(), kind: Kind::Int64, shape: vec![saved.count as i64] });
        }
        offsets.insert(name.clone(), told(first));
        regions.push(Region { name: name.clone(), kind: saved.entry.kind, shape: shape.clone() });
    }
    let metadata = [
        ("format", "pt".to_owned()),
        ("DCP_VERSION", "1.0".to_owned()),
        ("DCP_SHARDING_INFO", serde_json::Value::Object(offsets).to_string()),
    ];
    let layout = Layout::new(regions, &metadata).map_err(cannot_write)?;
    let file = CountedFile::new(store.create(&name, layout.bytes())?);
    let in_order: Vec<String> = layout.names().map(str::to_owned).collect();
    let mut tensors = TensorStream::begin(file, layout).map_err(cannot_write)?;
    for name in &in_order {
        let (of, is_ids) = of_tensor(&wanted, name).context("a tensor that nobody has wanted")?;
        for piece in of.snapshot.pieces_of(of.entry, of.saved.from, of.saved.count) {
            let Piece { ids, values } = piece?;
            // A store takes a file from its beginning to its end: rows are read once more for their ids.
            let values = if is_ids { ids.context("rows have come without ids")? } else { values };
            tensors.append(name, &values).map_err(cannot_write)?;
            beat();
        }
    }
    let (bytes, sha256) = tensors.finish().map_err(cannot_write)?.finish()?;
    let tensors = wanted.into_iter().map(|wanted| (wanted.name, wanted.saved)).collect();
    Ok(PartFile { file: name, bytes, sha256, tensors })
}

/// What is called `name` in the file, and whether that is the ids of its rows.
fn of_tensor<'a, 'b>(wanted: &'a [Wanted<'b>], name: &str) -> Option<(&'a Wanted<'b>, bool)> {
    wanted.iter().find_map(|wanted| {
        let is_ids = wanted.saved.ids.as_deref() == Some(name);
        (is_ids || wanted.name == name).then_some((wanted, is_ids))
    })
}
