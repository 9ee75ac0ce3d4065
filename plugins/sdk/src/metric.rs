//! Figures over a whole data set: what validation tells beside the loss.

use crate::buffer::{self, Buffer};
use crate::element::Element;
use crate::slot::Slot;
use crate::{Result, bindings};
use anyhow::{anyhow, ensure};
use serde::de::DeserializeOwned;

/// A figure over all samples, however they come in batches and to trainers. See the [crate's example](crate#a-metric).
///
/// Each trainer's instance counts that trainer's batches; the first trainer's merges what the others have counted, and tells
/// the value. `pstrain plugin check` compares the value of all samples at once with that of parts merged.
pub trait Metric: Sized + 'static {
    /// The metric's `params` in the job file, usually a struct with `#[serde(deny_unknown_fields)]`.
    type Config: DeserializeOwned;

    /// Called once for each instance, which has counted nothing yet.
    ///
    /// # Errors
    /// What the person who wrote the job should read.
    fn open(config: Self::Config) -> Result<Self>;

    /// Counts a batch: the outputs and targets that the loss takes, the batch being dimension 0 of all of them.
    ///
    /// Floating-point outputs come as float32, or as float64 if they are that; targets as the dataset gave them.
    ///
    /// # Errors
    /// What the person who wrote the job should read, such as shapes that do not go together. It ends the job.
    fn update(&mut self, outputs: &[Buffer], targets: &[Buffer]) -> Result<()>;

    /// What has been counted so far, at most 64 MiB: [`pack`] makes it of numbers.
    ///
    /// # Errors
    /// As `update`.
    fn state(&self) -> Result<Vec<u8>>;

    /// Counts what another instance has counted, by its `state`, which came from another machine: [`unpack`] looks at it.
    ///
    /// # Errors
    /// It is no such state.
    fn merge(&mut self, state: &[u8]) -> Result<()>;

    /// The figure of all that has been counted; NaN where there is none.
    ///
    /// # Errors
    /// As `update`.
    fn value(&self) -> Result<Figure>;
}

/// What a metric tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// In records NaN and infinity are null.
    Number(f64),
    /// At most 64, each with a name of letters, digits, `_` and `-`: `p90` of a metric that the job calls `error` is
    /// `error.p90` in records.
    Several(Vec<(String, f64)>),
}

impl Figure {
    pub fn several<N: Into<String>>(figures: impl IntoIterator<Item = (N, f64)>) -> Figure {
        Figure::Several(figures.into_iter().map(|(name, figure)| (name.into(), figure)).collect())
    }
}

impl From<f64> for Figure {
    fn from(number: f64) -> Figure {
        Figure::Number(number)
    }
}

/// A state of these numbers.
pub fn pack<T: Element>(numbers: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

/// The numbers of a state that [`pack`] has made of so many.
///
/// # Errors
/// It has more or fewer bytes.
pub fn unpack<T: Element, const N: usize>(state: &[u8]) -> Result<[T; N]> {
    let numbers = unpack_all(state)?;
    let found = numbers.len();
    numbers.try_into().map_err(|_| anyhow!("the state has {found} numbers, and {N} are wanted"))
}

/// The numbers of a state that [`pack`] has made of any number of them.
///
/// # Errors
/// Its bytes are no whole number of them.
pub fn unpack_all<T: Element>(state: &[u8]) -> Result<Vec<T>> {
    let size = size_of::<T>();
    ensure!(
        state.len().is_multiple_of(size),
        "the state has {} bytes, and numbers of {size} bytes are wanted",
        state.len()
    );
    Ok(state.chunks_exact(size).map(bytemuck::pod_read_unaligned).collect())
}

#[doc(hidden)]
pub fn open<M: Metric>(slot: &Slot<M>, json: &str) -> Result<(), String> {
    slot.open(json, |config| Ok((M::open(config)?, ())))
}

#[doc(hidden)]
pub fn update<M: Metric>(
    slot: &Slot<M>,
    outputs: Vec<buffer::Given>,
    targets: Vec<buffer::Given>,
) -> Result<(), String> {
    let (outputs, targets) = (buffer::given(outputs), buffer::given(targets));
    slot.call("update", |metric| metric.update(&outputs, &targets))
}

#[doc(hidden)]
pub fn state<M: Metric>(slot: &Slot<M>) -> Result<Vec<u8>, String> {
    slot.call("state", |metric| metric.state())
}

#[doc(hidden)]
pub fn merge<M: Metric>(slot: &Slot<M>, state: &[u8]) -> Result<(), String> {
    slot.call("merge", |metric| metric.merge(state))
}

#[doc(hidden)]
pub fn value<M: Metric>(slot: &Slot<M>) -> Result<Told, String> {
    slot.call("value", |metric| {
        Ok(match metric.value()? {
            Figure::Number(number) => Told::Number(number),
            Figure::Several(figures) => Told::Several(figures),
        })
    })
}

type Told = bindings::metric::exports::pstrain::plugin::metric::Figure;

/// Makes a plug-in of a [`Metric`]. Once in a crate, at its root.
#[macro_export]
macro_rules! export_metric {
    ($metric:ty) => {
        const _: () = {
            use $crate::bindings::metric::exports::pstrain::plugin::metric as world;
            ::std::thread_local! {
                static SLOT: $crate::slot::Slot<$metric> = const { $crate::slot::Slot::new() };
            }
            struct Exported;
            impl world::Guest for Exported {
                fn open(config: ::std::string::String) -> ::std::result::Result<(), ::std::string::String> {
                    SLOT.with(|slot| $crate::metric::open(slot, &config))
                }
                fn update(
                    outputs: ::std::vec::Vec<world::Buffer>,
                    targets: ::std::vec::Vec<world::Buffer>,
                ) -> ::std::result::Result<(), ::std::string::String> {
                    SLOT.with(|slot| $crate::metric::update(slot, outputs, targets))
                }
                fn state() -> ::std::result::Result<::std::vec::Vec<u8>, ::std::string::String> {
                    SLOT.with($crate::metric::state)
                }
                fn merge(state: ::std::vec::Vec<u8>) -> ::std::result::Result<(), ::std::string::String> {
                    SLOT.with(|slot| $crate::metric::merge(slot, &state))
                }
                fn value() -> ::std::result::Result<world::Figure, ::std::string::String> {
                    SLOT.with($crate::metric::value)
                }
            }
    $crate::bindings::metric::export_metric_world!(Exported with_types_in $crate::bindings::metric);
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_packed_and_no_other_is() {
        let state = pack(&[1.5, f64::INFINITY]);
        assert_eq!(unpack::<f64, 2>(&state).unwrap(), [1.5, f64::INFINITY]);
        assert!(unpack_all::<f64>(&[]).unwrap().is_empty());
        let error = unpack::<f64, 3>(&state).unwrap_err().to_string();
        assert_eq!(error, "the state has 2 numbers, and 3 are wanted");
        let error = unpack_all::<i64>(&state[1..]).unwrap_err().to_string();
        assert_eq!(error, "the state has 15 bytes, and numbers of 8 bytes are wanted");
    }
}
