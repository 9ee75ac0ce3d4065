//! The optimizers a job can name, with PyTorch's option names and defaults.

use serde::{Deserialize, Serialize};

/// What updates the parameters, at their owner. Travels in calls as JSON, hence `Deserialize`.
///
/// Every option means what it means in `torch.optim`; the defaults are PyTorch's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OptimizerSpec {
    Sgd {
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool,
        maximize: bool,
    },
    Adam {
        lr: f64,
        betas: [f64; 2],
        eps: f64,
        weight_decay: f64,
        amsgrad: bool,
        maximize: bool,
    },
    AdamW {
        lr: f64,
        betas: [f64; 2],
        eps: f64,
        weight_decay: f64,
        amsgrad: bool,
        maximize: bool,
    },
    Adagrad {
        lr: f64,
        lr_decay: f64,
        weight_decay: f64,
        initial_accumulator_value: f64,
        eps: f64,
        maximize: bool,
    },
    Adadelta {
        lr: f64,
        rho: f64,
        eps: f64,
        weight_decay: f64,
        maximize: bool,
    },
    Adamax {
        lr: f64,
        betas: [f64; 2],
        eps: f64,
        weight_decay: f64,
        maximize: bool,
    },
    RmsProp {
        lr: f64,
        alpha: f64,
        eps: f64,
        weight_decay: f64,
        momentum: f64,
        centered: bool,
        maximize: bool,
    },
    Rprop {
        lr: f64,
        etas: [f64; 2],
        step_sizes: [f64; 2],
        maximize: bool,
    },
}

impl OptimizerSpec {
    /// The learning rate, which every optimizer has.
    pub fn lr_mut(&mut self) -> &mut f64 {
        use OptimizerSpec::{Adadelta, Adagrad, Adam, AdamW, Adamax, RmsProp, Rprop, Sgd};
        match self {
            Sgd { lr, .. } | Adam { lr, .. } | AdamW { lr, .. } | Adagrad { lr, .. } => lr,
            Adadelta { lr, .. } | Adamax { lr, .. } | RmsProp { lr, .. } | Rprop { lr, .. } => lr,
        }
    }
    /// The type as a job names it.
    pub fn name(&self) -> &'static str {
        match self {
            OptimizerSpec::Sgd { .. } => "sgd",
            OptimizerSpec::Adam { .. } => "adam",
            OptimizerSpec::AdamW { .. } => "adamw",
            OptimizerSpec::Adagrad { .. } => "adagrad",
            OptimizerSpec::Adadelta { .. } => "adadelta",
            OptimizerSpec::Adamax { .. } => "adamax",
            OptimizerSpec::RmsProp { .. } => "rmsprop",
            OptimizerSpec::Rprop { .. } => "rprop",
        }
    }

    /// Why a sparse gradient cannot be applied, if so: what stands behind the name in a message.
    pub fn refuses_sparse(&self) -> Option<&'static str> {
        match *self {
            OptimizerSpec::Sgd { momentum, weight_decay, .. } => match () {
                () if momentum != 0.0 => Some(" with momentum"),
                () if weight_decay != 0.0 => Some(" with weight decay"),
                () => None,
            },
            OptimizerSpec::Adagrad { weight_decay, .. } => {
                (weight_decay != 0.0).then_some(" with weight decay")
            }
            _ => Some(""),
        }
    }

    /// Why it cannot update single rows of a table, the others left as they are, if so: what stands behind the name in a
    /// message.
    pub fn refuses_rows(&self) -> Option<&'static str> {
        match *self {
            // The lazy variant, torch.optim.SparseAdam, which has neither.
            OptimizerSpec::Adam { amsgrad: true, .. } => Some(" with amsgrad"),
            OptimizerSpec::Adam { weight_decay, .. } => (weight_decay != 0.0).then_some(" with weight decay"),
            _ => self.refuses_sparse(),
        }
    }
}
