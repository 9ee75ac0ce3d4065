//! What updates parameters by their gradients, whichever rule it follows.

use std::sync::Arc;

use c10d::torch_message;
use tch::{Kind, TchError, Tensor, no_grad};

use super::average::Average;
use super::rule::{Impossible, Slot, Update};
use super::{Optimization, OptimizerError, OptimizerSpec};

/// An optimizer for some parameters, with its state.
#[derive(Debug)]
pub struct Optimizer {
    pub(super) name: &'static str,
    pub(super) rules: Vec<Rule>,
    /// One for each parameter, in the order in which they were given.
    pub(super) states: Vec<ParameterState>,
    /// The largest number that a gradient may have.
    clip_value: Option<f64>,
    /// The decay of the parameters' averages, if there are any.
    ema: Option<f64>,
}

/// How some of the parameters are updated.
#[derive(Debug)]
pub(super) struct Rule {
    pub spec: OptimizerSpec,
    pub slots: Vec<Slot>,
}

/// What it remembers of one parameter.
#[derive(Debug)]
pub(super) struct ParameterState {
    /// Its place among the optimizer's rules.
    pub rule: usize,
    /// In the order of the slots.
    pub tensors: Vec<Tensor>,
    /// Taken so far.
    pub steps: u64,
    pub average: Option<Average>,
    /// Cloned into each snapshot of the present tensors: more than one holder means that somebody reads them.
    pub readers: Arc<()>,
}

impl Optimizer {
    /// An optimizer for `params` (dense, f32 or f64), with its state made at once.
    ///
    /// # Errors
    /// An option that PyTorch refuses too; a parameter that is sparse or of another dtype.
    pub fn new(spec: OptimizerSpec, params: &[Tensor]) -> Result<Optimizer, OptimizerError> {
        Optimizer::grouped(&spec.into(), params.iter().map(|_| ""), params)
    }

    /// As [`Optimizer::new`], with each parameter's own options by its whole name.
    ///
    /// # Errors
    /// As there.
    pub fn grouped<N: AsRef<str>>(
        optimization: &Optimization,
        names: impl IntoIterator<Item = N>,
        params: &[Tensor],
    ) -> Result<Optimizer, OptimizerError> {
        let optimizer = optimization.spec.name();
        let rule = |spec: &OptimizerSpec| {
            spec.check().map_err(|problem| impossible(optimizer, problem))?;
            Ok(Rule { spec: spec.clone(), slots: spec.rule().slots() })
        };
        let rules = optimization.specs().map(rule).collect::<Result<Vec<_>, _>>()?;
        let state = |(index, (name, param)): (usize, (N, &Tensor))| {
            let kind = param.kind();
            if param.is_sparse() || !matches!(kind, Kind::Float | Kind::Double) {
                let what = if param.is_sparse() { "sparse".into() } else { format!("of {kind:?}") };
                return Err(OptimizerError::Parameter { optimizer, index, what });
            }
            let rule = optimization.group_of(name.as_ref()).map_or(0, |group| group + 1);
            ParameterState::new(rule, &rules[rule].slots, param, optimization.ema.is_some())
                .map_err(|error| torch(optimizer, index, &error))
        };
        let states = names.into_iter().zip(params).enumerate().map(state).collect::<Result<_, _>>()?;
        let &Optimization { clip_value, ema, .. } = optimization;
        Ok(Optimizer { name: optimizer, rules, states, clip_value, ema })
    }

    /// Updates `params` in place by `grads`, both in the order given to [`Optimizer::new`], at the learning rate times
    /// `lr_factor`. No gradient: the parameter is skipped (OP-2); its average follows it all the same.
    ///
    /// # Errors
    /// Another number of tensors, a gradient of another shape, a sparse gradient where the rule takes none. What came
    /// before the failing parameter has been updated.
    pub fn step(
        &mut self,
        params: &[Tensor],
        grads: &[Option<Tensor>],
        lr_factor: f64,
    ) -> Result<(), OptimizerError> {
        let optimizer = self.name;
        for (what, got) in [("parameters", params.len()), ("gradients", grads.len())] {
            if got != self.states.len() {
                return Err(OptimizerError::Count { optimizer, what, wanted: self.states.len(), got });
            }
        }
        for (index, (param, grad)) in params.iter().zip(grads).enumerate() {
            if let Some(grad) = grad {
                self.step_one(index, param, grad, lr_factor)?;
            }
            let averaged = no_grad(|| self.states[index].follow(param, self.ema));
            averaged.map_err(|error| torch(optimizer, index, &error))?;
        }
        Ok(())
    }

    fn step_one(
        &mut self,
        index: usize,
        param: &Tensor,
        grad: &Tensor,
        lr_factor: f64,
    ) -> Result<(), OptimizerError> {
        let optimizer = self.name;
        if grad.size() != param.size() {
            let (wanted, got) = (param.size(), grad.size());
            return Err(OptimizerError::Shape { optimizer, index, what: "gradient".into(), wanted, got });
        }
        let Rule { spec, .. } = &self.rules[self.states[index].rule];
        let lr = spec.lr() * lr_factor;
        if let Some(why) = grad.is_sparse().then(|| spec.refuses_sparse()).flatten() {
            return Err(OptimizerError::Sparse { optimizer, index, why });
        }
        no_grad(|| self.update(index, param, grad, lr)).map_err(|error| torch(optimizer, index, &error))
    }

    /// The averages become the parameters, and the parameters the averages.
    ///
    /// # Errors
    /// What libtorch refuses (memory).
    pub fn swap_averages(&mut self, params: &[Tensor]) -> Result<(), OptimizerError> {
        for (index, (state, param)) in self.states.iter_mut().zip(params).enumerate() {
            no_grad(|| state.swap_average(param)).map_err(|error| torch(self.name, index, &error))?;
        }
        Ok(())
    }

    fn update(&mut self, index: usize, param: &Tensor, grad: &Tensor, lr: f64) -> Result<(), TchError> {
        let state = &mut self.states[index];
        state.leave_to_readers()?;
        state.steps += 1;
        let Rule { spec, .. } = &self.rules[state.rule];
        let grad = match self.clip_value {
            Some(limit) => grad.f_clamp(-limit, limit)?,
            None => grad.shallow_clone(),
        };
        let grad = if spec.maximizes() { grad.f_neg()? } else { grad };
        let (slots, step) = (state.tensors.as_mut_slice(), state.steps);
        spec.rule().update(Update { param: param.shallow_clone(), grad, slots, step, lr })
    }
}

impl ParameterState {
    pub fn new(
        rule: usize,
        slots: &[Slot],
        param: &Tensor,
        averaged: bool,
    ) -> Result<ParameterState, TchError> {
        let first = |slot: &Slot| match slot.per_element {
            true => no_grad(|| param.f_full_like(slot.first)),
            false => Tensor::f_full([] as [i64; 0], slot.first, (Kind::Float, tch::Device::Cpu)),
        };
        let tensors = slots.iter().map(first).collect::<Result<_, _>>()?;
        let average = averaged.then(|| Average::of(param)).transpose()?;
        Ok(ParameterState { rule, tensors, steps: 0, average, readers: Arc::new(()) })
    }

    /// Where somebody still reads the tensors, they are theirs from now on, and the next step writes copies.
    fn leave_to_readers(&mut self) -> Result<(), TchError> {
        // Unlike the count this also orders what the last reader did before what is written now.
        if Arc::get_mut(&mut self.readers).is_none() {
            let copies = self.tensors.iter().map(Tensor::f_detach_copy).collect::<Result<_, _>>();
            self.tensors = copies?;
            if let Some(average) = &mut self.average {
                average.mean = average.mean.f_detach_copy()?;
            }
            self.readers = Arc::new(());
        }
        Ok(())
    }

    fn follow(&mut self, param: &Tensor, decay: Option<f64>) -> Result<(), TchError> {
        let Some(decay) = decay else { return Ok(()) };
        self.leave_to_readers()?;
        self.average.as_mut().map_or(Ok(()), |average| average.follow(param, decay))
    }

    fn swap_average(&mut self, param: &Tensor) -> Result<(), TchError> {
        self.leave_to_readers()?;
        self.average.as_mut().map_or(Ok(()), |average| average.swap(param))
    }
}

fn impossible(optimizer: &'static str, impossible: Impossible) -> OptimizerError {
    let Impossible { option, value, problem, hint } = impossible;
    OptimizerError::Option { optimizer, option, value, problem, hint }
}

pub(super) fn torch(optimizer: &'static str, index: usize, error: &TchError) -> OptimizerError {
    OptimizerError::Torch { optimizer, index, message: torch_message(error) }
}
