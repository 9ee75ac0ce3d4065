//! Losses made of tensor operations: the host differentiates them.

use crate::slot::Slot;
use crate::tensor::Tensor;
use crate::{Result, bail, bindings};
use serde::de::DeserializeOwned;

mod classes;
mod parts;

pub use classes::{Counted, reduced};
pub use parts::{
    Reduction, Weights, accuracy, check_classes, fraction, like_output, no_targets, only, same_shape,
};

/// Names and values, each a mean over the batch: the host averages them over batches.
pub type Metrics = Vec<(String, f64)>;

/// A loss over the host's tensors. See the [crate's example](crate#a-loss).
pub trait Loss: Sized + 'static {
    /// The plug-in's keys in the job file, usually a struct with `#[serde(deny_unknown_fields)]`.
    type Config: DeserializeOwned;

    /// Called once for each instance.
    ///
    /// # Errors
    /// What the person who wrote the job should read.
    fn open(config: Self::Config) -> Result<Self>;

    /// The loss of a batch, the mean over its samples: a floating-point scalar made from `outputs`. The batch is dimension
    /// 0 of all tensors.
    ///
    /// # Errors
    /// What the person who wrote the job should read, such as shapes that do not go together.
    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor>;

    /// What else to report. Called after `compute` with the same tensors, on steps that are logged only.
    ///
    /// # Errors
    /// As `compute`.
    fn metrics(&mut self, _outputs: &[Tensor], _targets: &[Tensor]) -> Result<Metrics> {
        Ok(Metrics::new())
    }

    /// Whether the mean is not over samples that all count the same. If so, the host asks [`weigh`](Loss::weigh) before
    /// each batch.
    fn weighs(&self) -> bool {
        false
    }

    /// What the mean of a batch with these targets is divided by.
    ///
    /// # Errors
    /// As `compute`.
    fn weigh(&mut self, _targets: &[Tensor]) -> Result<Weight> {
        bail!("this loss does not say what a batch weighs")
    }
}

/// How much the mean of a batch counts beside the means of others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight {
    /// The sum of what the targets weigh. 0 where none counts: the loss is 0 then, and so is its gradient.
    pub loss: f64,
    /// How many numbers the metrics are means over.
    pub metrics: f64,
}

#[doc(hidden)]
pub fn open<L: Loss>(slot: &Slot<L>, json: &str) -> Result<(), String> {
    slot.open(json, |config| Ok((L::open(config)?, ())))
}

#[doc(hidden)]
pub fn compute<L: Loss>(
    slot: &Slot<L>,
    outputs: Vec<Handle>,
    targets: Vec<Handle>,
    want_metrics: bool,
) -> Result<Computed, String> {
    let outputs: Vec<Tensor> = outputs.into_iter().map(Tensor).collect();
    let targets: Vec<Tensor> = targets.into_iter().map(Tensor).collect();
    slot.call("compute", |loss| {
        let value = loss.compute(&outputs, &targets)?;
        let metrics = if want_metrics { loss.metrics(&outputs, &targets)? } else { Metrics::new() };
        Ok(Computed { loss: value.0, metrics })
    })
}

#[doc(hidden)]
pub fn weighs<L: Loss>(slot: &Slot<L>) -> bool {
    slot.call("weighs", |loss| Ok(loss.weighs())).unwrap_or(false)
}

#[doc(hidden)]
pub fn weigh<L: Loss>(slot: &Slot<L>, targets: Vec<Handle>) -> Result<Weighed, String> {
    let targets: Vec<Tensor> = targets.into_iter().map(Tensor).collect();
    slot.call("weigh", |loss| {
        let Weight { loss, metrics } = loss.weigh(&targets)?;
        Ok(Weighed { loss, metrics })
    })
}

type Handle = bindings::loss::pstrain::plugin::tensors::Tensor;
type Computed = bindings::loss::exports::pstrain::plugin::loss::Computed;
type Weighed = bindings::loss::exports::pstrain::plugin::loss_weight::Weight;

/// Makes a plug-in of a [`Loss`]. Once in a crate, at its root.
#[macro_export]
macro_rules! export_loss {
    ($loss:ty) => {
        const _: () = {
            ::std::thread_local! {
                static SLOT: $crate::slot::Slot<$loss> = const { $crate::slot::Slot::new() };
            }
            struct Exported;
            impl $crate::bindings::loss::exports::pstrain::plugin::loss::Guest for Exported {
                fn open(config: ::std::string::String) -> ::std::result::Result<(), ::std::string::String> {
                    SLOT.with(|slot| $crate::loss::open(slot, &config))
                }
                fn compute(
                    outputs: ::std::vec::Vec<$crate::bindings::loss::pstrain::plugin::tensors::Tensor>,
                    targets: ::std::vec::Vec<$crate::bindings::loss::pstrain::plugin::tensors::Tensor>,
                    want_metrics: bool,
                ) -> ::std::result::Result<
                    $crate::bindings::loss::exports::pstrain::plugin::loss::Computed,
                    ::std::string::String,
                > {
                    SLOT.with(|slot| $crate::loss::compute(slot, outputs, targets, want_metrics))
                }
            }
            impl $crate::bindings::loss::exports::pstrain::plugin::loss_weight::Guest for Exported {
                fn weighs() -> bool {
                    SLOT.with(|slot| $crate::loss::weighs(slot))
                }
                fn weigh(
                    targets: ::std::vec::Vec<$crate::bindings::loss::pstrain::plugin::tensors::Tensor>,
                ) -> ::std::result::Result<
                    $crate::bindings::loss::exports::pstrain::plugin::loss_weight::Weight,
                    ::std::string::String,
                > {
                    SLOT.with(|slot| $crate::loss::weigh(slot, targets))
                }
            }
    $crate::bindings::loss::export_loss_world!(Exported with_types_in $crate::bindings::loss);
        };
    };
}
