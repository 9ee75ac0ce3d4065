//! A module that lives on another rank, as its users hold it.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::PATIENCE;
use crate::autograd::{Autograd, Context};
use crate::rpc::{RRef, Value};
use crate::topology::Rank;

/// A handle on a module hosted by some rank. Cheap to clone.
#[derive(Clone)]
pub struct RemoteModule {
    autograd: Arc<Autograd>,
    rref: RRef,
}

/// How a forward runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Dropout and batch statistics as in training.
    pub train: bool,
    /// Decides the dropout masks: the same seed draws the same ones.
    pub dropout_seed: u64,
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
        self.call_forward(Some(context), inputs, forward)
    }

    /// The module's output with dropout off, nothing recorded.
    ///
    /// # Errors
    /// What the module's owner says, or the call.
    pub fn predict(&self, inputs: Vec<Tensor>) -> Result<Tensor> {
        self.call_forward(None, inputs, Forward { train: false, dropout_seed: 0 })
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
        inputs: Vec<Tensor>,
        forward: Forward,
    ) -> Result<Tensor> {
        let Forward { train, dropout_seed } = forward;
        let head = [self.rref.clone().into(), Value::Bool(train), Value::Int(dropout_seed as i64)];
        let values = head.into_iter().chain(inputs.into_iter().map(Value::from)).collect();
        let answer = match context {
            Some(_) => self.autograd.call_within(self.owner(), "module.forward", values, context, PATIENCE),
            None => self.autograd.call(self.owner(), "module.forward", values, None),
        };
        let answer = answer.wait()?;
        Ok(one(answer)?.into_tensor()?)
    }
}

pub(super) fn one(values: Vec<Value>) -> Result<Value> {
    let [value] = exactly(values)?;
    Ok(value)
}

pub(super) fn exactly<const N: usize>(values: Vec<Value>) -> Result<[Value; N]> {
    let came = values.len();
    values.try_into().ok().with_context(|| format!("{came} values came where {N} are the answer"))
}
