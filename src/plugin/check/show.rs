//! The report as a person reads it.

use std::fmt;

use super::{DatasetReport, GradientReport, LossReport, MergeReport, MetricReport, Report};
use crate::human;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loss = |loss: &LossReport| if loss.raw { "a raw-buffer loss" } else { "a loss" };
        let kinds = [
            self.dataset.as_ref().map(|_| "a dataset"),
            self.loss.as_ref().map(loss),
            self.metric.as_ref().map(|_| "a metric"),
        ];
        let kinds: Vec<&str> = kinds.into_iter().flatten().collect();
        writeln!(f, "{}: {}", self.name, kinds.join(" and "))?;
        row(f, "loaded in", format!("{:.1} ms", self.load_ms))?;
        if !self.missing_imports.is_empty() {
            let names = self.missing_imports.join(", ");
            row(f, "does without", format!("{names} (a call of these would be an error)"))?;
        }
        if let Some(dataset) = &self.dataset {
            show_dataset(f, dataset)?;
            self.show_limits(f, dataset.memory_bytes, dataset.longest_us)?;
            let limit = human::bytes(self.batch_limit_bytes);
            row(f, "batch", format!("{} of {limit}", human::bytes(dataset.batch_bytes)))?;
        }
        if let Some(loss) = &self.loss {
            show_loss(f, loss)?;
            self.show_limits(f, loss.memory_bytes, loss.longest_us)?;
        }
        if let Some(metric) = &self.metric {
            show_metric(f, metric)?;
            self.show_limits(f, metric.memory_bytes, metric.longest_us)?;
        }
        Ok(())
    }
}

impl Report {
    fn show_limits(&self, f: &mut fmt::Formatter<'_>, memory: u64, longest_us: f64) -> fmt::Result {
        row(f, "memory", format!("{} of {}", human::bytes(memory), human::bytes(self.memory_limit_bytes)))?;
        row(f, "longest call", format!("{} of {}", time(longest_us), time(self.time_limit_ms * 1e3)))
    }
}

fn show_dataset(f: &mut fmt::Formatter<'_>, report: &DatasetReport) -> fmt::Result {
    let fields: Vec<String> = report
        .fields
        .iter()
        .map(|field| format!("{} {}{:?}", field.name, field.dtype, field.shape))
        .collect();
    row(f, "opened in", format!("{:.1} ms", report.open_ms))?;
    row(f, "samples", report.samples.to_string())?;
    row(f, "fields", fields.join(", "))?;
    let speed = format!("{}, {:.0} samples/s on one thread", time(report.batch_us), report.samples_per_s);
    row(f, &format!("a batch of {}", report.batch_size), speed)?;
    if let Some(bytes) = report.state_bytes {
        row(f, "settles", format!("{} for the samples to test on", human::bytes(bytes)))?;
    }
    let again =
        if report.repeats { "the same" } else { "different: it draws at random, or mixes up the order" };
    row(f, "asked again", again.into())
}

fn show_given(f: &mut fmt::Formatter<'_>, outputs: &[String], targets: &[String]) -> fmt::Result {
    row(f, "given", format!("outputs {}; targets {}", outputs.join(", "), targets.join(", ")))
}

fn show_loss(f: &mut fmt::Formatter<'_>, report: &LossReport) -> fmt::Result {
    show_given(f, &report.outputs, &report.targets)?;
    row(f, "loss", format!("{:.6}", report.loss))?;
    for (name, value) in &report.metrics {
        row(f, name, format!("{value:.6}"))?;
    }
    row(f, "a call", time(report.compute_us))?;
    let gradient = match &report.gradient {
        Some(gradient) => gradient.to_string(),
        None => "not compared: the loss of random inputs is not finite".into(),
    };
    row(f, "gradient", gradient)
}

fn show_metric(f: &mut fmt::Formatter<'_>, report: &MetricReport) -> fmt::Result {
    show_given(f, &report.outputs, &report.targets)?;
    for (name, figure) in &report.figures {
        row(f, name, format!("{figure:.6}"))?;
    }
    row(f, "a batch", time(report.update_us))?;
    row(f, "state", human::bytes(report.state_bytes))?;
    row(f, "parts merged", report.merged.to_string())
}

impl fmt::Display for MergeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MergeReport { agrees, figure, whole, merged, error, tolerance } = self;
        match agrees {
            true => write!(f, "agree with all samples at once to {error:.1e}"),
            false => write!(
                f,
                "WRONG: `{figure}` is {merged:.6}, of all samples at once {whole:.6} (error {error:.1e}, allowed \
                 {tolerance:.0e})"
            ),
        }
    }
}

impl fmt::Display for GradientReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GradientReport { largest_error, dtype, probes, .. } = self;
        if self.agrees {
            return write!(
                f,
                "agrees with finite differences to {largest_error:.1e} ({dtype}, {probes} elements)"
            );
        }
        let GradientReport { output, element, given, found, tolerance, .. } = self;
        write!(
            f,
            "WRONG: element {element} of output {output} is {given:.6}, by finite differences {found:.6} \
             (error {largest_error:.1e}, allowed {tolerance:.0e}, {dtype})"
        )
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: String) -> fmt::Result {
    writeln!(f, "  {name:<16} {value}")
}

fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}
