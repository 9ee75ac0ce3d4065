//! `model.safetensors`, as the coordinator writes it: whole modules from its memory, sharded tables piece by piece as they
//! come from their owners.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tch::{Kind, Tensor};

use crate::autograd::Autograd;
use crate::job::shards::Cut;
use crate::job::{Placement, Training};
use crate::model::{Region, TensorFile};
use crate::parallel::{Listing, Piece, ShardedModule};

/// A sharded table that is to be written, and its names in the file.
pub struct Table {
    /// PyTorch's.
    weight: String,
    /// Of the list of ids, which only a table cut by hash has.
    ids: Option<String>,
    dim: i64,
    listings: Vec<Listing>,
}

/// The sharded tables of a job.
///
/// # Errors
/// When an owner cannot be asked.
pub fn tables(job: &Training, autograd: &Arc<Autograd>) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for spec in &job.modules {
        let (Placement::Shards(cut), Some(table)) = (spec.placement, spec.table()) else { continue };
        let name = |tensor: &str| job.tensor_name(spec, &format!("{}.{tensor}", spec.layers()[0].name));
        tables.push(Table {
            weight: name("weight"),
            ids: (cut == Cut::Hash).then(|| name("ids")),
            dim: table.dim,
            listings: ShardedModule::get(autograd, spec)?.listings()?,
        });
    }
    Ok(tables)
}

/// Writes `tensors` and `tables` to `path`.
///
/// # Errors
/// When the file cannot be written, or an owner does not give its rows.
pub fn write(path: &Path, tensors: Vec<(String, Tensor)>, tables: Vec<Table>) -> Result<()> {
    let mut regions: Vec<Region> = tensors.iter().map(|(name, tensor)| Region::of(name, tensor)).collect();
    for Table { weight, ids, dim, listings } in &tables {
        let rows = listings.iter().map(Listing::rows).sum::<u64>() as i64;
        regions.push(Region { name: weight.clone(), kind: Kind::Float, shape: vec![rows, *dim] });
        regions.extend(ids.iter().map(|name| Region {
            name: name.clone(),
            kind: Kind::Int64,
            shape: vec![rows],
        }));
    }
    let mut file = TensorFile::create(path, regions)?;
    tensors.iter().try_for_each(|(name, tensor)| file.append(name, tensor))?;
    drop(tensors);
    for table in tables {
        let name = table.weight.clone();
        table.write(&mut file).with_context(|| format!("the rows of `{name}`"))?;
    }
    Ok(file.finish()?)
}

impl Table {
    fn write(self, file: &mut TensorFile) -> Result<()> {
        match self.ids {
            // Ranges follow one another.
            None => {
                for mut listing in self.listings {
                    while let Some(Piece { rows, .. }) = listing.next_piece()? {
                        file.append(&self.weight, &rows)?;
                    }
                }
            }
            Some(ids) => {
                let sources = self.listings.into_iter().map(Source::new).collect::<Result<_>>()?;
                merge(sources, self.dim as usize, |of, rows| {
                    file.append(&ids, &Tensor::f_from_slice(of)?)?;
                    Ok(file.append(&self.weight, &Tensor::f_from_slice(rows)?)?)
                })?;
            }
        }
        Ok(())
    }
}

/// One owner's rows while they are merged with those of others.
struct Source {
    listing: Listing,
    /// Of the piece that came last.
    ids: Vec<i64>,
    rows: Vec<f32>,
    /// Among them the first that was not taken yet.
    next: usize,
}

impl Source {
    fn new(listing: Listing) -> Result<Source> {
        let mut source = Source { listing, ids: Vec::new(), rows: Vec::new(), next: 0 };
        source.refill()?;
        Ok(source)
    }

    fn refill(&mut self) -> Result<()> {
        self.next = 0;
        match self.listing.next_piece()? {
            Some(Piece { ids, rows }) => {
                (self.ids, self.rows) = (Vec::try_from(ids)?, Vec::try_from(rows.f_view(-1)?)?);
            }
            None => self.ids.clear(),
        }
        Ok(())
    }

    /// The smallest id that was not taken yet.
    fn id(&self) -> Option<i64> {
        self.ids.get(self.next).copied()
    }
}

/// Rows that are handed over at a time.
const MERGED_ROWS: usize = 1 << 16;

/// Hands over the rows of all sources in the order of their ids, of which no two sources have the same.
fn merge(
    mut sources: Vec<Source>,
    dim: usize,
    mut take: impl FnMut(&[i64], &[f32]) -> Result<()>,
) -> Result<()> {
    let (mut ids, mut rows) = (Vec::new(), Vec::new());
    loop {
        let smallest = sources.iter_mut().filter_map(|source| source.id().map(|id| (id, source)));
        let Some((id, source)) = smallest.min_by_key(|(id, _)| *id) else { break };
        ids.push(id);
        rows.extend_from_slice(&source.rows[source.next * dim..][..dim]);
        source.next += 1;
        if source.next == source.ids.len() {
            source.refill()?;
        }
        if ids.len() == MERGED_ROWS {
            take(&ids, &rows)?;
            ids.clear();
            rows.clear();
        }
    }
    take(&ids, &rows)
}
