//! Whether ids of the data are rows of the tables that take them: some samples tell, before anything runs.

use anyhow::{Result, bail};
use tch::Tensor;

use super::samples::Samples;
use crate::job::shards::Cut;
use crate::job::{ModuleSpec, Placement, Source, Training};
use crate::layers::masks::MaskSource;
use crate::layers::{EMPTY_PLACE, ForwardArgs, Layer};

/// Tables that take fields of the data, with nothing before them but layers that learn nothing.
///
/// # Errors
/// An id that its table does not have.
pub(super) fn fit(training: &Training, samples: &Samples) -> Result<()> {
    for module in &training.modules {
        let [Source::Field(field)] = module.sources[..] else { continue };
        let Some(table) = ids_of_table(module, &samples.fields[field])? else { continue };
        let hashed = module.placement == Placement::Shards(Cut::Hash);
        look(module, &table, hashed)?;
    }
    Ok(())
}

/// A table's layer, and what it takes.
struct Taken<'a> {
    layer: &'a Layer,
    rows: i64,
    bags: bool,
    ids: Tensor,
}

fn ids_of_table<'a>(module: &'a ModuleSpec, field: &Tensor) -> Result<Option<Taken<'a>>> {
    let mut ids = field.shallow_clone();
    for layer in module.layers() {
        if let Some(table) = layer.op.rows() {
            return Ok(Some(Taken { layer, rows: table.table.rows, bags: table.bags.is_some(), ids }));
        }
        if !layer.op.parameters().is_empty() || !layer.op.buffers().is_empty() || !layer.op.inner().is_empty()
        {
            return Ok(None);
        }
        let mut args = ForwardArgs {
            params: &[],
            x: &ids,
            others: &[],
            inner: None,
            train: false,
            may_overwrite: false,
            buffers: &|| Ok(Vec::new()),
            seen: &mut |_| (),
            masks: &|| MaskSource::new(0, "", 0),
        };
        ids = layer.op.forward(&mut args)?;
    }
    Ok(None)
}

fn look(module: &ModuleSpec, Taken { layer, rows, bags, ids }: &Taken<'_>, hashed: bool) -> Result<()> {
    let (name, layer) = (module.written_name(), &layer.name);
    let ids = Vec::<i64>::try_from(ids.f_flatten(0, -1)?)?;
    let mut ids = ids.into_iter().filter(|&id| !bags || id != EMPTY_PLACE);
    let Some(id) = ids.find(|&id| id < 0 || (!hashed && id >= *rows)) else { return Ok(()) };
    if id < 0 {
        let bags = if *bags { "" } else { "; in bags -1 is an empty place" };
        bail!("module `{name}`, layer `{layer}`: id {id} is negative\n  hint: ids count from 0{bags}");
    }
    bail!(
        "module `{name}`, layer `{layer}`: id {id} is not below num_embeddings = {rows}\n  \
         hint: raise num_embeddings above the largest id"
    )
}
