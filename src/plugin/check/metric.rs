//! A metric's check: it counts random inputs, and what parts of them come to, merged, is what all of them come to.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;
use tch::Tensor;

use super::example::{Example, fitting};
use super::{Request, Sketch, measure};
use crate::plugin::component::Component;
use crate::plugin::error::{PluginError, PluginErrorKind};
use crate::plugin::metric::{Figures, Metric};

/// Instances that share the samples; one more counts nothing.
const PARTS: usize = 3;
/// As a part of the larger figure, or of 1: sums of fractions depend on their order.
const TOLERANCE: f64 = 1e-6;

#[derive(Clone, Debug, Serialize)]
pub struct MetricReport {
    /// What it was given, as `float32[8, 10]`.
    pub outputs: Vec<String>,
    pub targets: Vec<String>,
    /// The figures of all samples at once; `value` where it tells one figure.
    pub figures: Vec<(String, f64)>,
    /// What an instance that has counted them hands over.
    pub state_bytes: u64,
    /// Median and longest of a batch.
    pub update_us: f64,
    pub longest_us: f64,
    pub memory_bytes: u64,
    pub merged: MergeReport,
}

/// Parts that are merged, against all samples at once.
#[derive(Clone, Debug, Serialize)]
pub struct MergeReport {
    pub agrees: bool,
    /// The figure that differs most.
    pub figure: String,
    pub whole: f64,
    pub merged: f64,
    pub error: f64,
    pub tolerance: f64,
}

pub fn check(component: &Component, request: &Request) -> Result<MetricReport, PluginError> {
    let open = || Metric::open(component, request.config, request.limits);
    open()?;
    // What an update that failed has left behind is nobody's to know, so each begins anew.
    let (outputs, targets) = fitting(request, |example| open()?.update(&example.outputs, &example.targets))?;
    let example = Example::random(&outputs, &targets, None);
    let mut whole = open()?;
    whole.update(&example.outputs, &example.targets)?;
    let figures = named(whole.figures()?);
    let state_bytes = whole.state()?.len() as u64;
    let merged = named(in_parts(&example, open)?.figures()?);
    let merged = compare(component, &figures, &merged)?;
    let (update_us, longest_us) = measure(|_| whole.update(&example.outputs, &example.targets))?;
    let names = |sketches: &[Sketch]| sketches.iter().map(Sketch::to_string).collect();
    Ok(MetricReport {
        outputs: names(&outputs),
        targets: names(&targets),
        figures,
        state_bytes,
        update_us,
        longest_us,
        memory_bytes: whole.memory_bytes(),
        merged,
    })
}

/// The samples in small batches, each counted by one of several instances, as chance has it; all merged into the first.
fn in_parts(
    example: &Example,
    open: impl Fn() -> Result<Metric, PluginError>,
) -> Result<Metric, PluginError> {
    let tensors = || example.outputs.iter().chain(&example.targets);
    let samples = tensors().filter_map(|tensor| tensor.size().first().copied()).min().unwrap_or(0);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut parts = (0..=PARTS).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
    let mut begin = 0;
    while begin < samples {
        let size = (1 + i64::from(random.next_u32() % 3)).min(samples - begin);
        let cut = |tensors: &[Tensor]| -> Vec<Tensor> {
            tensors.iter().map(|tensor| tensor.narrow(0, begin, size)).collect()
        };
        let part = random.next_u32() as usize % PARTS;
        parts[part].update(&cut(&example.outputs), &cut(&example.targets))?;
        begin += size;
    }
    let mut parts = parts.into_iter();
    let mut first = parts.next().expect("there are parts");
    for mut part in parts {
        first.merge(&part.state()?)?;
    }
    Ok(first)
}

fn named(figures: Figures) -> Vec<(String, f64)> {
    match figures {
        Figures::One(number) => vec![("value".into(), number)],
        Figures::Several(figures) => figures,
    }
}

fn compare(
    component: &Component,
    whole: &[(String, f64)],
    merged: &[(String, f64)],
) -> Result<MergeReport, PluginError> {
    let names = |figures: &[(String, f64)]| {
        let mut names: Vec<String> = figures.iter().map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names.join(", ")
    };
    if names(whole) != names(merged) {
        let message =
            format!("it tells {} of all samples, and {} of parts merged", names(whole), names(merged));
        return Err(PluginError::new(component.name(), "value", PluginErrorKind::BadData, message));
    }
    let find = |name: &str| merged.iter().find(|(other, _)| other == name).expect("the names are the same").1;
    let pairs = whole.iter().map(|(name, whole)| (name, *whole, find(name)));
    let worst = pairs.max_by(|a, b| error(a.1, a.2).total_cmp(&error(b.1, b.2)));
    let (name, whole, merged) = worst.expect("a metric tells one figure at least");
    let error = error(whole, merged);
    let agrees = error <= TOLERANCE;
    Ok(MergeReport { agrees, figure: name.clone(), whole, merged, error, tolerance: TOLERANCE })
}

/// Two that are no numbers, or the same infinity, do not differ; a number and none differ more than any two numbers.
fn error(whole: f64, merged: f64) -> f64 {
    if whole.to_bits() == merged.to_bits() || (whole.is_nan() && merged.is_nan()) {
        return 0.0;
    }
    let error = (whole - merged).abs() / whole.abs().max(merged.abs()).max(1.0);
    if error.is_nan() { f64::INFINITY } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_are_no_numbers_agree_with_their_like_alone() {
        assert_eq!(error(f64::NAN, -f64::NAN), 0.0);
        assert_eq!(error(f64::INFINITY, f64::INFINITY), 0.0);
        assert_eq!(error(f64::NAN, 1.0), f64::INFINITY);
        assert_eq!(error(f64::INFINITY, 1.0), f64::INFINITY);
        assert!(error(0.1 + 0.2, 0.3) < TOLERANCE && error(1.0, 1.1) > TOLERANCE);
    }
}
