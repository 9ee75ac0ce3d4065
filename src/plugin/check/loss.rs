//! A loss's check: it computes on random inputs, and its gradient is that of its value.

use serde::Serialize;
use tch::{Kind, Tensor};

use super::example::{Example, fitting};
use super::{Request, Sketch, measure};
use crate::plugin::component::Component;
use crate::plugin::dtype::is_floating;
use crate::plugin::error::PluginError;
use crate::plugin::loss::Loss;

/// Elements at which finite differences are taken, spread over the outputs.
const MOST_PROBES: usize = 200;

#[derive(Clone, Debug, Serialize)]
pub struct LossReport {
    /// Whether it gives its gradient itself, as numbers.
    pub raw: bool,
    /// What it was given, as `float32[8, 10]`.
    pub outputs: Vec<String>,
    pub targets: Vec<String>,
    pub loss: f64,
    pub metrics: Vec<(String, f64)>,
    /// Median and longest of a call, without metrics.
    pub compute_us: f64,
    pub longest_us: f64,
    pub memory_bytes: u64,
    /// `None` where the loss is not finite on random inputs.
    pub gradient: Option<GradientReport>,
}

/// The gradient against central finite differences.
#[derive(Clone, Debug, Serialize)]
pub struct GradientReport {
    pub agrees: bool,
    /// The largest difference, as a part of the largest entry of either.
    pub largest_error: f64,
    pub tolerance: f64,
    /// Where the difference is largest: the output, and its element in row-major order.
    pub output: usize,
    pub element: usize,
    pub given: f64,
    pub found: f64,
    /// The dtype that it was compared in.
    pub dtype: &'static str,
    pub probes: usize,
}

pub fn check(component: &Component, request: &Request) -> Result<LossReport, PluginError> {
    let mut loss = Loss::open(component, request.config, request.limits)?;
    let (outputs, targets) = fitting(request, |example| {
        loss.compute(&leaves(&example.outputs), &example.targets, false).map(drop)
    })?;
    let example = Example::random(&outputs, &targets, None);
    let leaves = leaves(&example.outputs);
    let value = loss.compute(&leaves, &example.targets, true)?;
    let (compute_us, longest_us) = measure(|_| loss.compute(&leaves, &example.targets, false).map(drop))?;
    let number = value.loss.double_value(&[]);
    let gradient = if number.is_finite() { Some(gradient(&mut loss, &outputs, &targets)?) } else { None };
    let names = |sketches: &[Sketch]| sketches.iter().map(Sketch::to_string).collect();
    Ok(LossReport {
        raw: loss.is_raw(),
        outputs: names(&outputs),
        targets: names(&targets),
        loss: number,
        metrics: value.metrics,
        compute_us,
        longest_us,
        memory_bytes: loss.memory_bytes(),
        gradient,
    })
}

fn leaves(outputs: &[Tensor]) -> Vec<Tensor> {
    let leaf = |output: &Tensor| match output.kind() {
        kind if is_floating(kind) => output.copy().set_requires_grad(true),
        _ => output.shallow_clone(),
    };
    outputs.iter().map(leaf).collect()
}

/// Compares in float64, or in float32 for a loss that takes nothing else.
fn gradient(loss: &mut Loss, outputs: &[Sketch], targets: &[Sketch]) -> Result<GradientReport, PluginError> {
    let double = Example::random(outputs, targets, Some(Kind::Double));
    compare(loss, &double, "float64", 1e-5, 1e-5).or_else(|_| {
        compare(loss, &Example::random(outputs, targets, Some(Kind::Float)), "float32", 1e-2, 2e-2)
    })
}

fn compare(
    loss: &mut Loss,
    example: &Example,
    dtype: &'static str,
    step: f64,
    tolerance: f64,
) -> Result<GradientReport, PluginError> {
    let leaves = leaves(&example.outputs);
    let value = loss.compute(&leaves, &example.targets, false)?.loss;
    if value.requires_grad() {
        value.backward();
    }
    let elements: usize = leaves.iter().filter(|leaf| leaf.requires_grad()).map(Tensor::numel).sum();
    let stride = elements.div_ceil(MOST_PROBES).max(1);
    let mut pairs = Vec::new();
    for (output, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.requires_grad()) {
        let given = leaf.grad();
        for element in (0..leaf.numel()).step_by(stride) {
            let mut at = |offset: f64| -> Result<f64, PluginError> {
                let moved: Vec<Tensor> = leaves.iter().map(|leaf| leaf.detach().copy()).collect();
                let mut entry = moved[output].view(-1).get(element as i64);
                let _ = entry.g_add_scalar_(offset);
                Ok(loss.compute(&moved, &example.targets, false)?.loss.double_value(&[]))
            };
            let found = (at(step)? - at(-step)?) / (2.0 * step);
            // No gradient reached this output: it is zero.
            let given = if given.defined() { given.view(-1).double_value(&[element as i64]) } else { 0.0 };
            pairs.push((output, element, given, found));
        }
    }
    Ok(verdict(&pairs, dtype, tolerance))
}

/// Judges pairs of a given and a found derivative, each with its place.
fn verdict(pairs: &[(usize, usize, f64, f64)], dtype: &'static str, tolerance: f64) -> GradientReport {
    let largest = pairs.iter().fold(f64::MIN_POSITIVE, |most, pair| most.max(pair.2.abs()).max(pair.3.abs()));
    let error = |pair: &(usize, usize, f64, f64)| (pair.2 - pair.3).abs() / largest;
    // `total_cmp` puts NaN above all numbers: a gradient that is not one is the largest error.
    let worst = pairs.iter().max_by(|a, b| error(a).total_cmp(&error(b))).copied().unwrap_or_default();
    let (output, element, given, found) = worst;
    let largest_error = if pairs.is_empty() { 0.0 } else { error(&worst) };
    GradientReport {
        agrees: largest_error <= tolerance,
        largest_error,
        tolerance,
        output,
        element,
        given,
        found,
        dtype,
        probes: pairs.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_that_is_no_number_does_not_agree() {
        assert!(verdict(&[(0, 0, 1.0, 1.0), (0, 1, 2.0, 2.0 + 1e-7)], "float64", 1e-5).agrees);
        let wrong = verdict(&[(0, 0, 1.0, 1.0), (0, 1, f64::NAN, 2.0)], "float64", 1e-5);
        assert!(!wrong.agrees && wrong.element == 1);
        assert!(verdict(&[], "float64", 1e-5).agrees);
    }
}
