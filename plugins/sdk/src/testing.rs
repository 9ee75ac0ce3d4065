//! For `cargo test` on the author's machine, without WebAssembly and without the host: paths are relative to the
//! crate's folder there. A loss needs the host's tensors; `pstrain plugin check` tries it.

use crate::dataset::{Batch, Dataset, Purpose};
use crate::element::{DType, Element};
use crate::{Result, config};
use anyhow::{Context, ensure};
use std::cell::RefCell;

/// Opens a dataset from its configuration in JSON, as the host does.
///
/// # Errors
/// As [`Dataset::open`], and for a configuration that does not fit.
pub fn open<D: Dataset>(json: &str) -> Result<D> {
    D::open(config::parse(json)?)
}

/// Opens a dataset with the [`Dataset::state`] of another, as the host does for the samples to test on.
///
/// # Errors
/// As [`Dataset::open_with`], and for a configuration that does not fit.
pub fn open_with<D: Dataset>(json: &str, state: &[u8]) -> Result<D> {
    D::open_with(config::parse(json)?, state)
}

/// One field of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Emitted {
    pub dtype: DType,
    /// The batch's size first.
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Emitted {
    /// The elements in row-major order.
    ///
    /// # Panics
    /// If `T` is not what the field is made of.
    pub fn values<T: Element>(&self) -> Vec<T> {
        assert!(T::carries(self.dtype), "the field is {}", self.dtype);
        self.bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }
}

/// Asks for a batch to evaluate as the host does, and returns its fields in order.
///
/// # Errors
/// As [`Dataset::batch`], and if the batch is not what [`Dataset::fields`] tells.
pub fn batch<D: Dataset>(dataset: &mut D, indices: &[u64]) -> Result<Vec<Emitted>> {
    batch_for(dataset, indices, Purpose { train: false, epoch: 0, seed: 0 })
}

/// Asks for a batch to train on, of the pass `epoch`, as [`batch`].
///
/// # Errors
/// As [`batch`].
pub fn training_batch<D: Dataset>(
    dataset: &mut D,
    indices: &[u64],
    seed: u64,
    epoch: u32,
) -> Result<Vec<Emitted>> {
    batch_for(dataset, indices, Purpose { train: true, epoch, seed })
}

fn batch_for<D: Dataset>(dataset: &mut D, indices: &[u64], purpose: Purpose) -> Result<Vec<Emitted>> {
    thread_local! {
        static EMITTED: RefCell<Vec<(u32, Emitted)>> = const { RefCell::new(Vec::new()) };
    }
    ensure!(indices.iter().all(|&index| index < dataset.len()), "an index is not below {}", dataset.len());
    EMITTED.with_borrow_mut(Vec::clear);
    let fields = dataset.fields();
    let mut batch = Batch::new(fields.clone(), |field, dtype, shape, bytes| {
        let emitted = Emitted { dtype, shape: shape.to_vec(), bytes: bytes.to_vec() };
        EMITTED.with_borrow_mut(|all| all.push((field, emitted)));
    });
    batch.begin(indices.to_vec(), purpose);
    dataset.batch(&mut batch)?;
    batch.finish()?;
    let mut emitted = EMITTED.take();
    emitted.sort_by_key(|(field, _)| *field);
    ensure!(emitted.len() == fields.len(), "{} of {} fields were given", emitted.len(), fields.len());
    let emitted = emitted.into_iter().map(|(_, emitted)| emitted).collect::<Vec<_>>();
    emitted.first().context("the dataset has no fields")?;
    Ok(emitted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Field;
    use serde::Deserialize;

    /// Sample i is ([i, i + 0.5], i * 10), unless told to be wrong.
    struct Counting(Wrong);

    #[derive(Clone, Copy, Deserialize, PartialEq)]
    enum Wrong {
        Nothing,
        Type,
        Twice,
        Missing,
        Length,
    }

    impl Dataset for Counting {
        type Config = Wrong;

        fn open(config: Wrong) -> Result<Self> {
            Ok(Counting(config))
        }

        fn len(&self) -> u64 {
            10
        }

        fn fields(&self) -> Vec<Field> {
            vec![Field::new("x", DType::Float32, [2]), Field::new("y", DType::Int64, [])]
        }

        fn batch(&mut self, batch: &mut Batch) -> Result<()> {
            batch.fill(0, |index, row: &mut [f32]| {
                row.copy_from_slice(&[index as f32, index as f32 + 0.5]);
                Ok(())
            })?;
            let tens: Vec<i64> = (0..10).map(|n| n * 10).collect();
            match self.0 {
                Wrong::Nothing => batch.gather(1, &tens),
                Wrong::Type => batch.gather(1, &[0f32; 10]),
                Wrong::Twice => batch.emit(0, &[0f32; 4]),
                Wrong::Missing => Ok(()),
                Wrong::Length => batch.emit(1, &tens),
            }
        }
    }

    #[test]
    fn a_batch_has_its_rows_in_the_order_asked_for() {
        let mut dataset: Counting = open("\"Nothing\"").unwrap();
        let fields = batch(&mut dataset, &[3, 0, 3]).unwrap();
        assert_eq!(fields[0].shape, [3, 2]);
        assert_eq!(fields[0].values::<f32>(), [3.0, 3.5, 0.0, 0.5, 3.0, 3.5]);
        assert_eq!(fields[1].shape, [3]);
        assert_eq!(fields[1].values::<i64>(), [30, 0, 30]);
    }

    #[test]
    fn a_wrong_batch_says_which_field_is_wrong() {
        let error = |wrong| batch(&mut Counting(wrong), &[0, 1]).unwrap_err().to_string();
        assert_eq!(error(Wrong::Type), "field `y` is int64, and was given as float32");
        assert_eq!(error(Wrong::Twice), "field `x` was given twice in one batch");
        assert_eq!(error(Wrong::Missing), "the batch ended without field `y`");
        assert_eq!(error(Wrong::Length), "field `y` has 10 elements where 2 samples of 1 are wanted");
    }

    #[test]
    fn a_table_that_is_too_short_is_an_error() {
        let mut all = Batch::new(vec![Field::new("x", DType::Uint8, [4])], |_, _, _, _| ());
        all.begin(vec![0, 2], Purpose { train: false, epoch: 0, seed: 0 });
        let error = all.gather(0, &[0u8; 11]).unwrap_err().to_string();
        assert_eq!(error, "there is no row 2 in a table of 2");
    }
}
