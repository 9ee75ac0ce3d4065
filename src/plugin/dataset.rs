//! A dataset: one instance of a plug-in that was opened on a data folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tch::{Kind, Tensor};

use super::bindings::dataset::{Guest, GuestIndices, Info, Purpose as WitPurpose};
use super::component::{Component, World};
use super::dtype::kind_of;
use super::error::{PluginError, PluginErrorKind, tame};
use super::instance::Instance;
use crate::human::{self, thousands};
use crate::job::PluginLimits;

const MOST_FIELDS: usize = 64;
const MOST_DIMS: usize = 8;
/// What the training samples have settled for the others: it is kept in memory, sent to the coordinator, and saved.
pub const MOST_STATE: usize = 64 << 20;

/// What a dataset says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetInfo {
    /// Samples, at least one.
    pub samples: u64,
    /// Fields, at least one, with distinct names.
    pub fields: Vec<Field>,
    /// What the training samples have settled for all others.
    pub state: Option<DatasetState>,
}

/// At most [`MOST_STATE`] bytes that only the plug-in understands.
pub type DatasetState = Arc<[u8]>;

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Purpose {
    pub train: bool,
    /// Counted from 0.
    pub epoch: u32,
    /// The job's.
    pub seed: u64,
}

impl Purpose {
    pub const fn training(seed: u64, epoch: u32) -> Purpose {
        Purpose { train: true, epoch, seed }
    }

    pub const fn evaluation(seed: u64) -> Purpose {
        Purpose { train: false, epoch: 0, seed }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: String,
    pub dtype: Kind,
    /// Shape of one sample, without the batch dimension.
    pub shape: Vec<i64>,
}

/// An open dataset. `Send`; for several threads, open one on each.
pub struct Dataset {
    component: Component,
    config: String,
    root: PathBuf,
    limits: PluginLimits,
    /// The state that it was opened with.
    given: Option<DatasetState>,
    info: DatasetInfo,
    instance: Instance<Guest>,
}

impl Dataset {
    /// Starts an instance that sees `root` and opens it with `config`, a JSON object. `state`: what the training samples
    /// have settled, unless this is the instance that is to settle it.
    ///
    /// # Errors
    /// If the plug-in is not a dataset, breaks a limit, fails, or says impossible things of itself.
    pub fn open(
        component: &Component,
        config: &serde_json::Value,
        root: &Path,
        limits: PluginLimits,
        state: Option<DatasetState>,
    ) -> Result<Dataset, PluginError> {
        if !component.is(World::Dataset) {
            return Err(component.is_not("a dataset"));
        }
        let config = config.to_string();
        let (instance, info) = start(component, &config, root, &limits, state.clone())?;
        let (component, root) = (component.clone(), root.into());
        Ok(Dataset { component, config, root, limits, given: state, info, instance })
    }

    pub fn info(&self) -> &DatasetInfo {
        &self.info
    }

    /// One dense CPU tensor for each field, in the order of `info().fields`, of shape `[indices.len(), ...]` and the
    /// field's dtype.
    ///
    /// # Errors
    /// Leaves a dataset that can be asked again: after a trap, by a fresh instance.
    pub fn batch(&mut self, indices: &[u64], purpose: Purpose) -> Result<Vec<Tensor>, PluginError> {
        self.check_request(indices)?;
        if self.instance.is_spent() {
            self.restart()?;
        }
        let samples = i64::try_from(indices.len()).expect("checked: a batch fits its limit in bytes");
        self.instance.store.data_mut().batch.expect(samples);
        let Purpose { train, epoch, seed } = purpose;
        let purpose = WitPurpose { train, epoch, seed };
        let called = self
            .instance
            .call("batch", self.limits.time, |guest, store| guest.call_batch(store, indices, purpose));
        let batch = self.instance.store.data_mut().batch.finish();
        called?;
        batch.map_err(|missing| self.instance.error("batch", PluginErrorKind::BadData, missing))
    }

    pub(super) fn name(&self) -> &str {
        self.component.name()
    }

    pub(super) fn time_limit(&self) -> Duration {
        self.limits.time
    }

    /// Memory of the instance now, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.instance.memory_bytes()
    }

    fn check_request(&self, indices: &[u64]) -> Result<(), PluginError> {
        let samples = self.info.samples;
        let refused = |message: String| self.instance.error("batch", PluginErrorKind::Host, message);
        if indices.is_empty() {
            return Err(refused("a batch of no samples was asked for".into()));
        }
        if let Some(beyond) = indices.iter().find(|&&index| index >= samples) {
            return Err(refused(format!(
                "sample {beyond} was asked for; there are {samples}, counted from 0"
            )));
        }
        let sample_bytes: u64 = self.info.fields.iter().map(bytes_of).sum();
        let (bytes, limit) = (sample_bytes.saturating_mul(indices.len() as u64), self.limits.batch_bytes);
        if bytes > limit || indices.len() > i32::MAX as usize {
            let (n, bytes, limit) = (indices.len(), human::bytes(bytes), human::bytes(limit));
            return Err(refused(format!("a batch of {n} samples has {bytes}; the limit is {limit}"))
                .with_hint("take smaller batches or raise `plugins.batch_mb`"));
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), PluginError> {
        // One that has settled a state would settle it again, and it is compared with the first.
        let state = self.given.clone();
        let (instance, info) = start(&self.component, &self.config, &self.root, &self.limits, state)?;
        if info != self.info {
            let message = "it was opened again and is not the same: samples or fields have changed";
            return Err(instance.error("open", PluginErrorKind::BadData, message));
        }
        self.instance = instance;
        Ok(())
    }
}

fn start(
    component: &Component,
    config: &str,
    root: &Path,
    limits: &PluginLimits,
    state: Option<DatasetState>,
) -> Result<(Instance<Guest>, DatasetInfo), PluginError> {
    let mut instance = Instance::start(component, Some(root), limits, |store, instance| {
        GuestIndices::new(component.pre())?.load(store, instance)
    })?;
    let info = instance
        .call("open", limits.open_time, |guest, store| guest.call_open(store, config, state.as_deref()))?;
    let bad = |message: String| instance.error("open", PluginErrorKind::BadData, message);
    if info.samples > limits.max_samples {
        let (samples, limit) = (thousands(info.samples), thousands(limits.max_samples));
        return Err(bad(format!("it claims to have {samples} samples; the limit is {limit}"))
            .with_hint("if it has that many, raise `plugins.max_samples`"));
    }
    let mut info = validate(info, limits.batch_bytes).map_err(bad)?;
    info.state = state.or(info.state);
    instance.store.data_mut().batch.set_fields(info.fields.clone(), limits.batch_bytes);
    Ok((instance, info))
}

/// Bytes of one sample. A validated field cannot overflow.
fn bytes_of(field: &Field) -> u64 {
    field.shape.iter().product::<i64>() as u64 * field.dtype.elt_size_in_bytes() as u64
}

fn validate(info: Info, batch_bytes: u64) -> Result<DatasetInfo, String> {
    let Info { samples, fields, state } = info;
    if samples == 0 {
        return Err("it has no samples".into());
    }
    if let Some(bytes) = state.as_ref().map(Vec::len).filter(|&bytes| bytes > MOST_STATE) {
        let (bytes, limit) = (human::bytes(bytes as u64), human::bytes(MOST_STATE as u64));
        return Err(format!("it has a state of {bytes} for the other samples; the limit is {limit}"));
    }
    if fields.is_empty() || fields.len() > MOST_FIELDS {
        return Err(format!("it has {} fields; 1 to {MOST_FIELDS} are possible", fields.len()));
    }
    let mut validated: Vec<Field> = Vec::with_capacity(fields.len());
    for field in fields {
        let name = tame(&field.name);
        if name.is_empty() || name.len() > 64 || name != field.name {
            return Err(format!("a field is named `{name}`; 1 to 64 printable characters are possible"));
        }
        if validated.iter().any(|other| other.name == name) {
            return Err(format!("two fields are named `{name}`"));
        }
        let dtype = kind_of(field.dtype);
        if field.shape.len() > MOST_DIMS {
            return Err(format!(
                "field `{name}` has {} dimensions; {MOST_DIMS} are possible",
                field.shape.len()
            ));
        }
        let size = dtype.elt_size_in_bytes() as u64;
        let bytes = field.shape.iter().try_fold(size, |bytes, &dim| bytes.checked_mul(dim));
        if !bytes.is_some_and(|bytes| (1..=batch_bytes).contains(&bytes)) {
            let limit = human::bytes(batch_bytes);
            let shape = &field.shape;
            return Err(format!(
                "a sample of field `{name}` has the shape {shape:?}; the limit of a batch is {limit} (`plugins.batch_mb`)"
            ));
        }
        validated.push(Field { name, dtype, shape: field.shape.iter().map(|&dim| dim as i64).collect() });
    }
    Ok(DatasetInfo { samples, fields: validated, state: state.map(Into::into) })
}
