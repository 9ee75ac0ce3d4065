//! A micro-batch on its way through a model's modules, of which some are here and some on other ranks.

use std::time::{Duration, Instant};

use anyhow::Result;
use tch::Tensor;

use super::remote_module::Forwarding;
use super::{Forward, LookingUp, ModuleHandle, RemoteModule};
use crate::autograd::Context;
use crate::profile::{Activity, span};

/// The modules of a model, in the order in which a sample passes them, and how each forward of one micro-batch runs.
pub struct Passage<'a> {
    pub modules: &'a [ModuleHandle],
    /// `None`: nothing is recorded.
    pub context: Option<&'a Context>,
    /// For each module.
    pub forwards: Vec<Forward>,
}

/// How far a micro-batch has come.
#[must_use = "a forward goes on only when it is finished"]
pub struct MicroBatch {
    /// Modules that it has passed, or is passing on other ranks.
    passed: usize,
    output: Output,
    /// How long this rank has computed for it.
    computed: Duration,
}

enum Output {
    Here(Tensor),
    /// The output of modules on other ranks.
    Forwarding(Forwarding),
    /// The output of a table on other ranks.
    LookingUp(LookingUp),
}

impl MicroBatch {
    /// Computes what comes before the first module on other ranks, and has that compute.
    ///
    /// # Errors
    /// What a module here says.
    pub fn start(passage: &Passage<'_>, input: Tensor) -> Result<MicroBatch> {
        MicroBatch { passed: 0, output: Output::Here(input), computed: Duration::ZERO }.advance(passage)
    }

    /// How long this rank has computed for it so far.
    pub fn computed(&self) -> Duration {
        self.computed
    }

    /// Waits for other ranks, computes the rest, and gives the output of the last module, with how long this rank has
    /// computed for it since the start.
    ///
    /// # Errors
    /// What a module says, or the call to its owner.
    pub fn finish(self, passage: &Passage<'_>) -> Result<(Tensor, Duration)> {
        let mut at = MicroBatch { computed: Duration::ZERO, ..self };
        loop {
            let output = match at.output {
                Output::Forwarding(forwarding) => forwarding.wait()?,
                Output::LookingUp(rows) => rows.wait()?,
                Output::Here(output) => output,
            };
            if at.passed == passage.modules.len() {
                return Ok((output, at.computed));
            }
            at = MicroBatch { output: Output::Here(output), ..at }.advance(passage)?;
        }
    }

    /// To the next modules on other ranks, or to the end.
    fn advance(self, passage: &Passage<'_>) -> Result<MicroBatch> {
        let MicroBatch { mut passed, mut output, mut computed } = self;
        while let Output::Here(input) = output {
            let Some(module) = passage.modules.get(passed) else {
                return Ok(MicroBatch { passed, output: Output::Here(input), computed });
            };
            let _span = span(Activity::Forward);
            let (start, forward) = (Instant::now(), passage.forwards[passed]);
            passed += 1;
            output = match (module, passage.context) {
                (ModuleHandle::Remote(_), context) => {
                    let remote = passage.remote_from(passed - 1);
                    passed += remote.len() - 1;
                    let forwarding = RemoteModule::forward_through(&remote, context, input);
                    return Ok(MicroBatch { passed, output: Output::Forwarding(forwarding), computed });
                }
                (ModuleHandle::Sharded(table), Some(context)) => {
                    Output::LookingUp(table.look_up(context, &input, forward.after)?)
                }
                (ModuleHandle::Sharded(table), None) => Output::Here(table.predict(&input)?),
                (ModuleHandle::Replica(replica), Some(_)) => Output::Here(replica.forward(input, forward)?),
                (ModuleHandle::Replica(replica), None) => Output::Here(replica.predict(input)?),
                (ModuleHandle::Pulled(pulled), Some(context)) => {
                    Output::Here(pulled.forward(context, input, forward)?)
                }
                (ModuleHandle::Pulled(pulled), None) => Output::Here(pulled.copy().predict(input)?),
            };
            computed += start.elapsed();
        }
        Ok(MicroBatch { passed, output, computed })
    }
}

impl<'a> Passage<'a> {
    /// The modules on other ranks that follow one another from there on.
    fn remote_from(&self, first: usize) -> Vec<(&'a RemoteModule, Forward)> {
        let from = self.modules.iter().zip(&self.forwards).skip(first);
        from.map_while(|(module, forward)| module.remote().map(|remote| (remote, *forward))).collect()
    }
}
