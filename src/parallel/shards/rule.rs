//! Updates of single rows, by PyTorch's rules for sparse gradients. The other rows are neither read nor written; they
//! are not even in memory before they are used, which is why these rules work on slices of the table and not, as
//! [`autograd::optimizer`](crate::autograd::optimizer)'s, on tensors.

use anyhow::{Result, bail};

use crate::job::optimizer::OptimizerSpec;

/// What updates a table, and what it remembers of each row.
pub(super) struct Rule {
    kind: Kind,
    lr: f64,
    /// -1 where the job maximizes: each rule is odd in the gradient.
    sign: f32,
    /// As long as the table, one after the other, all from one value.
    slots: Vec<Vec<f32>>,
    /// Steps so far, of the table as a whole: also those that touched no row of this rank.
    steps: u64,
}

enum Kind {
    Sgd,
    /// Duchi, Hazan and Singer, 2011.
    Adagrad {
        lr_decay: f64,
        first: f32,
        eps: f32,
    },
    /// torch.optim.SparseAdam: moments of a row change only when it has a gradient, their correction counts all steps.
    Adam {
        betas: [f64; 2],
        eps: f32,
    },
}

impl Rule {
    /// For a table of so many numbers.
    ///
    /// # Errors
    /// The optimizer, or one of its options, updates more than the rows that have gradients.
    pub fn new(spec: &OptimizerSpec, numbers: usize) -> Result<Rule> {
        if let Some(why) = spec.refuses_rows() {
            bail!("{}{why} cannot update single rows", spec.name());
        }
        let (kind, lr, maximize) = match *spec {
            OptimizerSpec::Sgd { lr, maximize, .. } => (Kind::Sgd, lr, maximize),
            OptimizerSpec::Adagrad { lr, lr_decay, initial_accumulator_value, eps, maximize, .. } => {
                let first = initial_accumulator_value as f32;
                (Kind::Adagrad { lr_decay, first, eps: eps as f32 }, lr, maximize)
            }
            OptimizerSpec::Adam { lr, betas, eps, maximize, .. } => {
                (Kind::Adam { betas, eps: eps as f32 }, lr, maximize)
            }
            _ => unreachable!("the others were refused"),
        };
        let slots = match kind {
            Kind::Sgd => vec![],
            Kind::Adagrad { first, .. } => vec![vec![first; numbers]],
            Kind::Adam { .. } => vec![vec![0.0; numbers]; 2],
        };
        Ok(Rule { kind, lr, sign: if maximize { -1.0 } else { 1.0 }, slots, steps: 0 })
    }

    /// The table has become longer.
    pub fn grow(&mut self, numbers: usize) {
        let first = match self.kind {
            Kind::Adagrad { first, .. } => first,
            Kind::Sgd | Kind::Adam { .. } => 0.0,
        };
        self.slots.iter_mut().for_each(|slot| slot.resize(numbers, first));
    }

    /// One step, of which rows are updated next.
    pub fn begin(&mut self) -> Step<'_> {
        self.steps += 1;
        let (step, lr) = (self.steps as f64, self.lr);
        let rate = match self.kind {
            Kind::Sgd => lr,
            Kind::Adagrad { lr_decay, .. } => lr / (1.0 + (step - 1.0) * lr_decay),
            Kind::Adam { betas: [first, second], .. } => {
                lr * (1.0 - second.powf(step)).sqrt() / (1.0 - first.powf(step))
            }
        };
        Step { kind: &self.kind, rate: self.sign * rate as f32, slots: &mut self.slots }
    }
}

pub(super) struct Step<'a> {
    kind: &'a Kind,
    /// What a row moves by for each unit that the rule gives, against the gradient.
    rate: f32,
    slots: &'a mut [Vec<f32>],
}

impl Step<'_> {
    /// Updates the row that starts at number `at` of the table.
    pub fn row(&mut self, at: usize, row: &mut [f32], gradient: &[f32]) {
        let range = at..at + row.len();
        let rate = self.rate;
        match (self.kind, &mut *self.slots) {
            (Kind::Sgd, _) => {
                for (w, g) in row.iter_mut().zip(gradient) {
                    *w -= rate * g;
                }
            }
            (Kind::Adagrad { eps, .. }, [sums, ..]) => {
                for ((w, sum), g) in row.iter_mut().zip(&mut sums[range]).zip(gradient) {
                    *sum += g * g;
                    *w -= rate * (g / (sum.sqrt() + eps));
                }
            }
            (Kind::Adam { betas, eps }, [means, squares]) => {
                let [mean_weight, square_weight] = betas.map(|beta| (1.0 - beta) as f32);
                let moments = means[range.clone()].iter_mut().zip(&mut squares[range]);
                for ((w, (mean, square)), g) in row.iter_mut().zip(moments).zip(gradient) {
                    *mean += (g - *mean) * mean_weight;
                    *square += (g * g - *square) * square_weight;
                    *w -= rate * (*mean / (square.sqrt() + eps));
                }
            }
            (Kind::Adagrad { .. } | Kind::Adam { .. }, _) => unreachable!("made with their slots"),
        }
    }
}
