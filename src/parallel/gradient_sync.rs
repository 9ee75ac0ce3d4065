//! How the gradients of replicas become their average: c10d's Reducer while the backward runs, or one all-reduce after
//! it, c10d's own or a ring.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use c10d::reducer::{Hook, PowerSgdOptions, Reducer, ReducerOptions};
use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Tensor};

use super::collective::collective;
use super::first_gradients::FirstGradients;
use super::mean::{flatten, unflatten};
use super::{Gradients, Replica, ring};
use crate::autograd::{Averaged, Context};
use crate::job::{self, Average, Replicas};

/// The process group of the replicas of one model, and how it averages.
pub struct GradientSync {
    group: ProcessGroup,
    /// The names in contexts and the leaves of all replicas of this rank, in one order on all ranks.
    names: Vec<String>,
    leaves: Vec<Tensor>,
    buffers: Vec<Tensor>,
    broadcast_buffers: bool,
    by: By,
}

enum By {
    /// While the backward runs. One for each run of replicas with nothing of another rank's between them: a backward comes
    /// to the runs one after the other.
    Reducers(Vec<Averaged>),
    /// All gradients, as one tensor, when the backward is over. Parameters without one are named before that, by this
    /// rank's own.
    Afterwards { all_reduce: AllReduce, compared: Option<Comparison>, first_gradients: Vec<FirstGradients> },
}

#[derive(Clone, Copy, PartialEq)]
enum AllReduce {
    BuiltIn,
    Ring,
}

/// How far the ring's averages were from those of the built-in all-reduce, and how long each took.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub steps: u64,
    pub largest_difference: f64,
    pub ring: Vec<Duration>,
    pub built_in: Vec<Duration>,
}

impl GradientSync {
    /// Makes this rank's replicas those of the group's first rank. Every rank of `group` calls it. `runs` are the
    /// replicas that follow one another with nothing in between.
    ///
    /// # Errors
    /// When the ranks' replicas differ in their parameters' shapes, or a rank is lost.
    pub fn new(group: ProcessGroup, runs: &[Vec<&Replica>], options: &Replicas) -> Result<GradientSync> {
        let names = |replicas: &[&Replica]| -> Vec<String> {
            replicas.iter().flat_map(|replica| replica.watched_names().to_vec()).collect()
        };
        let leaves = |replicas: &[&Replica]| -> Vec<Tensor> {
            replicas.iter().flat_map(|replica| replica.leaves()).collect()
        };
        let buffers = |replicas: &[&Replica]| -> Vec<Tensor> {
            replicas.iter().flat_map(|replica| replica.module().share_buffers()).collect()
        };
        let reducer = |replicas: &Vec<&Replica>| -> Result<Averaged> {
            let leaves = leaves(replicas);
            let on_cpu = leaves.iter().all(|leaf| leaf.device() == Device::Cpu);
            let options = reducer_options(options, &names(replicas), on_cpu);
            let reducer = Reducer::new(&leaves, &buffers(replicas), &group, options)?;
            Ok(Averaged::new(reducer, &leaves))
        };
        let all = runs.concat();
        for mut tensor in all.iter().flat_map(|replica| replica.module().share_fixed()) {
            collective(&group, "broadcast", || group.broadcast(&mut tensor, 0))?;
        }
        let (all_names, all_leaves, all_buffers) = (names(&all), leaves(&all), buffers(&all));
        let afterwards = |all_reduce| {
            for tensor in all_leaves.iter().chain(&all_buffers) {
                let mut tensor = tensor.f_detach()?;
                collective(&group, "broadcast", || group.broadcast(&mut tensor, 0))?;
            }
            Ok::<_, anyhow::Error>(By::Afterwards {
                all_reduce,
                compared: options.compare.then(Comparison::default),
                first_gradients: all
                    .iter()
                    .map(|replica| FirstGradients::new(replica.name(), replica.parameter_names()))
                    .collect(),
            })
        };
        let by = match options.average {
            Average::Ring => afterwards(AllReduce::Ring)?,
            Average::AllReduce => afterwards(AllReduce::BuiltIn)?,
            // Alone it has nothing to average, and no buckets to fill; a hook changes gradients all the same.
            Average::Ddp if group.size() == 1 && options.hook == job::Hook::None => {
                afterwards(AllReduce::BuiltIn)?
            }
            // Nothing to average, but running statistics may be kept equal.
            Average::Ddp if all_leaves.is_empty() => afterwards(AllReduce::BuiltIn)?,
            Average::Ddp => By::Reducers(runs.iter().map(reducer).collect::<Result<_>>()?),
        };
        let broadcast_buffers = options.broadcast_buffers && !all_buffers.is_empty() && group.size() > 1;
        let (names, leaves, buffers) = (all_names, all_leaves, all_buffers);
        Ok(GradientSync { group, names, leaves, buffers, broadcast_buffers, by })
    }

    /// Before the first forward of the step that `context` stands for, which has so many backwards.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn begin(&mut self, context: &Context, backwards: usize) -> Result<()> {
        for (name, leaf) in self.names.iter().zip(&self.leaves) {
            context.state().watch(name.as_str(), leaf)?;
        }
        match &self.by {
            By::Reducers(runs) => {
                for averaged in runs {
                    context.state().average(averaged.clone())?;
                    averaged.begin(backwards)?;
                }
            }
            // Once a step: ranks may have different numbers of forwards in it.
            By::Afterwards { .. } if self.broadcast_buffers => {
                for buffer in &mut self.buffers {
                    collective(&self.group, "broadcast", || self.group.broadcast(buffer, 0))?;
                }
            }
            By::Afterwards { .. } => {}
        }
        Ok(())
    }

    /// The mean of a number of each rank. All of them call it.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn mean_over_ranks(&self, number: f64) -> Result<f64> {
        if self.group.size() == 1 {
            return Ok(number);
        }
        let device = self.leaves.first().map_or(Device::Cpu, Tensor::device);
        let mut sum = Tensor::from_slice(&[number]).f_to_device(device)?;
        collective(&self.group, "all_reduce", || self.group.all_reduce(&mut sum, ReduceOp::Sum))
            .context("the weight of a step over the replicas")?;
        Ok(sum.f_double_value(&[0])? / f64::from(self.group.size()))
    }

    /// After the step's last backward: the context's gradients of the replicas are averages over all of them from now
    /// on. A parameter that one of them did not use counts as zero there; one that nobody used has none.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn after_backward(&mut self, context: &Context) -> Result<()> {
        let By::Afterwards { all_reduce, compared, first_gradients } = &mut self.by else { return Ok(()) };
        let gradients = context.state().gradients();
        let own: Gradients =
            self.names.iter().map(|name| gradients.get(name).map(Tensor::shallow_clone)).collect();
        let mut of_modules = own.as_slice();
        for first in first_gradients {
            let (of_module, others) = of_modules.split_at(first.parameters());
            first.note(of_module);
            of_modules = others;
        }
        if self.group.size() == 1 || self.leaves.is_empty() {
            return Ok(());
        }
        let mut flat = flatten(&self.leaves, &own)?;
        let again = compared.as_ref().map(|_| flat.f_detach_copy()).transpose()?;
        let took = timed(|| all_reduce.sum(&self.group, &mut flat))?;
        if let (Some(compared), Some(mut again)) = (compared, again) {
            let built_in = timed(|| AllReduce::BuiltIn.sum(&self.group, &mut again))?;
            compared.add(&flat, &again, took, built_in)?;
        }
        let mean = flat.f_div_scalar(i64::from(self.group.size()))?;
        let averages = self.names.iter().cloned().zip(unflatten(&self.leaves, &mean)?);
        let present = averages.filter_map(|(name, average)| Some((name, average?)));
        Ok(context.state().replace_gradients(present)?)
    }

    /// With `replicas.compare`.
    pub fn comparison(&self) -> Option<&Comparison> {
        match &self.by {
            By::Afterwards { compared, .. } => compared.as_ref(),
            By::Reducers(_) => None,
        }
    }
}

fn reducer_options(options: &Replicas, names: &[String], on_cpu: bool) -> ReducerOptions {
    const MB: f64 = (1 << 20) as f64;
    let hook = match options.hook {
        // A round of Gloo's messages costs about as much as so many bytes.
        job::Hook::None if on_cpu => Hook::Gather { up_to_bytes: 64 << 10 },
        job::Hook::None => Hook::None,
        job::Hook::Fp16 => Hook::Fp16,
        job::Hook::Bf16 => Hook::Bf16,
        job::Hook::PowerSgd { rank, start } => {
            Hook::PowerSgd(PowerSgdOptions { rank, start_iter: start, ..PowerSgdOptions::default() })
        }
    };
    ReducerOptions {
        bucket_cap_mb: options.bucket_cap_bytes as f64 / MB,
        first_bucket_mb: options.first_bucket_bytes as f64 / MB,
        find_unused_parameters: options.find_unused_parameters,
        gradient_as_bucket_view: options.gradient_as_bucket_view,
        broadcast_buffers: options.broadcast_buffers,
        // A run that goes on from a checkpoint adds up as the one that never stopped.
        rebuild_buckets: false,
        hook,
        names: names.to_vec(),
        ..ReducerOptions::default()
    }
}

impl AllReduce {
    fn sum(self, group: &ProcessGroup, flat: &mut Tensor) -> Result<()> {
        match self {
            AllReduce::BuiltIn => {
                collective(group, "all_reduce", || group.all_reduce(flat, ReduceOp::Sum))?;
            }
            AllReduce::Ring => {
                collective(group, "ring", || ring::all_reduce(group, flat)).context("the ring")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = |times: &[Duration]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        write!(
            f,
            "the ring beside the built-in all-reduce, {} steps: largest difference {:.1e}, {:.2} ms against {:.2} ms \
             (medians)",
            self.steps,
            self.largest_difference,
            median(&self.ring),
            median(&self.built_in)
        )
    }
}

impl Comparison {
    fn add(
        &mut self,
        ring: &Tensor,
        built_in: &Tensor,
        took: Duration,
        built_in_took: Duration,
    ) -> Result<()> {
        let difference = ring.f_sub(built_in)?.f_abs()?.f_max()?.f_double_value(&[])?;
        self.steps += 1;
        self.largest_difference = self.largest_difference.max(difference);
        self.ring.push(took);
        self.built_in.push(built_in_took);
        Ok(())
    }
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}
