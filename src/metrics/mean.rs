//! A mean over all elements, and what follows from one: most metrics are that.

use tch::{Kind, Tensor};

use super::error::Fault;
use super::{Accumulate, Value, batch, state};

/// What a batch adds.
pub(super) struct Terms {
    /// A count of hits, which f64 has exactly, or NaN where scores are.
    pub sum: f64,
    pub count: i64,
}

pub(super) struct Mean<O> {
    options: O,
    terms: fn(&O, &Tensor, &Tensor) -> Result<Terms, Fault>,
    /// The most that one element adds.
    most: f64,
    figure: fn(f64) -> f64,
    sum: f64,
    count: i64,
}

impl<O> Mean<O> {
    pub(super) fn new(options: O, terms: fn(&O, &Tensor, &Tensor) -> Result<Terms, Fault>) -> Mean<O> {
        Mean { options, terms, most: f64::INFINITY, figure: |mean| mean, sum: 0.0, count: 0 }
    }

    /// Each element adds 0 or 1.
    pub(super) fn of_hits(self) -> Mean<O> {
        Mean { most: 1.0, ..self }
    }

    /// What is told of the mean.
    pub(super) fn told_as(self, figure: fn(f64) -> f64) -> Mean<O> {
        Mean { figure, ..self }
    }
}

impl<O: Send> Accumulate for Mean<O> {
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<(), Fault> {
        let Terms { sum, count } = (self.terms)(&self.options, output, target)?;
        self.count = state::added(self.count, count)?;
        self.sum += sum;
        Ok(())
    }

    fn state(&self) -> Result<Vec<Tensor>, Fault> {
        Ok(vec![Tensor::f_from_slice(&[self.sum])?, Tensor::f_from_slice(&[self.count])?])
    }

    fn merge(&mut self, state: Vec<Tensor>) -> Result<(), Fault> {
        let [sum, count] = state::tensors(state)?;
        let (sum, count) = (state::sums(&sum, 1)?[0], state::counts(&count, 1)?[0]);
        if sum > 0.0 && (count == 0 || sum > self.most * count as f64) {
            return Err(Fault::State(format!("adds up to {sum}, which {count} elements cannot")));
        }
        self.count = state::added(self.count, count)?;
        self.sum += sum;
        Ok(())
    }

    fn value(&self) -> Result<Value, Fault> {
        Ok(Value::Number((self.figure)(self.sum / self.count as f64)))
    }
}

/// The squared errors of a batch.
pub(super) fn squares<O>(_: &O, output: &Tensor, target: &Tensor) -> Result<Terms, Fault> {
    let (output, target) = batch::numbers(output, target)?;
    let sum = output.f_sub(&target)?.f_square()?.f_sum(Kind::Double)?.f_double_value(&[])?;
    Ok(Terms { sum, count: output.numel() as i64 })
}
