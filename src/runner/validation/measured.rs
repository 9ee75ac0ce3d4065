//! A metric that is being measured: one of the program's, or a plug-in's instance. What they count travels as tensors.

use anyhow::{Context as _, Result, anyhow, ensure};
use tch::{Device, Kind, Tensor};

use crate::job::{PluginLimits, PluginRef};
use crate::metrics::{Metric, MetricSpec, Value};
use crate::plugin::{self, Figures, Host};

/// Used by one thread at a time.
pub enum Measured {
    BuiltIn { name: String, metric: Metric },
    Plugin { name: String, metric: plugin::Metric },
}

impl Measured {
    /// # Errors
    /// A plug-in that is none or does not open; names the metric.
    pub fn open(host: &Host, spec: &MetricSpec, limits: PluginLimits) -> Result<Measured> {
        let name = spec.name().to_owned();
        match spec {
            MetricSpec::BuiltIn(metric) => Ok(Measured::BuiltIn { name, metric: metric.start() }),
            MetricSpec::Plugin(metric) => {
                let opened = host
                    .load_ref(&PluginRef::File(metric.plugin.clone()))
                    .and_then(|component| plugin::Metric::open(&component, &metric.params, limits));
                let metric = opened.with_context(|| of(&name))?;
                Ok(Measured::Plugin { name, metric })
            }
        }
    }

    /// Counts a batch of what the loss takes.
    ///
    /// # Errors
    /// It does not take that; names the metric.
    pub fn update(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<()> {
        match self {
            Measured::BuiltIn { metric, .. } => {
                let target =
                    targets.first().context("metrics compare with a target, and the loss takes none")?;
                Ok(metric.update(&outputs[0], target)?)
            }
            Measured::Plugin { name, metric } => metric.update(outputs, targets).with_context(|| of(name)),
        }
    }

    /// What has been counted so far, on the CPU; of a plug-in one row of bytes.
    ///
    /// # Errors
    /// Memory; what a plug-in says. Names the metric.
    pub fn state(&mut self) -> Result<Vec<Tensor>> {
        match self {
            Measured::BuiltIn { metric, .. } => Ok(metric.state()?),
            Measured::Plugin { name, metric } => {
                let state = metric.state().with_context(|| of(name))?;
                Ok(vec![Tensor::f_from_slice(&state)?])
            }
        }
    }

    /// Counts what the same metric has counted on another rank, which may have sent anything.
    ///
    /// # Errors
    /// It is not the state of such a metric; names it.
    pub fn merge(&mut self, state: Vec<Tensor>) -> Result<()> {
        match self {
            Measured::BuiltIn { metric, .. } => Ok(metric.merge(state)?),
            Measured::Plugin { name, metric } => {
                let merged = bytes(&state).and_then(|bytes| Ok(metric.merge(&bytes)?));
                merged.with_context(|| of(name))
            }
        }
    }

    /// What records have of it.
    ///
    /// # Errors
    /// Memory; what a plug-in says. Names the metric.
    pub fn figures(&mut self) -> Result<Vec<(String, Value)>> {
        match self {
            Measured::BuiltIn { name, metric } => Ok(vec![(name.clone(), metric.value()?)]),
            Measured::Plugin { name, metric } => Ok(match metric.figures().with_context(|| of(name))? {
                Figures::One(number) => vec![(name.clone(), Value::Number(number))],
                Figures::Several(figures) => {
                    let named = |(figure, number)| (format!("{name}.{figure}"), Value::Number(number));
                    figures.into_iter().map(named).collect()
                }
            }),
        }
    }
}

fn of(name: &str) -> String {
    format!("metric `{name}`")
}

/// The one row of bytes that a plug-in's state is.
fn bytes(state: &[Tensor]) -> Result<Vec<u8>> {
    let [row] = state else {
        return Err(anyhow!("a state of {} tensors came, and one is taken", state.len()));
    };
    let (kind, shape) = (row.f_kind()?, row.size());
    ensure!(
        kind == Kind::Uint8 && shape.len() == 1 && row.device() == Device::Cpu,
        "a state of {kind:?} {shape:?} came, and a row of bytes is taken"
    );
    let mut bytes = vec![0; row.numel()];
    row.f_contiguous()?.f_copy_data(&mut bytes, row.numel())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_no_row_of_bytes_is_refused() {
        let row = || Tensor::from_slice(&[7u8, 8]);
        assert_eq!(bytes(&[row()]).unwrap(), [7, 8]);
        assert!(bytes(&[Tensor::from_slice::<u8>(&[])]).unwrap().is_empty());
        let said = |state: &[Tensor]| bytes(state).unwrap_err().to_string();
        assert_eq!(said(&[]), "a state of 0 tensors came, and one is taken");
        assert_eq!(said(&[row(), row()]), "a state of 2 tensors came, and one is taken");
        assert_eq!(
            said(&[Tensor::from_slice(&[1.0])]),
            "a state of Double [1] came, and a row of bytes is taken"
        );
        assert_eq!(
            said(&[row().reshape([1, 2])]),
            "a state of Uint8 [1, 2] came, and a row of bytes is taken"
        );
    }
}
