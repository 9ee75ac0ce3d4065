//! A module that lives on another rank, as its users hold it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};

use anyhow::Result;
use tch::Tensor;

use super::WAIT_FOR_TRAINERS;
use super::calls::module;
use crate::autograd::{Autograd, Context};
use crate::rpc::{Bits, CallError, PendingReply, RRef};
use crate::topology::Rank;

/// A handle on a module hosted by some rank. Cheap to clone.
#[derive(Clone)]
pub struct RemoteModule {
    autograd: Arc<Autograd>,
    rref: RRef,
}

/// The outputs of a forward that other ranks compute.
#[must_use = "a forward that nobody waits for fails unseen"]
pub struct Forwarding {
    reply: PendingReply<module::Outputs>,
    /// Once it is there.
    came: Option<Result<module::Outputs, CallError>>,
}

/// What a forward gets.
pub enum Input {
    Tensor(Tensor),
    /// An output of a module on another rank, whose owner is asked for it by the one that needs it: so what passes between the
    /// two does not pass through this rank.
    Output(Box<Nested>, usize),
}

/// A forward that another one asks for.
pub struct Nested {
    pub module: RemoteModule,
    pub inputs: Vec<Input>,
    pub forward: Forward,
}

impl Forwarding {
    /// # Errors
    /// What the owner of one of the modules says, or a call.
    pub fn wait(self) -> Result<Vec<Tensor>> {
        let came = self.came.unwrap_or_else(|| self.reply.wait());
        Ok(came?.outputs)
    }

    /// Is the answer there? Then [`wait`](Forwarding::wait) does not wait.
    pub(super) fn poll_outputs(&mut self, context: &mut task::Context<'_>) -> Poll<()> {
        if self.came.is_none() {
            self.came = Some(ready!(Pin::new(&mut self.reply).poll(context)));
        }
        Poll::Ready(())
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

    /// Has the owner compute, once it has the inputs that other ranks give it. Without a context nothing is recorded.
    pub fn start(&self, context: Option<&Context>, inputs: Vec<Input>, forward: Forward) -> Forwarding {
        let inputs = inputs.into_iter().map(|input| match input {
            Input::Tensor(tensor) => module::Input::Tensor(tensor),
            Input::Output(nested, nth) => self.nested(*nested, nth),
        });
        let call = self.forward_call(inputs.collect(), forward);
        let reply = match context {
            Some(_) => self.autograd.call_within(self.owner(), call, context, WAIT_FOR_TRAINERS),
            None => self.autograd.call(self.owner(), call, None),
        };
        Forwarding { reply, came: None }
    }

    /// A call from one to the next carries all that came before, so it names this rank's tensors instead of bringing them.
    fn nested(&self, nested: Nested, nth: usize) -> module::Input {
        let Nested { module, inputs, forward } = nested;
        let inputs = inputs.into_iter().map(|input| match input {
            Input::Tensor(tensor) => module::Input::Lent(self.autograd.lend(tensor)),
            Input::Output(nested, nth) => self.nested(*nested, nth),
        });
        module::Input::Output(Box::new(module.forward_call(inputs.collect(), forward)), nth as u64)
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

    fn forward_call(&self, inputs: Vec<module::Input>, forward: Forward) -> module::Forward {
        let Forward { train, dropout_seed, after } = forward;
        module::Forward { module: self.rref.clone(), train, dropout_seed: Bits(dropout_seed), after, inputs }
    }
}
