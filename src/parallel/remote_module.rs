//! A module that lives on another rank, as its users hold it.

use std::sync::Arc;

use anyhow::Result;
use tch::Tensor;

use super::PATIENCE;
use super::server::exactly;
use crate::autograd::{Autograd, AutogradPending, Context};
use crate::rpc::{RRef, Value};
use crate::topology::Rank;

/// A handle on a module hosted by some rank. Cheap to clone.
#[derive(Clone)]
pub struct RemoteModule {
    autograd: Arc<Autograd>,
    rref: RRef,
}

/// The output of a forward that other ranks compute.
#[must_use = "a forward that nobody waits for fails unseen"]
pub struct Forwarding(AutogradPending<Vec<Value>>);

impl Forwarding {
    /// # Errors
    /// What the owner of one of the modules says, or a call.
    pub fn wait(self) -> Result<Tensor> {
        Ok(one(self.0.wait()?)?.into_tensor()?)
    }
}

/// How a forward runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Dropout and batch statistics as in training.
    pub train: bool,
    /// Decides the dropout masks: the same seed draws the same ones.
    pub dropout_seed: u64,
    /// How many of this rank's steps the owner of the module applies first.
    pub after: u64,
}

impl Forward {
    /// Dropout off.
    pub const PREDICT: Forward = Forward { train: false, dropout_seed: 0, after: 0 };
}

impl RemoteModule {
    /// The module behind a reference that another rank has passed on.
    pub fn new(autograd: &Arc<Autograd>, rref: RRef) -> RemoteModule {
        RemoteModule { autograd: autograd.clone(), rref }
    }

    /// The one instance of module `name` that `owner` hosts; made there by the first who asks.
    ///
    /// # Errors
    /// When `owner` does not host it or cannot build it.
    pub fn get(autograd: &Arc<Autograd>, owner: Rank, name: &str) -> Result<RemoteModule> {
        let answer = autograd.call(owner, "module.get", vec![name.into()], None).wait()?;
        let rref = one(answer)?.into_rref()?;
        Ok(RemoteModule::new(autograd, rref))
    }

    /// To pass on in a call.
    pub fn rref(&self) -> &RRef {
        &self.rref
    }

    pub fn owner(&self) -> Rank {
        self.rref.owner()
    }

    /// The module's output, on the CPU; the backward of `context` reaches the module's parameters through it.
    ///
    /// # Errors
    /// What the module's owner says, or the call.
    pub fn forward(&self, context: &Context, inputs: Vec<Tensor>, forward: Forward) -> Result<Tensor> {
        self.call_forward(Some(context), inputs.into_iter().map(Value::from), forward).wait()
    }

    /// The output of modules that follow one another. Each owner gets its input from the one before, so that what passes
    /// between two of them does not pass through this rank. Without a context nothing is recorded.
    ///
    /// # Panics
    /// When there is no module.
    pub fn forward_through(
        modules: &[(&RemoteModule, Forward)],
        context: Option<&Context>,
        input: Tensor,
    ) -> Forwarding {
        let ((last, forward), before) = modules.split_last().expect("a forward has a module to go through");
        // A call from one to the next carries all that came before, so it names the input instead of bringing it.
        let input = match before {
            [] => input.into(),
            [..] => last.autograd.lend(input).into(),
        };
        let source = before
            .iter()
            .fold(input, |source, (module, forward)| Value::from(module.forward_values([source], *forward)));
        last.call_forward(context, [source], *forward)
    }

    /// The module's output with dropout off, nothing recorded.
    ///
    /// # Errors
    /// What the module's owner says, or the call.
    pub fn predict(&self, inputs: Vec<Tensor>) -> Result<Tensor> {
        self.call_forward(None, inputs.into_iter().map(Value::from), Forward::PREDICT).wait()
    }

    /// A reference to each parameter, for a [`DistributedOptimizer`](super::DistributedOptimizer).
    ///
    /// # Errors
    /// When the call fails.
    pub fn parameters(&self) -> Result<Vec<RRef>> {
        let answer = self
            .autograd
            .call(self.owner(), "module.parameters", vec![self.rref.clone().into()], None)
            .wait()?;
        Ok(answer.into_iter().map(Value::into_rref).collect::<Result<_, _>>()?)
    }

    /// Parameters and buffers under PyTorch's names, as they are now. Each comes in a message of its own.
    ///
    /// # Errors
    /// When a call fails.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let call = |method, values| self.autograd.call(self.owner(), method, values, None).wait();
        let [state, names] = exactly(call("module.state", vec![self.rref.clone().into()])?)?;
        let state = state.into_rref()?;
        let tensor = |(index, name): (i64, Value)| {
            let tensor = one(call("module.tensor", vec![state.clone().into(), index.into()])?)?;
            Ok((name.into_text()?, tensor.into_tensor()?))
        };
        (0..).zip(names.into_list()?).map(tensor).collect()
    }

    /// Tells the owner that this rank takes no more steps.
    ///
    /// # Errors
    /// When the call fails, or the round that it completes cannot be applied.
    pub fn leave(&self) -> Result<()> {
        self.autograd.call(self.owner(), "module.leave", vec![self.rref.clone().into()], None).wait()?;
        Ok(())
    }

    fn call_forward(
        &self,
        context: Option<&Context>,
        inputs: impl IntoIterator<Item = Value>,
        forward: Forward,
    ) -> Forwarding {
        let values = self.forward_values(inputs, forward);
        Forwarding(match context {
            Some(_) => self.autograd.call_within(self.owner(), "module.forward", values, context, PATIENCE),
            None => self.autograd.call(self.owner(), "module.forward", values, None),
        })
    }

    fn forward_values(&self, inputs: impl IntoIterator<Item = Value>, forward: Forward) -> Vec<Value> {
        let Forward { train, dropout_seed, after } = forward;
        let how = [Value::Bool(train), Value::Int(dropout_seed as i64), Value::Int(after as i64)];
        let head = [self.rref.clone().into()].into_iter().chain(how);
        head.chain(inputs).collect()
    }
}

pub(super) fn one(values: Vec<Value>) -> Result<Value> {
    let [value] = exactly(values)?;
    Ok(value)
}
