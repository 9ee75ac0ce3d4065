//! The optimizers of `torch.optim` that a job can name, with PyTorch's numbers.
//!
//! They run at the owner of the parameters, in place and without recording. Each rule follows `_single_tensor_*` of
//! torch 2.11 operation by operation where libtorch's bindings allow; where they lack a factor (`alpha=`, `value=`)
//! it is applied by another operation, which changes the last bit at most.
//!
//! Invariants:
//!
//! * O-1: One [`Optimizer`] is used by one thread. Several may update the same parameters at the same time, without
//!   locks, which is what Hogwild is; each with its own state.
//! * O-2: A parameter without a gradient is not touched, nor is its state or its count of steps.

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod ops;
mod rmsprop;
mod rprop;
mod sgd;

use c10d::torch_message;
use tch::{Kind, TchError, Tensor, no_grad};

use crate::job::optimizer::OptimizerSpec;

/// What updates parameters by their gradients.
#[derive(Debug)]
pub struct Optimizer {
    spec: OptimizerSpec,
    /// One for each parameter, in the order in which they were given.
    states: Vec<State>,
}

/// What the rule remembers of one parameter.
#[derive(Debug)]
struct State {
    /// By the names of PyTorch's `state_dict`.
    slots: Vec<(&'static str, Tensor)>,
    /// Taken so far.
    steps: u64,
}

/// One parameter in one step, as a rule sees it.
struct Update<'a> {
    param: Tensor,
    /// The gradient; negated where the job maximizes.
    grad: Tensor,
    slots: &'a mut [(&'static str, Tensor)],
    /// Counted from 1.
    step: u64,
    lr: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    #[error("optimizer {optimizer}: {option} = {value} is not possible\n  hint: {hint}")]
    Option { optimizer: &'static str, option: &'static str, value: String, hint: &'static str },

    #[error(
        "optimizer {optimizer}: parameter {index} is {what}\n  hint: it updates dense tensors of f32 or f64"
    )]
    Parameter { optimizer: &'static str, index: usize, what: String },

    #[error("optimizer {optimizer}: {got} {what} came for {wanted} parameters")]
    Count { optimizer: &'static str, what: &'static str, wanted: usize, got: usize },

    #[error("optimizer {optimizer}: parameter {index} has shape {wanted:?}, its {what} has {got:?}")]
    Shape { optimizer: &'static str, index: usize, what: String, wanted: Vec<i64>, got: Vec<i64> },

    #[error(
        "optimizer {optimizer}: parameter {index} has a sparse gradient, which it cannot apply{why}\n  hint: use sgd without momentum and weight decay, adagrad without weight decay, or `sparse = false` at the embedding"
    )]
    Sparse { optimizer: &'static str, index: usize, why: &'static str },

    #[error("optimizer {optimizer}, parameter {index}: {message}")]
    Torch { optimizer: &'static str, index: usize, message: String },
}

impl Optimizer {
    /// An optimizer for `params` (dense, f32 or f64), with its state made at once.
    ///
    /// # Errors
    /// An option that PyTorch refuses too; a parameter that is sparse or of another dtype.
    pub fn new(spec: OptimizerSpec, params: &[Tensor]) -> Result<Optimizer, OptimizerError> {
        check(&spec)?;
        let optimizer = spec.name();
        let state = |(index, param): (usize, &Tensor)| {
            let kind = param.kind();
            if param.is_sparse() || !matches!(kind, Kind::Float | Kind::Double) {
                let what = if param.is_sparse() { "sparse".into() } else { format!("of {kind:?}") };
                return Err(OptimizerError::Parameter { optimizer, index, what });
            }
            let slot = |(name, fill)| Ok((name, no_grad(|| param.f_full_like(fill))?));
            let slots = slots(&spec).into_iter().map(slot).collect::<Result<_, TchError>>();
            let slots = slots.map_err(|error| torch(optimizer, index, &error))?;
            Ok(State { slots, steps: 0 })
        };
        let states = params.iter().enumerate().map(state).collect::<Result<_, _>>()?;
        Ok(Optimizer { spec, states })
    }

    /// Updates `params` in place by `grads`, both in the order given to [`Optimizer::new`]. No gradient: the
    /// parameter is skipped (O-2).
    ///
    /// # Errors
    /// Another number of tensors, a gradient of another shape, a sparse gradient where the rule takes none. What came
    /// before the failing parameter has been updated.
    pub fn step(&mut self, params: &[Tensor], grads: &[Option<Tensor>]) -> Result<(), OptimizerError> {
        let optimizer = self.spec.name();
        for (what, got) in [("parameters", params.len()), ("gradients", grads.len())] {
            if got != self.states.len() {
                return Err(OptimizerError::Count { optimizer, what, wanted: self.states.len(), got });
            }
        }
        for (index, (param, grad)) in params.iter().zip(grads).enumerate() {
            let Some(grad) = grad else { continue };
            if grad.size() != param.size() {
                let (wanted, got) = (param.size(), grad.size());
                return Err(OptimizerError::Shape { optimizer, index, what: "gradient".into(), wanted, got });
            }
            if let Some(why) = grad.is_sparse().then(|| self.spec.refuses_sparse()).flatten() {
                return Err(OptimizerError::Sparse { optimizer, index, why });
            }
            no_grad(|| self.update(index, param, grad)).map_err(|error| torch(optimizer, index, &error))?;
        }
        Ok(())
    }

    fn update(&mut self, index: usize, param: &Tensor, grad: &Tensor) -> Result<(), TchError> {
        let state = &mut self.states[index];
        state.steps += 1;
        let step = state.steps;
        let grad = if maximizes(&self.spec) { grad.f_neg()? } else { grad.shallow_clone() };
        let update =
            Update { param: param.shallow_clone(), grad, slots: &mut state.slots, step, lr: lr(&self.spec) };
        match self.spec {
            OptimizerSpec::Sgd { momentum, dampening, weight_decay, nesterov, .. } => {
                sgd::update(update, momentum, dampening, weight_decay, nesterov)
            }
            OptimizerSpec::Adam { betas, eps, weight_decay, .. } => {
                adam::update(update, betas, eps, adam::Decay::InGradient(weight_decay))
            }
            OptimizerSpec::AdamW { betas, eps, weight_decay, .. } => {
                adam::update(update, betas, eps, adam::Decay::OfParameter(weight_decay))
            }
            OptimizerSpec::Adagrad { lr_decay, weight_decay, eps, .. } => {
                adagrad::update(update, lr_decay, weight_decay, eps)
            }
            OptimizerSpec::Adadelta { rho, eps, weight_decay, .. } => {
                adadelta::update(update, rho, eps, weight_decay)
            }
            OptimizerSpec::Adamax { betas, eps, weight_decay, .. } => {
                adamax::update(update, betas, eps, weight_decay)
            }
            OptimizerSpec::RmsProp { alpha, eps, weight_decay, momentum, centered, .. } => {
                rmsprop::update(update, alpha, eps, weight_decay, momentum, centered)
            }
            OptimizerSpec::Rprop { etas, step_sizes, .. } => rprop::update(update, etas, step_sizes),
        }
    }
}

/// Names and initial values of what a rule remembers for each parameter.
fn slots(spec: &OptimizerSpec) -> Vec<(&'static str, f64)> {
    match *spec {
        OptimizerSpec::Sgd { momentum, .. } if momentum != 0.0 => vec![("momentum_buffer", 0.0)],
        OptimizerSpec::Sgd { .. } => vec![],
        OptimizerSpec::Adam { amsgrad, .. } | OptimizerSpec::AdamW { amsgrad, .. } => {
            let mut slots = vec![("exp_avg", 0.0), ("exp_avg_sq", 0.0), ("max_exp_avg_sq", 0.0)];
            slots.truncate(if amsgrad { 3 } else { 2 });
            slots
        }
        OptimizerSpec::Adagrad { initial_accumulator_value, .. } => vec![("sum", initial_accumulator_value)],
        OptimizerSpec::Adadelta { .. } => vec![("square_avg", 0.0), ("acc_delta", 0.0)],
        OptimizerSpec::Adamax { .. } => vec![("exp_avg", 0.0), ("exp_inf", 0.0)],
        OptimizerSpec::RmsProp { momentum, centered, .. } => {
            let mut slots = vec![("square_avg", 0.0)];
            slots.extend((momentum > 0.0).then_some(("momentum_buffer", 0.0)));
            slots.extend(centered.then_some(("grad_avg", 0.0)));
            slots
        }
        OptimizerSpec::Rprop { lr, .. } => vec![("prev", 0.0), ("step_size", lr)],
    }
}

fn lr(spec: &OptimizerSpec) -> f64 {
    match *spec {
        OptimizerSpec::Sgd { lr, .. }
        | OptimizerSpec::Adam { lr, .. }
        | OptimizerSpec::AdamW { lr, .. }
        | OptimizerSpec::Adagrad { lr, .. }
        | OptimizerSpec::Adadelta { lr, .. }
        | OptimizerSpec::Adamax { lr, .. }
        | OptimizerSpec::RmsProp { lr, .. }
        | OptimizerSpec::Rprop { lr, .. } => lr,
    }
}

fn maximizes(spec: &OptimizerSpec) -> bool {
    match *spec {
        OptimizerSpec::Sgd { maximize, .. }
        | OptimizerSpec::Adam { maximize, .. }
        | OptimizerSpec::AdamW { maximize, .. }
        | OptimizerSpec::Adagrad { maximize, .. }
        | OptimizerSpec::Adadelta { maximize, .. }
        | OptimizerSpec::Adamax { maximize, .. }
        | OptimizerSpec::RmsProp { maximize, .. }
        | OptimizerSpec::Rprop { maximize, .. } => maximize,
    }
}

/// PyTorch's own checks of the options; a spec may have come from another rank.
fn check(spec: &OptimizerSpec) -> Result<(), OptimizerError> {
    let optimizer = spec.name();
    let require = |fits: bool, option: &'static str, value: String, hint: &'static str| match fits {
        true => Ok(()),
        false => Err(OptimizerError::Option { optimizer, option, value, hint }),
    };
    let at_least_0 = |option, value: f64| {
        require(value.is_finite() && value >= 0.0, option, value.to_string(), "it is a number of at least 0")
    };
    let fraction = |option, value: f64| {
        require((0.0..1.0).contains(&value), option, value.to_string(), "it is at least 0 and less than 1")
    };
    at_least_0("lr", lr(spec))?;
    match *spec {
        OptimizerSpec::Sgd { momentum, dampening, weight_decay, nesterov, .. } => {
            at_least_0("momentum", momentum)?;
            at_least_0("weight_decay", weight_decay)?;
            require(dampening.is_finite(), "dampening", dampening.to_string(), "it is a number")?;
            let fits = !nesterov || (momentum > 0.0 && dampening == 0.0);
            require(fits, "nesterov", nesterov.to_string(), "it needs a momentum and no dampening")
        }
        OptimizerSpec::Adam { betas, eps, weight_decay, .. }
        | OptimizerSpec::AdamW { betas, eps, weight_decay, .. }
        | OptimizerSpec::Adamax { betas, eps, weight_decay, .. } => {
            fraction("betas[0]", betas[0])?;
            fraction("betas[1]", betas[1])?;
            at_least_0("eps", eps)?;
            at_least_0("weight_decay", weight_decay)
        }
        OptimizerSpec::Adagrad { lr_decay, weight_decay, initial_accumulator_value, eps, .. } => {
            at_least_0("lr_decay", lr_decay)?;
            at_least_0("weight_decay", weight_decay)?;
            at_least_0("initial_accumulator_value", initial_accumulator_value)?;
            at_least_0("eps", eps)
        }
        OptimizerSpec::Adadelta { rho, eps, weight_decay, .. } => {
            require((0.0..=1.0).contains(&rho), "rho", rho.to_string(), "it is at least 0 and at most 1")?;
            at_least_0("eps", eps)?;
            at_least_0("weight_decay", weight_decay)
        }
        OptimizerSpec::RmsProp { alpha, eps, weight_decay, momentum, .. } => {
            at_least_0("alpha", alpha)?;
            at_least_0("eps", eps)?;
            at_least_0("weight_decay", weight_decay)?;
            at_least_0("momentum", momentum)
        }
        OptimizerSpec::Rprop { etas: [minus, plus], step_sizes, .. } => {
            let fits = 0.0 < minus && minus < 1.0 && 1.0 < plus && plus.is_finite();
            require(fits, "etas", format!("[{minus}, {plus}]"), "the first is below 1, the second above")?;
            at_least_0("step_sizes[0]", step_sizes[0])?;
            at_least_0("step_sizes[1]", step_sizes[1])
        }
    }
}

fn torch(optimizer: &'static str, index: usize, error: &TchError) -> OptimizerError {
    OptimizerError::Torch { optimizer, index, message: torch_message(error) }
}
