//! One training step, top to bottom.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tch::{Kind, Tensor};

use super::samples::Samples;
use super::shares::{Shares, StepSamples};
use super::skipped::Skipped;
use crate::autograd::{Autograd, Backward, Context};
use crate::job::pipeline::{self, Action};
use crate::job::shards::mix;
use crate::job::{OnNan, PipelineSchedule};
use crate::parallel::{
    DistributedOptimizer, Forward, GradientSync, MicroBatch, ModuleHandle, Passage, StepTerms, Walk,
};
use crate::plugin::{Loss, LossValue, Weight};
use crate::profile::{Activity, at_step, span};
use crate::rpc::Batch;
use crate::topology::Rank;

/// What a trainer's steps work with.
pub struct Stepper {
    pub autograd: Arc<Autograd>,
    /// How values pass the modules.
    pub walk: Walk,
    /// Each behind those that it takes from.
    pub modules: Vec<ModuleHandle>,
    /// Gradient synchronization of those that are replicas.
    pub gradient_sync: Option<GradientSync>,
    pub loss: Loss,
    /// Where that is a sum, of so many trainers' gradients that become one mean.
    pub trainers_summed: Option<usize>,
    /// The fields that the loss takes.
    pub targets: Vec<usize>,
    pub optimizer: DistributedOptimizer,
    pub schedule: PipelineSchedule,
    /// Stages of the pipeline that the modules make.
    pub stages: usize,
    pub rank: Rank,
    pub seed: u64,
    pub on_nan: OnNan,
    /// The next step, as far as it has begun.
    pub ahead: Option<Begun>,
    pub skipped: Skipped,
}

/// A step whose first forwards have left ahead of its turn, in one message with the step before it.
pub struct Begun {
    number: u64,
    context: Context,
    first: MicroBatch,
}

impl Begun {
    fn start(
        number: u64,
        context: Context,
        (walk, modules): (&Walk, &[ModuleHandle]),
        forwards: Vec<Forward>,
        batch: &Samples,
    ) -> Result<Begun> {
        let passage = Passage { walk, modules, context: Some(&context), forwards };
        let first = MicroBatch::start_ahead(&passage, fields(batch))?;
        Ok(Begun { number, context, first })
    }
}

/// What the micro-batches of a step leave when all have begun their backwards.
struct Passed {
    backwards: Vec<Backward>,
    /// Has the last backward leave with the optimizer's step.
    held_back: Option<Batch>,
    /// Micro-batches that a loss which is not finite has left on their way; to be kept until the step is over.
    in_flight: VecDeque<MicroBatch>,
}

/// What a step gave.
#[derive(Default)]
pub struct Stepped {
    /// The mean over its samples, also where the loss is a sum.
    pub loss: f64,
    /// Updates by others between what the step read and what it wrote.
    pub staleness: u64,
    /// Metrics of the loss plug-in, where wanted.
    pub metrics: BTreeMap<String, f64>,
    /// Time from the first forward to the end of the last backward, and how much of it this rank has computed.
    pub passed: Duration,
    pub computed: Duration,
    /// The most micro-batches whose activations this rank kept at one time.
    pub peak_activations: usize,
    /// Its loss was not finite, and it has updated nothing; or gradients were not, and have not been applied.
    pub skipped: bool,
    /// The norm of all gradients, where they are clipped or scaled.
    pub grad_norm: Option<f64>,
    /// What the loss was multiplied by.
    pub loss_scale: Option<f64>,
}

impl Stepped {
    /// A loss that is no number goes no further, but where it is scaled: everybody has to see gradients that are none.
    fn is_trainable(&self) -> bool {
        self.loss.is_finite() || self.loss_scale.is_some()
    }

    /// What the losses are multiplied by whose gradients are found.
    fn root_factor(&self) -> f64 {
        match self.loss_scale {
            Some(_) if !self.loss.is_finite() => f64::NAN,
            scale => scale.unwrap_or(1.0),
        }
    }

    fn add(&mut self, share: Weight, computed: &LossValue) -> Result<()> {
        self.loss += computed.loss.f_double_value(&[])? * share.loss;
        for (name, value) in &computed.metrics {
            *self.metrics.entry(name.clone()).or_default() += value * share.metrics;
        }
        Ok(())
    }
}

impl Stepper {
    /// Trains on the micro-batches that make one step. `number` counts this trainer's steps from 0; `next` is what the
    /// step after it will see, `lr_factor` what learning rates are multiplied by.
    ///
    /// # Errors
    /// When any part fails, on any rank; when the loss or a gradient is not finite and the job says to stop then.
    pub fn step(
        &mut self,
        number: u64,
        samples: &StepSamples,
        lr_factor: f64,
        next: Option<&StepSamples>,
        want_metrics: bool,
    ) -> Result<Stepped> {
        self.optimizer.turn()?;
        let counted = self.counted(samples)?;
        // Dropping the context, at the end or on an error, frees it on every rank that it touched.
        let (context, first) = self.begin(number, samples.batches.len())?;
        let start = Instant::now();
        let mut stepped = Stepped { loss_scale: self.optimizer.loss_scale(), ..Stepped::default() };
        let Passed { mut backwards, held_back, in_flight: _in_flight } =
            self.pass(number, &context, first, (samples, &counted), want_metrics, &mut stepped)?;
        if !stepped.is_trainable() {
            return self.skip(number, &context, backwards, stepped);
        }

        let last = backwards.pop().context("a step has no batch")?;
        wait_for(backwards)?;
        // The owners take their step right behind the last backward.
        let (walk, modules, after) = (&self.walk, &self.modules, self.optimizer.steps());
        // The forwards of the next step wait for this one. Where gradients are measured its second half leaves later.
        let goes_ahead = walk.may_begin_ahead() && !self.optimizer.measures();
        let scaled = stepped.loss_scale.is_some();
        let terms = StepTerms { weight: counted.weight, lr_factor, factor: 1.0, scaled };
        let stepping = self.optimizer.step(&context, &last, terms);
        if let Some(next) = next.filter(|next| next.batches.len() == 1 && goes_ahead) {
            let forwards = forwards(self.seed, self.rank, [number + 1, 0], after + 1, modules.len());
            at_step(number + 2);
            let begun = Begun::start(
                number + 1,
                self.autograd.context(),
                (walk, modules),
                forwards,
                &next.batches[0],
            );
            at_step(number + 1);
            self.ahead = Some(begun?);
        }
        drop(held_back);
        wait_for([last])?;
        stepped.passed = start.elapsed();
        stepped.computed += context.state().take_computing();
        if let Some(gradient_sync) = &mut self.gradient_sync {
            gradient_sync.after_backward(&context)?;
        }
        let applied = stepping?.wait().context("the optimizer's step failed")?;
        (stepped.staleness, stepped.grad_norm) = (applied.staleness, applied.norm);
        match applied.not_finite {
            None => self.skipped.taken(),
            Some(wrong) => {
                if scaled {
                    self.overflowed(number, &wrong)?
                } else {
                    self.leave_out(number, &wrong)?
                }
                stepped.skipped = true;
            }
        }
        Ok(stepped)
    }

    /// How the micro-batches count. Trainers whose gradients are averaged agree on it before they begin.
    fn counted(&mut self, samples: &StepSamples) -> Result<Shares> {
        if !self.loss.weighs() && self.trainers_summed.is_none() {
            return Ok(Shares::evenly(samples));
        }
        let mut weights = Vec::new();
        for batch in &samples.batches {
            weights.push(self.loss.weigh(&batch.take(&self.targets), batch.count)?);
        }
        if let Some(trainers) = self.trainers_summed {
            return Ok(Shares::added(&weights, trainers));
        }
        let sync = self.gradient_sync.as_ref();
        Shares::weighed(&weights, sync.map(|sync| move |weight| sync.mean_over_ranks(weight)))
    }

    /// The step's context, and its first micro-batch where that has begun ahead of its turn.
    fn begin(&mut self, number: u64, batches: usize) -> Result<(Context, Option<MicroBatch>)> {
        let (context, first) = match self.ahead.take().filter(|ahead| ahead.number == number) {
            Some(ahead) => (ahead.context, Some(ahead.first)),
            None => (self.autograd.context(), None),
        };
        if let Some(gradient_sync) = &mut self.gradient_sync {
            gradient_sync.begin(&context, batches)?;
        }
        Ok((context, first))
    }

    /// Has the micro-batches go forward and begin their backwards, as the schedule says. Ends early where the loss is not
    /// finite.
    fn pass(
        &mut self,
        number: u64,
        context: &Context,
        mut first: Option<MicroBatch>,
        (samples, counted): (&StepSamples, &Shares),
        want_metrics: bool,
        stepped: &mut Stepped,
    ) -> Result<Passed> {
        let (batches, after) = (&samples.batches, self.optimizer.steps());
        let (walk, modules) = (&self.walk, self.modules.as_slice());
        let passage = |nth: usize| Passage {
            walk,
            modules,
            context: Some(context),
            forwards: forwards(self.seed, self.rank, [number, nth as u64], after, modules.len()),
        };
        let mut roots = VecDeque::new();
        let mut passed = Passed { backwards: Vec::new(), held_back: None, in_flight: VecDeque::new() };
        for action in pipeline::actions(self.schedule, self.stages, batches.len()) {
            match action {
                Action::Start(nth) => {
                    let mut started = match first.take() {
                        Some(mut ahead) => {
                            ahead.advance(&passage(nth))?;
                            ahead
                        }
                        None => MicroBatch::start(&passage(nth), fields(&batches[nth]))?,
                    };
                    stepped.computed += started.take_computed();
                    passed.in_flight.push_back(started);
                }
                Action::Finish(nth) => {
                    let batch = &batches[nth];
                    let mut started =
                        passed.in_flight.pop_front().context("a micro-batch ends before it begins")?;
                    let outputs = in_float32(started.finish(&passage(nth))?)?;
                    let loss_began = Instant::now();
                    let targets = batch.take(&self.targets);
                    let computed = trainable_loss(&mut self.loss, &outputs, &targets, want_metrics)?;
                    stepped.computed += started.take_computed() + loss_began.elapsed();
                    stepped.add(counted.parts[nth].shown, &computed)?;
                    if !stepped.is_trainable() {
                        return Ok(passed);
                    }
                    // The gradients of a step's micro-batches add up in the context.
                    roots.push_back(match counted.parts[nth].root * stepped.root_factor() {
                        1.0 => computed.loss,
                        share => computed.loss.f_mul_scalar(share)?,
                    });
                    let begun = if walk.begins_here() { passed.in_flight.len() } else { 0 };
                    stepped.peak_activations = stepped.peak_activations.max(roots.len() + begun);
                }
                Action::Backward(_) => {
                    let root = roots.pop_front().context("a backward comes before its forward")?;
                    // The gradients and the step leave together; in a pipeline the one is not to wait for the other.
                    if batches.len() == 1 {
                        passed.held_back = Some(self.autograd.batch());
                    }
                    passed.backwards.push(self.autograd.backward(context, &[root], false));
                }
            }
        }
        Ok(passed)
    }

    /// Updates nothing, where the job allows it.
    fn skip(
        &mut self,
        number: u64,
        context: &Context,
        backwards: Vec<Backward>,
        stepped: Stepped,
    ) -> Result<Stepped> {
        self.leave_out(number, &format!("the loss is {}", stepped.loss))?;
        wait_for(backwards)?;
        let staleness = self.optimizer.skip(context).wait()?.staleness;
        Ok(Stepped { staleness, skipped: true, ..stepped })
    }

    /// What the loss takes, for evaluation: dropout off, nothing recorded.
    ///
    /// # Errors
    /// When a module's owner fails.
    pub fn predict(&self, samples: &Samples) -> Result<Vec<Tensor>> {
        let forwards = vec![Forward::PREDICT; self.modules.len()];
        let passage = Passage { walk: &self.walk, modules: &self.modules, context: None, forwards };
        in_float32(MicroBatch::start(&passage, fields(samples))?.finish(&passage)?)
    }

    /// What the job says about a step whose loss or gradients are not finite numbers: `wrong` tells which.
    fn leave_out(&mut self, number: u64, wrong: &str) -> Result<()> {
        let (rank, step) = (self.rank, number + 1);
        match self.on_nan {
            OnNan::Skip => {
                tracing::warn!("rank {rank}, step {step}: {wrong}; the step is skipped");
                self.skipped.another().with_context(|| format!("rank {rank}, step {step}"))
            }
            OnNan::Stop => {
                // Replicas would part if one of them left out a step.
                let skip = if self.gradient_sync.is_none() { ", or set train.on_nan = \"skip\"" } else { "" };
                bail!(
                    "rank {rank}, step {step}: {wrong}\n  \
                     hint: lower optimizer.lr, look at the data of this step{skip}"
                )
            }
        }
    }

    /// As some steps' gradients do while the scale of losses is found. That none is applied any more is no training.
    fn overflowed(&mut self, number: u64, wrong: &str) -> Result<()> {
        let (rank, step) = (self.rank, number + 1);
        tracing::info!("rank {rank}, step {step}: {wrong}; the step is left out");
        self.skipped.another().with_context(|| format!("rank {rank}, step {step}"))
    }
}

const UNTRAINABLE: &str = "the loss does not depend on any parameter that is trained\n  \
     hint: a module of TorchScript that was frozen or quantised has none, and what computes under torch.no_grad() cuts off \
     those before it";

fn fields(samples: &Samples) -> Vec<Tensor> {
    samples.fields.iter().map(Tensor::shallow_clone).collect()
}

fn trainable_loss(
    loss: &mut Loss,
    outputs: &[Tensor],
    targets: &[Tensor],
    want_metrics: bool,
) -> Result<LossValue> {
    let _span = span(Activity::Loss);
    let computed = loss.compute(outputs, targets, want_metrics)?;
    if !computed.loss.requires_grad() {
        bail!("{UNTRAINABLE}");
    }
    Ok(computed)
}

/// Outputs as losses and metrics take them: as in `autocast`, where losses are among what runs in float32.
pub(super) fn in_float32(outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let cast = |output: Tensor| match output.f_kind()? {
        Kind::BFloat16 | Kind::Half => anyhow::Ok(output.f_to_kind(Kind::Float)?),
        _ => Ok(output),
    };
    outputs.into_iter().map(cast).collect()
}

/// How the forwards of a micro-batch run, `at` its step and place there, `after` so many steps of this trainer.
fn forwards(seed: u64, rank: Rank, at: [u64; 2], after: u64, modules: usize) -> Vec<Forward> {
    let forward = |position| Forward {
        train: true,
        dropout_seed: dropout_seed(seed, rank, [at[0], at[1], position]),
        after,
    };
    (0..modules as u64).map(forward).collect()
}

fn wait_for(backwards: impl IntoIterator<Item = Backward>) -> Result<()> {
    backwards.into_iter().try_for_each(|backward| backward.wait().context("the backward failed"))
}

/// A seed of its own for each trainer, step, batch and module, the same in every run of the job.
fn dropout_seed(job: u64, rank: Rank, at: [u64; 3]) -> u64 {
    [u64::from(rank.0)].into_iter().chain(at).fold(job, |seed, part| mix(seed ^ mix(part)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_trainer_step_batch_and_module_has_its_own_dropout_seed() {
        let mut seeds = HashSet::new();
        for rank in 1..4 {
            for step in 0..100 {
                for (batch, module) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    assert!(seeds.insert(dropout_seed(1234, Rank(rank), [step, batch, module])));
                }
            }
        }
    }
}
