//! A micro-batch on its way through a model's modules, of which some are here and some on other ranks.

use std::future::poll_fn;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::remote_module::{Forwarding, Input, Nested};
use super::walk::Walk;
use super::{Forward, LookingUp, ModuleHandle};
use crate::autograd::Context;
use crate::job::Source;
use crate::profile::{Activity, span};
use crate::rpc::wait_for;

/// The modules of a model, and how each forward of one micro-batch runs.
pub struct Passage<'a> {
    pub walk: &'a Walk,
    /// Each behind those that it takes from.
    pub modules: &'a [ModuleHandle],
    /// `None`: nothing is recorded.
    pub context: Option<&'a Context>,
    /// For each module.
    pub forwards: Vec<Forward>,
}

/// How far a micro-batch has come.
#[must_use = "a forward goes on only when it is finished"]
pub struct MicroBatch {
    fields: Vec<Tensor>,
    /// How far each module has come.
    at: Vec<At>,
    /// How many of those that are computed here have been.
    computed_here: usize,
    /// How long this rank has computed for it.
    computed: Duration,
}

enum At {
    /// It has not begun. One that is nested is begun by another and never here.
    Waiting,
    /// On other ranks.
    Coming(Coming),
    /// The outputs, and how often they are still to be taken.
    Here(Vec<Tensor>, usize),
}

/// What other ranks were asked for.
enum Coming {
    Forward(Box<Forwarding>),
    Rows(Box<LookingUp>),
}

impl Coming {
    fn wait(self) -> Result<Vec<Tensor>> {
        match self {
            Coming::Forward(forwarding) => forwarding.wait(),
            Coming::Rows(rows) => Ok(vec![rows.wait()?]),
        }
    }

    fn poll(&mut self, context: &mut task::Context<'_>) -> Poll<()> {
        match self {
            Coming::Forward(forwarding) => forwarding.poll_outputs(context),
            Coming::Rows(rows) => rows.poll_rows(context),
        }
    }
}

impl MicroBatch {
    /// Has other ranks compute all that needs nothing but the fields, and computes here what does.
    ///
    /// # Errors
    /// What a module here says.
    pub fn start(passage: &Passage<'_>, fields: Vec<Tensor>) -> Result<MicroBatch> {
        let mut batch = MicroBatch::new(passage, fields);
        batch.advance(passage)?;
        Ok(batch)
    }

    /// Begins only what may begin before the trainer's last step is over; [`MicroBatch::advance`] does the rest.
    ///
    /// # Errors
    /// What a module here says.
    pub fn start_ahead(passage: &Passage<'_>, fields: Vec<Tensor>) -> Result<MicroBatch> {
        let mut batch = MicroBatch::new(passage, fields);
        for (module, step) in passage.walk.modules.iter().enumerate() {
            if step.may_begin_ahead {
                batch.begin(passage, module)?;
            }
        }
        Ok(batch)
    }

    fn new(passage: &Passage<'_>, fields: Vec<Tensor>) -> MicroBatch {
        let at = passage.modules.iter().map(|_| At::Waiting).collect();
        MicroBatch { fields, at, computed_here: 0, computed: Duration::ZERO }
    }

    /// How long this rank has computed for it, since this was last asked.
    pub fn take_computed(&mut self) -> Duration {
        std::mem::take(&mut self.computed)
    }

    /// Waits for other ranks, computes the rest, and gives what the loss takes.
    ///
    /// # Errors
    /// What a module says, or the call to its owner.
    pub fn finish(&mut self, passage: &Passage<'_>) -> Result<Vec<Tensor>> {
        loop {
            self.advance(passage)?;
            let Some(module) = self.first_to_come()? else {
                let ends = passage.walk.ends.iter().map(|end| self.take(*end));
                return ends
                    .collect::<Option<_>>()
                    .context("a forward ends before all of its modules have run");
            };
            if let At::Coming(coming) = std::mem::replace(&mut self.at[module], At::Waiting) {
                self.at[module] = At::Here(coming.wait()?, passage.walk.modules[module].uses);
            }
        }
    }

    /// The first of the modules on other ranks that has answered: waits where there are several. None: there is none.
    fn first_to_come(&mut self) -> Result<Option<usize>> {
        let coming = |module: &usize| matches!(self.at[*module], At::Coming(_));
        let mut modules = (0..self.at.len()).filter(coming);
        let (first, second) = (modules.next(), modules.next());
        if second.is_none() {
            return Ok(first);
        }
        let poll = |context: &mut task::Context<'_>| {
            let ready = |(module, at): (usize, &mut At)| match at {
                At::Coming(coming) => coming.poll(context).is_ready().then_some(module),
                At::Waiting | At::Here(..) => None,
            };
            match self.at.iter_mut().enumerate().find_map(ready) {
                Some(module) => Poll::Ready(module),
                None => Poll::Pending,
            }
        };
        Ok(Some(wait_for(poll_fn(poll))?))
    }

    /// Begins whatever has its inputs here: calls first, so that other ranks compute while this one does.
    ///
    /// # Errors
    /// What a module here says.
    pub fn advance(&mut self, passage: &Passage<'_>) -> Result<()> {
        loop {
            let ready = |module: &usize| self.is_ready(passage, *module);
            let call = passage.walk.calls.iter().copied().find(ready);
            let next = passage.walk.here.get(self.computed_here).copied().filter(ready);
            match (call, next) {
                (Some(module), _) => self.begin(passage, module)?,
                (None, Some(module)) => {
                    self.computed_here += 1;
                    self.begin(passage, module)?;
                }
                (None, None) => return Ok(()),
            }
        }
    }

    /// Is it the module's turn, which this rank begins?
    fn is_ready(&self, passage: &Passage<'_>, module: usize) -> bool {
        matches!(self.at[module], At::Waiting) && self.has_inputs(passage, module)
    }

    fn has_inputs(&self, passage: &Passage<'_>, module: usize) -> bool {
        passage.walk.modules[module].sources.iter().all(|source| match *source {
            Source::Field(_) => true,
            Source::Output { module, .. } if passage.walk.modules[module].nested => {
                self.has_inputs(passage, module)
            }
            Source::Output { module, .. } => matches!(self.at[module], At::Here(..)),
        })
    }

    fn begin(&mut self, passage: &Passage<'_>, module: usize) -> Result<()> {
        let _span = span(Activity::Forward);
        let (start, forward, context) = (Instant::now(), passage.forwards[module], passage.context);
        let here = |outputs| At::Here(outputs, passage.walk.modules[module].uses);
        self.at[module] = match &passage.modules[module] {
            ModuleHandle::Remote(remote) => {
                let inputs = self.remote_inputs(passage, module)?;
                let forwarding = remote.start(context, inputs, forward);
                self.at[module] = At::Coming(Coming::Forward(Box::new(forwarding)));
                // It computes elsewhere.
                return Ok(());
            }
            ModuleHandle::Sharded(table) => {
                let inputs = self.inputs(passage, module)?;
                match context {
                    Some(context) => {
                        let rows = table.look_up(context, &inputs, forward.after)?;
                        At::Coming(Coming::Rows(Box::new(rows)))
                    }
                    None => here(vec![table.predict(&inputs)?]),
                }
            }
            ModuleHandle::Replica(replica) => {
                let inputs = self.inputs(passage, module)?;
                here(match context {
                    Some(_) => replica.forward(&inputs, forward)?,
                    None => replica.predict(&inputs)?,
                })
            }
            ModuleHandle::Pulled(pulled) => {
                let inputs = self.inputs(passage, module)?;
                here(match context {
                    Some(context) => pulled.forward(context, &inputs, forward)?,
                    None => pulled.copy().predict(&inputs)?,
                })
            }
        };
        self.computed += start.elapsed();
        Ok(())
    }

    /// What a module that begins here takes.
    fn inputs(&mut self, passage: &Passage<'_>, module: usize) -> Result<Vec<Tensor>> {
        let sources = &passage.walk.modules[module].sources;
        let inputs: Option<Vec<Tensor>> = sources.iter().map(|source| self.take(*source)).collect();
        inputs.context("a forward begins before its inputs are there")
    }

    /// Values that are here, and what other ranks ask one another for.
    fn remote_inputs(&mut self, passage: &Passage<'_>, module: usize) -> Result<Vec<Input>> {
        let input = |source: &Source| -> Result<Input> {
            match *source {
                Source::Output { module, output } if passage.walk.modules[module].nested => {
                    let remote =
                        passage.modules[module].remote().context("only a remote module is nested")?;
                    let inputs = self.remote_inputs(passage, module)?;
                    let forward = passage.forwards[module];
                    Ok(Input::Output(Box::new(Nested { module: remote.clone(), inputs, forward }), output))
                }
                source => {
                    let value = self.take(source).context("a forward begins before its inputs are there")?;
                    Ok(Input::Tensor(value))
                }
            }
        };
        passage.walk.modules[module].sources.iter().map(input).collect()
    }

    /// The value, which is let go when the last that needs it takes it.
    fn take(&mut self, source: Source) -> Option<Tensor> {
        match source {
            Source::Field(field) => self.fields.get(field).map(Tensor::shallow_clone),
            Source::Output { module, output } => {
                let At::Here(outputs, uses) = &mut self.at[module] else { return None };
                *uses = uses.saturating_sub(1);
                let value = outputs.get(output).map(Tensor::shallow_clone);
                if *uses == 0 {
                    outputs.clear();
                }
                value
            }
        }
    }
}
