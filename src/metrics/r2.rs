//! The part of the targets' variance that the output explains: scikit-learn's `r2_score`.

use tch::{Kind, Tensor};

use super::batch::{self, to_vec};
use super::error::Fault;
use super::layout::{Takes, Unfit};
use super::{Accumulate, Measures, Mode, Signal, Value, state};

metric! {
    /// The part of the targets' variance that the output explains: the mean over the elements of a sample. 1 where the targets of an element are all the same and it is right, 0 where it is not; NaN of fewer than two samples.
    pub struct R2 {}
}

/// The moments of each element of a sample, over all samples.
#[derive(Clone, Default)]
struct Moments {
    samples: i64,
    /// The means of the targets.
    means: Vec<f64>,
    /// Squares of what targets differ from their mean, added up.
    deviations: Vec<f64>,
    /// Squares of what outputs differ from targets, added up.
    errors: Vec<f64>,
}

impl Moments {
    fn of(output: &Tensor, target: &Tensor) -> Result<Moments, Fault> {
        let (outputs, targets) = batch::numbers(output, target)?;
        let samples = output.size()[0];
        if samples == 0 {
            return Ok(Moments::default());
        }
        let rows = [samples, outputs.numel() as i64 / samples];
        let (outputs, targets) = (outputs.f_reshape(rows)?, targets.f_reshape(rows)?);
        // From the first one, so that equal targets deviate by exactly 0.
        let first = targets.f_select(0, 0)?;
        let shifted = targets.f_sub(&first)?;
        let mean = shifted.f_mean_dim(0, false, Kind::Double)?;
        let squares = |of: Tensor| -> Result<Vec<f64>, Fault> {
            Ok(to_vec(&of.f_square()?.f_sum_dim_intlist(0, false, Kind::Double)?)?)
        };
        Ok(Moments {
            samples,
            means: to_vec(&first.f_add(&mean)?)?,
            deviations: squares(shifted.f_sub(&mean)?)?,
            errors: squares(outputs.f_sub(&targets)?)?,
        })
    }

    /// Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979),
    /// equations 2.1.
    fn add(&mut self, other: Moments) -> Result<(), Fault> {
        if self.samples == 0 {
            *self = other;
            return Ok(());
        }
        if other.samples == 0 {
            return Ok(());
        }
        let samples = state::added(self.samples, other.samples)?;
        let part = other.samples as f64 / samples as f64;
        for (index, mean) in self.means.iter_mut().enumerate() {
            let apart = other.means[index] - *mean;
            *mean += apart * part;
            self.deviations[index] += other.deviations[index] + apart * apart * self.samples as f64 * part;
            self.errors[index] += other.errors[index];
        }
        self.samples = samples;
        Ok(())
    }
}

/// 1 less the share of the errors; where nothing deviates, as scikit-learn has it.
fn explained(deviation: f64, error: f64) -> f64 {
    match (deviation == 0.0, error) {
        (true, error) if error > 0.0 => 0.0,
        (true, 0.0) => 1.0,
        _ => 1.0 - error / deviation,
    }
}

impl Accumulate for Moments {
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<(), Fault> {
        let batch = Moments::of(output, target)?;
        let (known, came) = (self.means.len(), batch.means.len());
        if self.samples > 0 && batch.samples > 0 && known != came {
            let problem = format!("a sample has {came} numbers, and {known} in the batches before");
            return Err(Unfit::new(problem, "it is a mean over the elements of samples of one shape").into());
        }
        self.add(batch)
    }

    fn state(&self) -> Result<Vec<Tensor>, Fault> {
        let rows = [&self.means, &self.deviations, &self.errors];
        let rows = rows.map(|row| Ok(Tensor::f_from_slice(row)?));
        let samples = Ok(Tensor::f_from_slice(&[self.samples])?);
        std::iter::once(samples).chain(rows).collect()
    }

    fn merge(&mut self, state: Vec<Tensor>) -> Result<(), Fault> {
        let [samples, means, deviations, errors] = state::tensors(state)?;
        let samples = state::counts(&samples, 1)?[0];
        let elements = match (samples, self.samples) {
            (0, _) => 0,
            (_, 0) => state::row(&means, Kind::Double)?,
            _ => self.means.len(),
        };
        self.add(Moments {
            samples,
            means: state::numbers(&means, Kind::Double, elements)?,
            deviations: state::sums(&deviations, elements)?,
            errors: state::sums(&errors, elements)?,
        })
    }

    fn value(&self) -> Result<Value, Fault> {
        if self.samples < 2 {
            return Ok(Value::Number(f64::NAN));
        }
        let each = self.deviations.iter().zip(&self.errors);
        let sum: f64 = each.map(|(deviation, error)| explained(*deviation, *error)).sum();
        Ok(Value::Number(sum / self.means.len() as f64))
    }
}

impl Measures for R2 {
    fn name(&self) -> String {
        "r2".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Numbers.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Moments::default())
    }
}
