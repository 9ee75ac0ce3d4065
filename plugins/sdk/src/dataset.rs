//! Datasets: a source of samples, by index.

use crate::element::{DType, Element};
use crate::random::Random;
use crate::slot::Slot;
use crate::{Result, bindings};
use anyhow::{anyhow, bail, ensure};
use serde::de::DeserializeOwned;

/// A source of samples. See the [crate's example](crate#a-dataset).
pub trait Dataset: Sized + 'static {
    /// The plug-in's keys in the job file, usually a struct with `#[serde(deny_unknown_fields)]`.
    type Config: DeserializeOwned;

    /// Called once for each instance; the host may make several, one on each of its threads.
    ///
    /// # Errors
    /// What the person who wrote the job should read: which file or key, what was found, what was wanted.
    fn open(config: Self::Config) -> Result<Self>;

    /// In place of [`Dataset::open`] where the training samples have settled a [`Dataset::state`]: for the samples to test
    /// on, and for the training samples on further threads.
    ///
    /// # Errors
    /// As [`Dataset::open`].
    fn open_with(config: Self::Config, _state: &[u8]) -> Result<Self> {
        Self::open(config)
    }

    /// What the training samples settle for all others, such as a vocabulary: the host asks the first instance of theirs,
    /// hands it to [`Dataset::open_with`], and keeps it with the run. At most 64 MiB.
    ///
    /// # Errors
    /// If it cannot be written.
    fn state(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// How many samples there are.
    fn len(&self) -> u64;

    /// Whether there are none. The host refuses an empty dataset.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a sample consists of: by custom the model's input first and the target second.
    fn fields(&self) -> Vec<Field>;

    /// Gives every field of the samples [`Batch::indices`], each once, by [`Batch::gather`], [`Batch::fill`] or
    /// [`Batch::emit`].
    ///
    /// # Errors
    /// What the person who wrote the job should read.
    fn batch(&mut self, batch: &mut Batch) -> Result<()>;
}

/// One part of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
}

impl Field {
    /// `shape` is that of one sample, without the batch; empty for a scalar. `name` is what the job's `data.input`
    /// and `data.target` call it.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<u64>>) -> Self {
        Field { name: name.into(), dtype, shape: shape.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements of one sample; `None` if their bytes do not fit in this machine's memory.
    fn elements(&self) -> Option<usize> {
        let times = |product: usize, size: u64| product.checked_mul(usize::try_from(size).ok()?);
        let bytes = self.shape.iter().copied().try_fold(self.dtype.size(), times)?;
        Some(bytes / self.dtype.size())
    }
}

/// The samples that the host asks for, and where they go.
pub struct Batch {
    indices: Vec<u64>,
    purpose: Purpose,
    fields: Vec<Field>,
    emitted: Vec<bool>,
    /// Rows are put together here. Words, so that elements of any type lie aligned in it.
    scratch: Vec<u64>,
    sink: fn(u32, DType, &[u64], &[u8]),
}

impl Batch {
    pub(crate) fn new(fields: Vec<Field>, sink: fn(u32, DType, &[u64], &[u8])) -> Self {
        let purpose = Purpose { train: false, epoch: 0, seed: 0 };
        Batch { indices: Vec::new(), purpose, fields, emitted: Vec::new(), scratch: Vec::new(), sink }
    }

    /// Which samples are wanted, in the order of their rows. They are below `len()` and may repeat.
    pub fn indices(&self) -> &[u64] {
        &self.indices
    }

    /// Whether the model learns from these samples, and in which pass.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Gives a field from a table of all samples, one row of elements after the other in the order of indices.
    ///
    /// # Errors
    /// If the field is of another type or given already, or the table ends before a wanted row.
    pub fn gather<T: Element>(&mut self, field: usize, table: &[T]) -> Result<()> {
        let row = self.row_of::<T>(field)?;
        self.fill(field, |index, into: &mut [T]| {
            let rows = table.len().checked_div(row).map_or(u64::MAX, |rows| rows as u64);
            ensure!(index < rows, "there is no row {index} in a table of {rows}");
            let start = index as usize * row;
            into.copy_from_slice(&table[start..start + row]);
            Ok(())
        })
    }

    /// Gives a field by writing each sample's row: `write(index, row)`, where `row` has as many elements as the
    /// field's shape and whatever values an earlier batch left in it.
    ///
    /// # Errors
    /// If the field is of another type or given already, and whatever `write` refuses.
    pub fn fill<T: Element>(
        &mut self,
        field: usize,
        mut write: impl FnMut(u64, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        let row = self.row_of::<T>(field)?;
        self.fill_rows(field, row * size_of::<T>(), |index, bytes| {
            write(index, bytemuck::cast_slice_mut(bytes))
        })
    }

    /// As [`Batch::fill`] for a field of any type: `write(index, bytes)`, with the elements little-endian.
    ///
    /// # Errors
    /// If the field is given already, and whatever `write` refuses.
    pub fn fill_bytes(
        &mut self,
        field: usize,
        write: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let row = self.row(field)? * self.fields[field].dtype.size();
        self.fill_rows(field, row, write)
    }

    /// Gives a field that is put together already: the elements of all samples, one row after the other.
    ///
    /// # Errors
    /// If the field is of another type or given already, or the number of elements is wrong.
    pub fn emit<T: Element>(&mut self, field: usize, elements: &[T]) -> Result<()> {
        let row = self.row_of::<T>(field)?;
        let samples = self.indices.len();
        if row.checked_mul(samples) != Some(elements.len()) {
            bail!(
                "field `{}` has {} elements where {samples} samples of {row} are wanted",
                self.fields[field].name,
                elements.len()
            );
        }
        self.send(field, bytemuck::cast_slice(elements));
        Ok(())
    }

    /// Elements of a row of this field, which was not given yet.
    fn row(&self, field: usize) -> Result<usize> {
        let Some(known) = self.fields.get(field) else {
            bail!("there is no field {field}: the dataset has {}", self.fields.len());
        };
        ensure!(!self.emitted[field], "field `{}` was given twice in one batch", known.name);
        known
            .elements()
            .ok_or_else(|| anyhow!("a sample of field `{}` is too large: {:?}", known.name, known.shape))
    }

    /// The same of a field which may be given in `T`.
    fn row_of<T: Element>(&self, field: usize) -> Result<usize> {
        let row = self.row(field)?;
        let Field { name, dtype, .. } = &self.fields[field];
        ensure!(T::carries(*dtype), "field `{name}` is {dtype}, and was given as {}", T::DTYPE);
        Ok(row)
    }

    /// Puts rows of `row` bytes together in `scratch` and gives them.
    fn fill_rows(
        &mut self,
        field: usize,
        row: usize,
        mut write: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let size = row
            .checked_mul(self.indices.len())
            .ok_or_else(|| anyhow!("a batch of {} samples is too large", self.indices.len()))?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let words = size.div_ceil(size_of::<u64>());
        if scratch.len() < words {
            scratch.resize(words, 0);
        }
        let rows: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut scratch)[..size];
        let mut numbered = self.indices.iter().enumerate();
        let written = numbered.try_for_each(|(n, &index)| write(index, &mut rows[n * row..(n + 1) * row]));
        if written.is_ok() {
            self.send(field, rows);
        }
        self.scratch = scratch;
        written
    }

    fn send(&mut self, field: usize, bytes: &[u8]) {
        let mut shape = Vec::with_capacity(self.fields[field].shape.len() + 1);
        shape.push(self.indices.len() as u64);
        shape.extend_from_slice(&self.fields[field].shape);
        (self.sink)(field as u32, self.fields[field].dtype, &shape, bytes);
        self.emitted[field] = true;
    }

    pub(crate) fn begin(&mut self, indices: Vec<u64>, purpose: Purpose) {
        self.indices = indices;
        self.purpose = purpose;
        self.emitted.clear();
        self.emitted.resize(self.fields.len(), false);
    }

    pub(crate) fn finish(&self) -> Result<()> {
        match self.emitted.iter().position(|done| !done) {
            Some(field) => bail!("the batch ended without field `{}`", self.fields[field].name),
            None => Ok(()),
        }
    }
}

#[doc(hidden)]
pub fn open<D: Dataset>(slot: &Slot<(D, Batch)>, json: &str, state: Option<&[u8]>) -> Result<Info, String> {
    slot.open(json, |config| {
        let (dataset, state) = match state {
            None => {
                let dataset = D::open(config)?;
                let state = dataset.state()?;
                (dataset, state)
            }
            Some(state) => (D::open_with(config, state)?, None),
        };
        let fields = dataset.fields();
        let told = fields.iter().map(|f| bindings::dataset::exports::pstrain::plugin::dataset::Field {
            name: f.name.clone(),
            dtype: f.dtype,
            shape: f.shape.clone(),
        });
        let info = Info { samples: dataset.len(), fields: told.collect(), state };
        Ok(((dataset, Batch::new(fields, to_host)), info))
    })
}

#[doc(hidden)]
pub fn batch<D: Dataset>(slot: &Slot<(D, Batch)>, indices: Vec<u64>, purpose: Purpose) -> Result<(), String> {
    slot.call("batch", |(dataset, batch)| {
        batch.begin(indices, purpose);
        dataset.batch(batch).and_then(|()| batch.finish())
    })
}

type Info = bindings::dataset::exports::pstrain::plugin::dataset::Info;
pub use bindings::dataset::exports::pstrain::plugin::dataset::Purpose;

impl Purpose {
    /// Random numbers for the sample `index` in this pass, from the job's seed: the same whenever they are asked for.
    pub fn random(self, index: u64) -> Random {
        Random::new(self.seed, self.epoch, index)
    }
}

fn to_host(field: u32, dtype: DType, shape: &[u64], bytes: &[u8]) {
    bindings::dataset::pstrain::plugin::output::emit(field, dtype, shape, bytes);
}

/// Makes a plug-in of a [`Dataset`]. Once in a crate, at its root.
#[macro_export]
macro_rules! export_dataset {
    ($dataset:ty) => {
        const _: () = {
            ::std::thread_local! {
                static SLOT: $crate::slot::Slot<($dataset, $crate::dataset::Batch)> =
                    const { $crate::slot::Slot::new() };
            }
            struct Exported;
            impl $crate::bindings::dataset::exports::pstrain::plugin::dataset::Guest for Exported {
                fn open(
                    config: ::std::string::String,
                    state: ::std::option::Option<::std::vec::Vec<u8>>,
                ) -> ::std::result::Result<
                    $crate::bindings::dataset::exports::pstrain::plugin::dataset::Info,
                    ::std::string::String,
                > {
                    SLOT.with(|slot| $crate::dataset::open(slot, &config, state.as_deref()))
                }
                fn batch(
                    indices: ::std::vec::Vec<u64>,
                    purpose: $crate::bindings::dataset::exports::pstrain::plugin::dataset::Purpose,
                ) -> ::std::result::Result<(), ::std::string::String> {
                    SLOT.with(|slot| $crate::dataset::batch(slot, indices, purpose))
                }
            }
            $crate::bindings::dataset::export_dataset_world!(Exported with_types_in $crate::bindings::dataset);
        };
    };
}
