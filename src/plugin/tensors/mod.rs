//! Tensors for guests: handles in the store's table, operations by libtorch, and a bound on what they allocate.
//!
//! `ops.rs` has one line or two for each operation of the WIT; what they share is here. No argument of a guest may make
//! `tch` panic: `numbers.rs` says why it could, and `wild.rs` tries them all.

#[cfg(test)]
mod bounds;
mod budget;
mod cost;
mod numbers;
mod ops;
#[cfg(test)]
mod wild;

use c10d::torch_message;
use tch::{TchError, Tensor};
use wasmtime::component::{Resource, ResourceTable};

use super::bindings::log::{self, Level};
use super::bindings::{tensors, types};
use super::dtype::describe;
use super::error::Refusal;
use super::state::State;
pub use budget::Budget;
use cost::{Cost, Operand, Passes};
pub use numbers::saturated;
use numbers::sized;

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
        let level = match level {
            Level::Debug => tracing::Level::DEBUG,
            Level::Info => tracing::Level::INFO,
            Level::Warn => tracing::Level::WARN,
            Level::Error => tracing::Level::ERROR,
        };
        self.logged.log(&self.name, level, &message, &self.limits);
        Ok(())
    }
}

impl State {
    /// Counts an operation against the budget, does it and keeps its result.
    fn make<const N: usize>(
        &mut self,
        op: &str,
        operands: [&Handle; N],
        cost: impl FnOnce([&Operand; N]) -> wasmtime::Result<Cost>,
        f: impl FnOnce([&Tensor; N]) -> Result<Tensor, TchError>,
    ) -> Made {
        let mut tensors = Vec::with_capacity(N);
        for handle in operands {
            tensors.push(tensor(&self.table, handle)?);
        }
        let tensors: [&Tensor; N] = tensors.try_into().expect("one for each handle");
        let operands = tensors.map(Operand::from);
        self.budget.take(op, cost(operands.each_ref())?)?;
        let result = f(tensors).map_err(|error| refused(op, &tensors, &error))?;
        self.keep(result)
    }

    fn keep(&mut self, tensor: Tensor) -> Made {
        Ok(self.table.push(tensor)?)
    }

    /// An operation whose result shares the operand's storage.
    fn view(&mut self, op: &str, a: Handle, f: impl FnOnce(&Tensor) -> Result<Tensor, TchError>) -> Made {
        self.make(op, [&a], |[a]| Ok(cost::view(a)), |[a]| f(a))
    }

    /// An operation element by element.
    fn one(
        &mut self,
        op: &str,
        a: Handle,
        passes: Passes,
        f: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
    ) -> Made {
        self.make(op, [&a], |[a]| Ok(cost::unary(a, passes)), |[a]| f(a))
    }

    /// An operation of two tensors that broadcast against one another.
    fn two(
        &mut self,
        op: &str,
        [a, b]: [Handle; 2],
        passes: Passes,
        f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor, TchError>,
    ) -> Made {
        let cost = |[a, b]: [&Operand; 2]| Ok(cost::broadcasting(&[a, b], together(op, a, b)?, passes));
        self.make(op, [&a, &b], cost, |[a, b]| f(a, b))
    }

    /// As `two`, with a boolean result.
    fn compare(
        &mut self,
        op: &str,
        [a, b]: [Handle; 2],
        f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor, TchError>,
    ) -> Made {
        let cost = |[a, b]: [&Operand; 2]| Ok(cost::comparison(&[a, b], together(op, a, b)?));
        self.make(op, [&a, &b], cost, |[a, b]| f(a, b))
    }

    /// A reduction over `dims`, all of them if there is none.
    fn reduce(
        &mut self,
        op: &str,
        a: Handle,
        passes: Passes,
        dims: &[i64],
        keep: bool,
        f: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
    ) -> Made {
        let cost = |[a]: [&Operand; 1]| Ok(cost::reduction(a, cost::reduced(&a.shape, dims, keep), passes));
        self.make(op, [&a], cost, |[a]| f(a))
    }
}

fn tensor<'a>(table: &'a ResourceTable, handle: &Handle) -> wasmtime::Result<&'a Tensor> {
    table.get(handle).map_err(|error| Refusal::operation(format!("a tensor's handle: {error}")))
}

/// Elements of the shape that two operands broadcast to.
fn together(op: &str, a: &Operand, b: &Operand) -> wasmtime::Result<u64> {
    if a.shape == b.shape || b.shape.is_empty() {
        return Ok(a.elements);
    }
    sized(op, &cost::broadcast(&a.shape, &b.shape))
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
            "the targets go down to {least}, {scores}: class numbers begin at 0; if {least} stands for what does not count, write \
             ignore_index = {least} in loss.params"
        ),
    })
}
