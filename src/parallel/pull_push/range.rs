//! One server's range of a module's parameters: the values, how the trainers' updates meet there, and what each trainer
//! is behind by.
//!
//! - `PR-1` A reader misses no update for good, though it may read one twice, even where nothing orders updates and reads
//!   (hogwild): by `PC-1` of [`Changes`].
//! - `PR-2` A trainer's shadow is what that trainer has, to the bit: both add what travelled (`PF-1`).

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail, ensure};
use tch::{Device, Kind, Tensor};

use super::changes::Changes;
use super::filter::{decode, encode};
use super::segments::{Segment, gather, marked_length, segments, spread};
use crate::job::{Consistency, Filter, ModuleSpec, ranges, unservable};
use crate::model::Module;
use crate::optimizers::{Optimization, Optimizer};
use crate::parallel::calls::range::{Marks, Update};
use crate::parallel::mean::mean_over_trainers;
use crate::parallel::norm::{scaled, squares};
use crate::parallel::registry::{Counters, OptimizerChoice};
use crate::parallel::updates::{Updated, Updates};
use crate::parallel::versioned::Versioned;
use crate::parallel::{Applied, Gradients, StepTerms};
use crate::topology::Rank;

/// How a range is held.
#[derive(Clone)]
pub(super) struct Holding {
    pub trainers: Vec<Rank>,
    pub consistency: Consistency,
    pub filter: Filter,
}

pub(super) struct ServerRange {
    pub(super) module: String,
    filter: Filter,
    takes_turns: bool,
    /// What the segments are of.
    pub(super) parts: Vec<PartOfParameter>,
    /// The segments' lengths, in elements.
    pub(super) lengths: Vec<i64>,
    pub(super) changes: Arc<Changes>,
    pub(super) updates: Updates<Segments>,
    optimizer: OptimizerChoice,
    /// One for each trainer, where a filter leaves something out; used by that trainer's handlers only.
    shadows: Vec<(Rank, Mutex<Option<Tensor>>)>,
    counters: Counters,
}

/// Which numbers of which parameter a segment has.
pub(super) struct PartOfParameter {
    pub name: String,
    /// Behind the module's own.
    pub whole_name: String,
    /// The shape of the whole parameter.
    pub shape: Vec<i64>,
    pub from: u64,
    pub to: u64,
}

/// The values, as [`Updates`] updates them.
pub(super) struct Segments {
    pub values: Versioned,
    changes: Arc<Changes>,
    pub optimizer: Option<Optimizer>,
}

/// What a push brings, as it came.
pub(super) struct PushedGradients {
    pub terms: StepTerms,
    pub marks: Vec<bool>,
    pub parts: Vec<Tensor>,
}

impl ServerRange {
    /// The `position`-th of the ranges over the module's servers.
    ///
    /// # Errors
    /// When the module's first parameters cannot be made.
    pub(super) fn build(
        spec: &ModuleSpec,
        position: usize,
        seed: u64,
        holding: &Holding,
    ) -> Result<ServerRange> {
        let module = Module::build(spec, &[Device::Cpu], seed)?;
        let parameters = module.initial_parameters()?;
        let sizes: Vec<u64> = parameters.iter().map(|tensor| tensor.numel() as u64).collect();
        if let Some((problem, hint)) = unservable(spec, sizes.iter().sum()) {
            bail!("module `{}` {problem}\n  hint: {hint}", spec.name);
        }
        let range = ranges(sizes.iter().sum(), spec.place.ranks.len()).swap_remove(position);
        let pieces = segments(&sizes, &range);
        // Copies: the whole parameters are dropped.
        let copy = |parameter: usize, view: Tensor| -> Result<Tensor> {
            ensure!(
                view.f_kind()? == Kind::Float,
                "parameter {parameter} of module `{}` is not float32",
                spec.name
            );
            Ok(view.f_detach_copy()?)
        };
        let values = pieces
            .iter()
            .map(|segment| copy(segment.parameter, segment.view(&parameters[segment.parameter])?))
            .collect::<Result<Vec<_>>>()?;
        let part = |segment: &Segment| {
            let info = &module.parameters()[segment.parameter];
            let (name, shape) = (info.name.clone(), info.shape.clone());
            let whole_name = format!("{}.{name}", spec.written_name());
            PartOfParameter { name, whole_name, shape, from: segment.from as u64, to: segment.to as u64 }
        };
        ServerRange::new(&spec.name, pieces.iter().map(part).collect(), values, holding)
    }

    fn new(
        module: &str,
        parts: Vec<PartOfParameter>,
        values: Vec<Tensor>,
        holding: &Holding,
    ) -> Result<ServerRange> {
        let lengths = values.iter().map(|segment| segment.numel() as i64).collect();
        let changes = Arc::new(Changes::of(values.len()));
        let Holding { trainers, consistency, filter } = holding;
        let values = Versioned::new(values);
        let segments = Segments { values, changes: changes.clone(), optimizer: None };
        let updates = Updates::new(segments, (), trainers, *consistency)?;
        let shadowed = if *filter == Filter::None { &[][..] } else { trainers };
        Ok(ServerRange {
            module: module.into(),
            filter: *filter,
            takes_turns: consistency.takes_turns(),
            parts,
            lengths,
            changes,
            updates,
            optimizer: OptimizerChoice::default(),
            shadows: shadowed.iter().map(|&rank| (rank, Mutex::default())).collect(),
            counters: Counters::default(),
        })
    }

    /// Chooses what updates the parameters.
    ///
    /// # Errors
    /// When another optimizer was chosen before, or this one is not possible.
    pub(super) fn set_optimizer(&self, optimization: &Optimization) -> Result<()> {
        self.optimizer.choose(&self.module, optimization, || {
            let names = || self.parts.iter().map(|part| &part.whole_name);
            self.updates.prepare(|segments| {
                segments.optimizer =
                    Some(Optimizer::grouped(optimization, names(), segments.values.tensors())?);
                Ok(())
            })
        })
    }

    /// What `trainer`, which has version `have`, is behind by. Without a version: all of it, as it is (PP-4).
    ///
    /// # Errors
    /// When libtorch refuses, or the values do not go through the filter.
    pub(super) fn pull(&self, trainer: Rank, have: Option<u64>) -> Result<Update> {
        let Some((_, shadow)) = self.shadows.iter().find(|(rank, _)| *rank == trainer) else {
            return self.read(trainer, have);
        };
        let mut shadow = shadow.lock().expect("no handler panics with a shadow locked");
        let update = self.read(trainer, None)?;
        let values = update.parts.first().context("a range has a segment at least")?;
        match (have, &*shadow) {
            (Some(_), Some(has)) => self.difference(update.version, values, has),
            (Some(_), None) => anyhow::bail!("rank {trainer} must pull everything first"),
            (None, _) => {
                *shadow = Some(values.f_detach_copy()?);
                Ok(update)
            }
        }
    }

    /// What `trainer` is behind by when it may start its next step, as [`ServerRange::pull`]. All of it there is at once where
    /// trainers take turns: it may be for a validation, to which all of them come.
    ///
    /// # Errors
    /// As `pull`; an earlier step of it has failed.
    pub(super) async fn pull_in_turn(&self, trainer: Rank, have: Option<u64>) -> Result<Update> {
        if have.is_some() || !self.takes_turns {
            self.updates.turn(trainer, 0).await?;
        }
        self.pull(trainer, have)
    }

    /// What comes back with a push (PP-1).
    async fn behind_a_push(&self, trainer: Rank, used: u64) -> Result<Update> {
        match self.takes_turns {
            true => Ok(Update::nothing(used, self.lengths.len())),
            false => self.pull_in_turn(trainer, Some(used)).await,
        }
    }

    /// Applies what a trainer has pushed since it had version `used`; `None`: its step is skipped. Then, when that trainer
    /// may start its next step, what it is behind by (PP-1).
    ///
    /// # Errors
    /// When what came is not a gradient of the segments, or cannot be applied.
    pub(super) async fn push(
        &self,
        trainer: Rank,
        used: u64,
        push: Option<PushedGradients>,
    ) -> Result<(Applied, Update)> {
        let terms = push.as_ref().map(|push| push.terms);
        let gradients = push.map(|push| self.gradients(push)).transpose()?;
        let applied = self.updates.step(trainer, used, terms.zip(gradients)).await;
        let applied = applied.with_context(|| format!("module `{}`", self.module))?;
        self.counters.add(&applied);
        Ok((applied, self.behind_a_push(trainer, used).await?))
    }

    /// The first half of a push whose gradients are clipped, in rounds: the sum of the squares of the round's mean.
    ///
    /// # Errors
    /// When what came is not a gradient of the segments, or cannot be averaged.
    pub(super) async fn measure(
        &self,
        trainer: Rank,
        step: u64,
        push: Option<PushedGradients>,
    ) -> Result<f64> {
        let terms = push.as_ref().map(|push| push.terms);
        let gradients = push.map(|push| self.gradients(push)).transpose()?;
        let squares = self.updates.measure(trainer, step, terms.zip(gradients)).await;
        squares.with_context(|| format!("module `{}`", self.module))
    }

    /// The second half, as [`ServerRange::push`].
    ///
    /// # Errors
    /// When the round cannot be applied.
    pub(super) async fn push_measured(
        &self,
        trainer: Rank,
        used: u64,
        step: u64,
        factor: f64,
    ) -> Result<(Applied, Update)> {
        let applied = self.updates.step_measured(trainer, step, factor);
        let applied = applied.with_context(|| format!("module `{}`", self.module))?;
        self.counters.add(&applied);
        Ok((applied, self.behind_a_push(trainer, used).await?))
    }

    /// The trainer pushes no more, and nobody waits for it any longer.
    ///
    /// # Errors
    /// When that completes a round which cannot be applied.
    pub(super) fn leave(&self, trainer: Rank) -> Result<()> {
        self.updates.leave(trainer)
    }

    /// Pushes applied so far, by all trainers, and the sum of their staleness.
    pub(super) fn updates(&self) -> (u64, u64) {
        self.counters.read()
    }

    fn gradients(&self, push: PushedGradients) -> Result<Gradients> {
        let (came, segments) = (push.marks.len(), self.lengths.len());
        ensure!(came == segments, "gradients of {came} segments came for {segments}");
        let decoded = match marked_length(&self.lengths, &push.marks) {
            0 => None,
            length => Some(decode(self.filter, push.parts, length)?),
        };
        spread(decoded.as_ref(), &self.lengths, &push.marks)
    }

    /// What has changed since version `have`, as it is. Copied: others go on writing it while it travels.
    fn read(&self, caller: Rank, have: Option<u64>) -> Result<Update> {
        let read = |segments: &mut Segments| {
            let (version, marks) = self.changes.since(have);
            let values = gather(segments.values.tensors(), &marks)?;
            Ok(Update { version, marks: Marks(marks), parts: values.into_iter().collect() })
        };
        self.updates.read(caller, read).1
    }

    /// From what a trainer has to `values`, both of all segments, as far as it gets through the filter (PP-2).
    fn difference(&self, version: u64, values: &Tensor, has: &Tensor) -> Result<Update> {
        let all = values.f_sub(has)?.f_split_with_sizes(self.lengths.as_slice(), 0)?;
        let differs = |part: &Tensor| Ok(bool::try_from(part.f_any()?)?);
        let marks = all.iter().map(differs).collect::<Result<Vec<bool>>>()?;
        let Some(differences) = gather(&all, &marks)? else {
            return Ok(Update { version, marks: Marks(marks), parts: Vec::new() });
        };
        let (encoded, arrives) = encode(self.filter, &differences)
            .with_context(|| format!("the parameters of module `{}`", self.module))?;
        let has = has.f_split_with_sizes(self.lengths.as_slice(), 0)?;
        for (mut has, arrives) in has.into_iter().zip(spread(Some(&arrives), &self.lengths, &marks)?) {
            if let Some(arrives) = arrives {
                let _ = has.f_add_(&arrives)?;
            }
        }
        Ok(Update { version, marks: Marks(marks), parts: encoded.0 })
    }
}

impl Updated for Segments {
    /// The terms of a push, and its gradients by segment.
    type Contribution = (StepTerms, Gradients);
    /// With the factor of the learning rate: the trainers of a round are at the same step.
    type Mean = (f64, Gradients);
    type Averager = ();

    fn average((): &(), given: Vec<Self::Contribution>) -> Result<Option<Self::Mean>> {
        let Some((StepTerms { lr_factor, .. }, _)) = given.first() else { return Ok(None) };
        let lr_factor = *lr_factor;
        let given = given.into_iter().map(|(terms, gradients)| (terms.weight, gradients)).collect();
        Ok(Some((lr_factor, mean_over_trainers(given)?)))
    }

    fn version(&self) -> u64 {
        self.changes.version()
    }

    fn squares(&self, (_, mean): &Self::Mean) -> Result<f64> {
        squares(mean.iter().flatten())
    }

    fn scaled((lr_factor, mean): Self::Mean, factor: f64) -> Result<Self::Mean> {
        Ok((lr_factor, scaled(mean, factor)?))
    }

    fn apply(&mut self, (lr_factor, mean): Self::Mean) -> Result<()> {
        let optimizer = self.optimizer.as_mut().context("no optimizer was made for this range")?;
        let touched: Vec<bool> = mean.iter().map(Option::is_some).collect();
        self.values.update(&touched, |values| anyhow::Ok(optimizer.step(values, &mean, lr_factor)?))?;
        self.changes.mark(&touched);
        Ok(())
    }

    fn share(&self) -> Result<Segments> {
        Ok(Segments { values: self.values.in_place(), changes: self.changes.clone(), optimizer: None })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::optimizers::{OptimizerSpec, Sgd};

    const TRAINERS: [Rank; 3] = [Rank(1), Rank(2), Rank(3)];
    const LENGTHS: [i64; 4] = [300, 7, 1, 64];

    fn parts() -> Vec<PartOfParameter> {
        let part = |(name, length): (usize, i64)| PartOfParameter {
            name: name.to_string(),
            whole_name: format!("net.{name}"),
            shape: vec![length],
            from: 0,
            to: length as u64,
        };
        LENGTHS.into_iter().enumerate().map(part).collect()
    }

    fn range(consistency: Consistency, filter: Filter) -> ServerRange {
        let values = LENGTHS.map(|length| Tensor::f_randn([length], (Kind::Float, Device::Cpu)).unwrap());
        let holding = Holding { trainers: TRAINERS.to_vec(), consistency, filter };
        let range = ServerRange::new("net", parts(), values.into(), &holding).unwrap();
        let (momentum, dampening, weight_decay) = (0.0, 0.0, 0.0);
        let sgd = Sgd { lr: 0.1, momentum, dampening, weight_decay, nesterov: false, maximize: false };
        range.set_optimizer(&OptimizerSpec::Sgd(sgd).into()).unwrap();
        range
    }

    /// A gradient of one segment, and no other.
    fn gradient(filter: Filter, segment: usize, value: f64) -> PushedGradients {
        let given = Tensor::full([LENGTHS[segment]], value, (Kind::Float, Device::Cpu));
        let marks = (0..LENGTHS.len()).map(|at| at == segment).collect();
        PushedGradients { terms: 8.into(), marks, parts: encode(filter, &given).unwrap().0.0 }
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// As a trainer does it.
    fn take(has: &mut [Tensor], update: Update, filter: Filter) {
        let Some(length) = Some(marked_length(&LENGTHS, &update.marks.0)).filter(|length| *length > 0) else {
            return;
        };
        let values = decode(filter, update.parts, length).unwrap();
        for (has, values) in has.iter_mut().zip(spread(Some(&values), &LENGTHS, &update.marks.0).unwrap()) {
            let Some(values) = values else { continue };
            match filter {
                Filter::None => has.copy_(&values),
                _ => drop(has.f_add_(&values).unwrap()),
            }
        }
    }

    fn empty() -> Vec<Tensor> {
        LENGTHS.map(|length| Tensor::zeros([length], (Kind::Float, Device::Cpu))).into()
    }

    /// UL-2
    #[test]
    fn what_one_trainer_remembers_moves_nothing_for_another() {
        let holding =
            Holding { trainers: TRAINERS.to_vec(), consistency: Consistency::Hogwild, filter: Filter::None };
        let values = LENGTHS.map(|length| Tensor::ones([length], (Kind::Float, Device::Cpu)));
        let range = ServerRange::new("net", parts(), values.into(), &holding).unwrap();
        let adam = r#"{"type": "adam", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": false, "maximize": false}"#;
        range.set_optimizer(&serde_json::from_str::<OptimizerSpec>(adam).unwrap().into()).unwrap();
        let step = |trainer: usize, value: f64| {
            drop(wait(range.push(TRAINERS[trainer], 0, Some(gradient(Filter::None, 2, value)))).unwrap());
            range.pull(TRAINERS[0], None).unwrap().parts[0].double_value(&[307])
        };
        let moved = step(0, 1.0);
        assert!((moved - 0.9).abs() < 1e-6, "{moved}");
        assert_eq!(step(1, 0.0), moved);
    }

    /// PR-2
    #[test]
    fn a_shadow_is_what_its_trainer_has() {
        for filter in [Filter::Fp16, Filter::Bf16, Filter::Int8, Filter::TopK { share: 0.05 }] {
            let range = range(Consistency::Async, filter);
            let mut has = empty();
            drop(range.pull(TRAINERS[1], None).unwrap());
            let first = range.pull(TRAINERS[0], None).unwrap();
            let mut have = first.version;
            take(&mut has, first, Filter::None);
            for step in 0..20 {
                // Another trainer's, and its own.
                let others = gradient(filter, step % 3, 0.3);
                drop(wait(range.push(TRAINERS[1], 0, Some(others))).unwrap());
                let own = gradient(filter, 3, -0.7 + 0.1 * step as f64);
                let (_, update) = wait(range.push(TRAINERS[0], have, Some(own))).unwrap();
                have = update.version;
                take(&mut has, update, filter);
                let shadow = range.shadows[0].1.lock().unwrap().as_ref().unwrap().shallow_clone();
                assert_eq!(shadow, Tensor::cat(&has, 0), "{filter:?}");
            }
        }
    }

    /// PR-1
    #[test]
    fn a_reader_misses_no_update_though_nothing_orders_them() {
        let range = range(Consistency::Hogwild, Filter::None);
        let (mut has, done) = (empty(), AtomicBool::new(false));
        let mut have = None;
        let mut pull = || {
            let update = range.pull(TRAINERS[0], have).unwrap();
            have = Some(update.version);
            take(&mut has, update, Filter::None);
        };
        thread::scope(|scope| {
            let write = |trainer: usize| {
                let range = &range;
                move || {
                    for step in 0..300 {
                        let push = gradient(Filter::None, (step * trainer) % LENGTHS.len(), 1.0);
                        wait(range.push(TRAINERS[trainer], u64::MAX, Some(push))).unwrap();
                    }
                }
            };
            let writers = [scope.spawn(write(1)), scope.spawn(write(2))];
            let done = &done;
            scope.spawn(move || {
                writers.into_iter().for_each(|writer| writer.join().unwrap());
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                pull();
            }
            pull();
        });
        let mut exact = empty();
        take(&mut exact, range.pull(TRAINERS[0], None).unwrap(), Filter::None);
        assert_eq!(has, exact);
    }
}
