//! Tensors for guests: handles in the store's table, operations by libtorch, and a bound on what they allocate.
//!
//! `ops.rs` has one line or two for each operation of the WIT; what they share is here.

mod budget;
mod ops;

use c10d::torch_message;
use tch::{TchError, Tensor};
use wasmtime::component::Resource;

use super::bindings::log::{self, Level};
use super::bindings::{tensors, types};
use super::dtype::describe;
use super::error::{Refusal, tame};
use super::state::State;
pub use budget::Budget;

type Handle = Resource<Tensor>;
type Made = wasmtime::Result<Handle>;

impl types::Host for State {}
impl tensors::Host for State {}

impl log::Host for State {
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        if self.messages_left == 0 {
            return Ok(());
        }
        self.messages_left -= 1;
        let (plugin, message) = (&self.name, tame(&message));
        match level {
            Level::Debug => tracing::debug!(plugin, "{message}"),
            Level::Info => tracing::info!(plugin, "{message}"),
            Level::Warn => tracing::warn!(plugin, "{message}"),
            Level::Error => tracing::error!(plugin, "{message}"),
        }
        Ok(())
    }
}

impl State {
    fn tensor(&self, handle: &Handle) -> wasmtime::Result<&Tensor> {
        self.table.get(handle).map_err(|error| Refusal::operation(format!("a tensor's handle: {error}")))
    }

    fn keep(&mut self, tensor: Tensor) -> Made {
        Ok(self.table.push(tensor)?)
    }

    /// An operation whose result shares the operand's storage.
    fn view(&mut self, op: &str, a: Handle, f: impl FnOnce(&Tensor) -> Result<Tensor, TchError>) -> Made {
        let operand = self.tensor(&a)?;
        let result = f(operand).map_err(|error| refused(op, &[operand], &error))?;
        self.keep(result)
    }

    /// An operation whose result is not larger than its operand.
    fn one(&mut self, op: &str, a: Handle, f: impl FnOnce(&Tensor) -> Result<Tensor, TchError>) -> Made {
        let operand = self.tensor(&a)?;
        let result = f(operand).map_err(|error| refused(op, &[operand], &error))?;
        self.budget.spend(op, &result)?;
        self.keep(result)
    }

    /// An operation of two tensors that broadcast against one another.
    fn two(
        &mut self,
        op: &str,
        a: Handle,
        b: Handle,
        f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor, TchError>,
    ) -> Made {
        let (left, right) = (self.tensor(&a)?, self.tensor(&b)?);
        self.budget.admit_broadcast(op, left, right)?;
        let result = f(left, right).map_err(|error| refused(op, &[left, right], &error))?;
        self.budget.spend(op, &result)?;
        self.keep(result)
    }
}

/// libtorch's message in short, with what the operation was given.
fn refused(op: &str, operands: &[&Tensor], error: &TchError) -> wasmtime::Error {
    refused_with(op, operands, error, None)
}

fn refused_with(op: &str, operands: &[&Tensor], error: &TchError, hint: Option<String>) -> wasmtime::Error {
    let given: Vec<String> = operands.iter().map(|t| describe(t.kind(), &t.size())).collect();
    Refusal::hinted(format!("{op}({}): {}", given.join(", "), torch_message(error)), hint)
}

/// For class numbers of which `scores` has none along dimension 1.
fn beyond_classes(scores: &Tensor, classes: &Tensor) -> Option<String> {
    let count = *scores.size().get(1)?;
    let (least, most) = (classes.f_min().ok()?, classes.f_max().ok()?);
    let (least, most) = (least.f_int64_value(&[]).ok()?, most.f_int64_value(&[]).ok()?);
    if least >= 0 && most < count {
        return None;
    }
    let scores = format!("and the model gives scores of {count} classes, 0 to {}", count - 1);
    Some(match least {
        0.. => format!(
            "the targets go up to {most}, {scores}: give its last layer out_features = {}, or name the field of the classes in \
             `data.target`",
            most + 1
        ),
        _ => format!(
            "the targets go down to {least}, {scores}: class numbers begin at 0, and none is left out; is `data.target` the \
             field of the classes?"
        ),
    })
}
