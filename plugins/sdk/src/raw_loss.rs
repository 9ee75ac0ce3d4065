//! Losses with mathematics of their own: numbers in, value and gradient out. For small outputs.

use crate::buffer::{self, Buffer};
use crate::element::{DType, Element};
use crate::loss::Metrics;
use crate::slot::Slot;
use crate::{Result, bindings};
use anyhow::ensure;
use serde::de::DeserializeOwned;

/// A loss that works out its gradient itself. See the [crate's example](crate#a-raw-loss).
pub trait RawLoss: Sized + 'static {
    /// The plug-in's keys in the job file, usually a struct with `#[serde(deny_unknown_fields)]`.
    type Config: DeserializeOwned;

    /// Called once for each instance.
    ///
    /// # Errors
    /// What the person who wrote the job should read.
    fn open(config: Self::Config) -> Result<Self>;

    /// The loss of a batch, the mean over its samples, and, where `want.gradient`, its gradient with respect to each output.
    ///
    /// Floating-point outputs come as float32, or as float64 if they are that; targets as the dataset gave them.
    /// `pstrain plugin check` compares the gradient with finite differences.
    ///
    /// # Errors
    /// What the person who wrote the job should read, such as shapes that do not go together.
    fn compute(&mut self, outputs: &[Buffer], targets: &[Buffer], want: Want) -> Result<Value>;
}

/// What the host will use of the answer.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub gradient: bool,
    pub metrics: bool,
}

/// What [`RawLoss::compute`] returns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Value {
    loss: f64,
    gradients: Vec<Gradient>,
    metrics: Metrics,
}

#[derive(Clone, Debug, PartialEq)]
struct Gradient {
    /// `None` for an output that has no gradient.
    dtype: Option<DType>,
    bytes: Vec<u8>,
}

impl Value {
    pub fn new(loss: f64) -> Self {
        Value { loss, ..Value::default() }
    }

    /// The gradient for the next output: as many elements, of the same type (f32 or f64).
    #[must_use]
    pub fn gradient<T: Element>(mut self, elements: &[T]) -> Self {
        self.gradients
            .push(Gradient { dtype: Some(T::DTYPE), bytes: bytemuck::cast_slice(elements).to_vec() });
        self
    }

    /// The gradient for the next output, `output`, in whichever of f32 and f64 that is.
    #[must_use]
    pub fn gradient_like(self, output: &Buffer, elements: &[f64]) -> Self {
        if output.dtype() == DType::Float64 {
            return self.gradient(elements);
        }
        let elements: Vec<f32> = elements.iter().map(|&element| element as f32).collect();
        self.gradient(&elements)
    }

    /// The next output is not floating-point and has no gradient.
    #[must_use]
    pub fn no_gradient(mut self) -> Self {
        self.gradients.push(Gradient { dtype: None, bytes: Vec::new() });
        self
    }

    /// A mean over the batch.
    #[must_use]
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push((name.into(), value));
        self
    }

    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// The gradient for output `n` as f32, for the author's own tests.
    pub fn gradient_of(&self, n: usize) -> Vec<f32> {
        let bytes = self.gradients.get(n).map_or(&[][..], |gradient| &gradient.bytes);
        bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// The host checks this too; here the message can name the mistake.
    fn check(&self, outputs: &[Buffer], want: Want) -> Result<()> {
        if !want.gradient {
            return Ok(());
        }
        let (given, wanted) = (self.gradients.len(), outputs.len());
        ensure!(given == wanted, "the loss gave {given} gradients for {wanted} outputs");
        for (n, (gradient, output)) in self.gradients.iter().zip(outputs).enumerate() {
            let Some(dtype) = gradient.dtype else {
                ensure!(!output.dtype().is_float(), "the loss gave no gradient for output {n}");
                continue;
            };
            let size = output.dtype().size();
            ensure!(dtype == output.dtype(), "gradient {n} is {dtype}, and its output is {}", output.dtype());
            ensure!(
                gradient.bytes.len() == output.bytes().len(),
                "gradient {n} has {} elements, and its output has {}",
                gradient.bytes.len() / size,
                output.bytes().len() / size
            );
        }
        Ok(())
    }
}

#[doc(hidden)]
pub fn open<L: RawLoss>(slot: &Slot<L>, json: &str) -> Result<(), String> {
    slot.open(json, |config| Ok((L::open(config)?, ())))
}

#[doc(hidden)]
pub fn compute<L: RawLoss>(
    slot: &Slot<L>,
    outputs: Vec<buffer::Given>,
    targets: Vec<buffer::Given>,
    want: Want,
) -> Result<Computed, String> {
    let (outputs, targets) = (buffer::given(outputs), buffer::given(targets));
    slot.call("compute", |loss| {
        let value = loss.compute(&outputs, &targets, want)?;
        value.check(&outputs, want)?;
        let gradients = value.gradients.into_iter().map(|gradient| gradient.bytes).collect();
        Ok(Computed { loss: value.loss, gradients, metrics: value.metrics })
    })
}

type Computed = bindings::raw_loss::exports::pstrain::plugin::raw_loss::Computed;

/// Makes a plug-in of a [`RawLoss`]. Once in a crate, at its root.
#[macro_export]
macro_rules! export_raw_loss {
    ($loss:ty) => {
        const _: () = {
            use $crate::bindings::raw_loss::exports::pstrain::plugin::raw_loss as world;
            ::std::thread_local! {
                static SLOT: $crate::slot::Slot<$loss> = const { $crate::slot::Slot::new() };
            }
            struct Exported;
            impl world::Guest for Exported {
                fn open(config: ::std::string::String) -> ::std::result::Result<(), ::std::string::String> {
                    SLOT.with(|slot| $crate::raw_loss::open(slot, &config))
                }
                fn compute(
                    outputs: ::std::vec::Vec<world::Buffer>,
                    targets: ::std::vec::Vec<world::Buffer>,
                    want_gradient: bool,
                    want_metrics: bool,
                ) -> ::std::result::Result<world::Computed, ::std::string::String> {
                    let want = $crate::raw_loss::Want { gradient: want_gradient, metrics: want_metrics };
                    SLOT.with(|slot| $crate::raw_loss::compute(slot, outputs, targets, want))
                }
            }
            $crate::bindings::raw_loss::export_raw_loss_world!(Exported with_types_in $crate::bindings::raw_loss);
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Want = Want { gradient: true, metrics: true };

    #[test]
    fn a_gradient_that_does_not_fit_its_output_is_named() {
        let outputs = [Buffer::new(&[1f32, 2.0], [2]), Buffer::new(&[1i64], [1])];
        let error = |value: Value| value.check(&outputs, BOTH).unwrap_err().to_string();
        assert_eq!(error(Value::new(0.0)), "the loss gave 0 gradients for 2 outputs");
        let short = Value::new(0.0).gradient(&[1f32]).no_gradient();
        assert_eq!(error(short), "gradient 0 has 1 elements, and its output has 2");
        let double = Value::new(0.0).gradient(&[1f64, 2.0]).no_gradient();
        assert_eq!(error(double), "gradient 0 is float64, and its output is float32");
        assert_eq!(
            error(Value::new(0.0).no_gradient().no_gradient()),
            "the loss gave no gradient for output 0"
        );
        assert!(Value::new(0.0).gradient(&[1f32, 2.0]).no_gradient().check(&outputs, BOTH).is_ok());
        let like = Value::new(0.0).gradient_like(&outputs[0], &[1.0, 2.0]).no_gradient();
        assert!(like.check(&outputs, BOTH).is_ok());
    }
}
