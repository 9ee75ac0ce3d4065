//! A module that lives on another rank, as its users hold it.

use std::sync::Arc;

use anyhow::Result;
use tch::Tensor;

use super::WAIT_FOR_TRAINERS;
use super::calls::module::{self, Input};
use crate::autograd::{Autograd, Context};
use crate::rpc::{Bits, PendingReply, RRef};
use crate::topology::Rank;

/// A handle on a module hosted by some rank. Cheap to clone.
#[derive(Clone)]
pub struct RemoteModule {
    autograd: Arc<Autograd>,
    rref: RRef,
}

/// The output of a forward that other ranks compute.
#[must_use = "a forward that nobody waits for fails unseen"]
pub struct Forwarding(PendingReply<module::Output>);

impl Forwarding {
    /// # Errors
    /// What the owner of one of the modules says, or a call.
    pub fn wait(self) -> Result<Tensor> {
        Ok(self.0.wait()?.output)
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
        let reference = autograd.call(owner, module::Get { name: name.into() }, None).wait()?;
        Ok(RemoteModule::new(autograd, reference.module))
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
        self.call_forward(Some(context), tensors(inputs), forward).wait()
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
            [] => Input::Tensor(input),
            [..] => Input::Lent(last.autograd.lend(input)),
        };
        let source = before.iter().fold(input, |source, (module, forward)| {
            Input::Output(Box::new(module.forward_call(vec![source], *forward)))
        });
        last.call_forward(context, vec![source], *forward)
    }

    /// The module's output with dropout off, nothing recorded.
    ///
    /// # Errors
    /// What the module's owner says, or the call.
    pub fn predict(&self, inputs: Vec<Tensor>) -> Result<Tensor> {
        self.call_forward(None, tensors(inputs), Forward::PREDICT).wait()
    }

    /// A reference to each parameter, for a [`DistributedOptimizer`](super::DistributedOptimizer).
    ///
    /// # Errors
    /// When the call fails.
    pub fn parameters(&self) -> Result<Vec<RRef>> {
        let list = module::Parameters { module: self.rref.clone() };
        Ok(self.autograd.call(self.owner(), list, None).wait()?.parameters)
    }

    /// Tells the owner that this rank takes no more steps.
    ///
    /// # Errors
    /// When the call fails, or the round that it completes cannot be applied.
    pub fn leave(&self) -> Result<()> {
        let leave = module::Leave { module: self.rref.clone() };
        Ok(self.autograd.call(self.owner(), leave, None).wait()?)
    }

    fn call_forward(&self, context: Option<&Context>, inputs: Vec<Input>, forward: Forward) -> Forwarding {
        let call = self.forward_call(inputs, forward);
        Forwarding(match context {
            Some(_) => self.autograd.call_within(self.owner(), call, context, WAIT_FOR_TRAINERS),
            None => self.autograd.call(self.owner(), call, None),
        })
    }

    fn forward_call(&self, inputs: Vec<Input>, forward: Forward) -> module::Forward {
        let Forward { train, dropout_seed, after } = forward;
        module::Forward { module: self.rref.clone(), train, dropout_seed: Bits(dropout_seed), after, inputs }
    }
}

fn tensors(inputs: Vec<Tensor>) -> Vec<Input> {
    inputs.into_iter().map(Input::Tensor).collect()
}
