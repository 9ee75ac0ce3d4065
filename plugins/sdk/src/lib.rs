//! Datasets, losses and metrics for pstrain, as WebAssembly plug-ins written in Rust.
//!
//! A plug-in is a crate of type `cdylib` that implements one of four traits and exports it: [`Dataset`] with
//! [`export_dataset!`], [`Loss`] with [`export_loss!`], [`RawLoss`] with [`export_raw_loss!`], [`Metric`] with
//! [`export_metric!`].
//! `pstrain plugin new` writes such a crate, `pstrain plugin build` compiles it, `pstrain plugin check` tries it.
//!
//! A plug-in's keys in the job file arrive as its `Config`, read by serde. An error's text is what the person who
//! wrote the job reads: name the file or key, what was found and what was wanted; a last line `hint: ..` tells what
//! to do. Errors are [`anyhow`]'s. A panic is reported with its message and place.
//!
//! # A dataset
//!
//! ```
//! use pstrain_plugin::prelude::*;
//!
//! /// Numbers of a text file, one on a line, and whether each is even.
//! struct Numbers {
//!     numbers: Vec<f32>,
//!     even: Vec<i64>,
//! }
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     file: String,
//! }
//!
//! impl Dataset for Numbers {
//!     type Config = Config;
//!
//!     fn open(config: Config) -> Result<Self> {
//!         let text = data::read_to_string(&config.file)?;
//!         let mut numbers = Vec::new();
//!         for (n, line) in text.lines().enumerate() {
//!             let number: i32 = line.parse().with_context(|| format!("line {} is `{line}`", n + 1))?;
//!             numbers.push(number);
//!         }
//!         let even = numbers.iter().map(|n| i64::from(n % 2 == 0)).collect();
//!         Ok(Numbers { numbers: numbers.iter().map(|&n| n as f32).collect(), even })
//!     }
//!
//!     fn len(&self) -> u64 {
//!         self.numbers.len() as u64
//!     }
//!
//!     fn fields(&self) -> Vec<Field> {
//!         vec![Field::new("number", DType::Float32, [1]), Field::new("even", DType::Int64, [])]
//!     }
//!
//!     fn batch(&mut self, batch: &mut Batch) -> Result<()> {
//!         batch.gather(0, &self.numbers)?;
//!         batch.gather(1, &self.even)
//!     }
//! }
//!
//! export_dataset!(Numbers);
//! # fn main() {}
//! ```
//!
//! # A loss
//!
//! ```
//! use pstrain_plugin::prelude::*;
//!
//! /// The mean of log(cosh(output - target)).
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct LogCosh {}
//!
//! impl Loss for LogCosh {
//!     type Config = Self;
//!
//!     fn open(config: Self) -> Result<Self> {
//!         Ok(config)
//!     }
//!
//!     fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
//!         let error = only("output", outputs)? - only("target", targets)?;
//!         // log(cosh(x)) = x + softplus(-2 x) - log(2), which does not overflow
//!         Ok((&error + (-2.0 * &error).softplus() - 2f64.ln()).mean_all())
//!     }
//! }
//!
//! export_loss!(LogCosh);
//! # fn main() {}
//! ```
//!
//! # A raw loss
//!
//! ```
//! use pstrain_plugin::prelude::*;
//!
//! /// The mean of squares, with the gradient by hand.
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Squares {}
//!
//! impl RawLoss for Squares {
//!     type Config = Self;
//!
//!     fn open(config: Self) -> Result<Self> {
//!         Ok(config)
//!     }
//!
//!     fn compute(&mut self, outputs: &[Buffer], targets: &[Buffer], _: Want) -> Result<Value> {
//!         let (output, target) = (outputs[0].values::<f32>()?, targets[0].values::<f32>()?);
//!         ensure!(output.len() == target.len(), "{} outputs for {} targets", output.len(), target.len());
//!         let errors = output.iter().zip(target.iter()).map(|(o, t)| o - t);
//!         let n = output.len() as f32;
//!         let loss: f32 = errors.clone().map(|e| e * e).sum::<f32>() / n;
//!         let gradient: Vec<f32> = errors.map(|e| 2.0 * e / n).collect();
//!         Ok(Value::new(loss.into()).gradient(&gradient))
//!     }
//! }
//!
//! export_raw_loss!(Squares);
//! # fn main() {}
//! ```
//!
//! # A metric
//!
//! ```
//! use pstrain_plugin::prelude::*;
//!
//! /// The part of the outputs that are above 0 where the target is, and nowhere else.
//! #[derive(Default)]
//! struct Signs {
//!     hits: u64,
//!     count: u64,
//! }
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {}
//!
//! impl Metric for Signs {
//!     type Config = Config;
//!
//!     fn open(_: Config) -> Result<Self> {
//!         Ok(Signs::default())
//!     }
//!
//!     fn update(&mut self, outputs: &[Buffer], targets: &[Buffer]) -> Result<()> {
//!         let (output, target) = (outputs[0].to_f64()?, targets[0].to_f64()?);
//!         ensure!(output.len() == target.len(), "{} outputs for {} targets", output.len(), target.len());
//!         self.hits += output.iter().zip(&target).filter(|(o, t)| (**o > 0.0) == (**t > 0.0)).count() as u64;
//!         self.count += output.len() as u64;
//!         Ok(())
//!     }
//!
//!     fn state(&self) -> Result<Vec<u8>> {
//!         Ok(pack(&[self.hits as i64, self.count as i64]))
//!     }
//!
//!     fn merge(&mut self, state: &[u8]) -> Result<()> {
//!         let [hits, count] = unpack::<i64, 2>(state)?;
//!         ensure!(0 <= hits && hits <= count, "{hits} hits of {count} came");
//!         self.hits += hits as u64;
//!         self.count += count as u64;
//!         Ok(())
//!     }
//!
//!     fn value(&self) -> Result<Figure> {
//!         Ok((self.hits as f64 / self.count as f64).into())
//!     }
//! }
//!
//! export_metric!(Signs);
//! # fn main() {}
//! ```
//!
//! # Tests
//!
//! `cargo test` runs natively: [`testing`] opens a dataset and asks it for batches as the host does.

#![deny(clippy::unwrap_used)]

// The exports that the macros write name this crate, also when its own tests use them.
extern crate self as pstrain_plugin;

#[doc(hidden)]
pub mod bindings;
mod buffer;
mod config;
pub mod data;
pub mod dataset;
mod element;
pub mod log;
pub mod loss;
pub mod metric;
mod panic;
mod random;
pub mod raw_loss;
#[doc(hidden)]
pub mod slot;
mod tensor;
pub mod testing;

pub use ::anyhow::{Context, Error, Result, anyhow, bail, ensure};
pub use buffer::Buffer;
pub use dataset::{Batch, Dataset, Field, Purpose};
pub use element::{DType, Element};
pub use loss::{Loss, Metrics, Weight, only};
pub use metric::{Figure, Metric, pack, unpack, unpack_all};
pub use random::Random;
pub use raw_loss::{RawLoss, Value, Want};
pub use serde;
pub use tensor::Tensor;

/// All that a plug-in usually needs: `use pstrain_plugin::prelude::*;`
pub mod prelude {
    pub use crate::{
        Batch, Buffer, Context, DType, Dataset, Element, Error, Field, Figure, Loss, Metric, Metrics,
        Purpose, Random, RawLoss, Result, Tensor, Value, Want, Weight, anyhow, bail, data, ensure,
        export_dataset, export_loss, export_metric, export_raw_loss, log, only, pack, unpack, unpack_all,
    };
    pub use serde::Deserialize;
}
