//! A loss: one instance of a plug-in that turns outputs and targets into a number that libtorch can differentiate.

use tch::Tensor;
use wasmtime::component::Resource;

use super::bindings::loss::{Guest, GuestIndices};
use super::component::{Component, World};
use super::dtype::{describe, is_floating};
use super::error::{PluginError, PluginErrorKind, tame};
use super::instance::Instance;
use super::raw_loss::RawLoss;
use crate::job::PluginLimits;

const MOST_METRICS: usize = 64;

/// What a loss plug-in made of a batch.
#[derive(Debug)]
pub struct LossValue {
    /// A floating-point scalar. If an output requires a gradient, so does this, and `backward` reaches that output.
    pub loss: Tensor,
    /// Names are not empty and distinct; values may be NaN.
    pub metrics: Vec<(String, f64)>,
}

/// An open loss of either form. `Send`; for several threads, open one on each.
pub struct Loss {
    component: Component,
    config: String,
    limits: PluginLimits,
    form: Form,
}

enum Form {
    /// Operations on host tensors.
    Tensors(Instance<Guest>),
    /// Numbers in, value and gradient out.
    Raw(RawLoss),
}

impl Loss {
    /// Starts an instance and opens it with `config`, a JSON object. A plug-in that has both forms is used by tensor
    /// operations.
    ///
    /// # Errors
    /// If the plug-in is not a loss, breaks a limit, or fails.
    pub fn open(
        component: &Component,
        config: &serde_json::Value,
        limits: PluginLimits,
    ) -> Result<Loss, PluginError> {
        let config = config.to_string();
        let form = start(component, &config, &limits)?;
        Ok(Loss { component: component.clone(), config, limits, form })
    }

    /// The loss of a batch. Outputs and targets have the batch dimension first. The result is on the outputs' device.
    ///
    /// # Errors
    /// Leaves a loss that can be asked again: after a trap, by a fresh instance.
    pub fn compute(
        &mut self,
        outputs: &[Tensor],
        targets: &[Tensor],
        want_metrics: bool,
    ) -> Result<LossValue, PluginError> {
        let spent = match &self.form {
            Form::Tensors(instance) => instance.is_spent(),
            Form::Raw(raw) => raw.is_spent(),
        };
        if spent {
            self.form = start(&self.component, &self.config, &self.limits)?;
        }
        let (loss, metrics) = match &mut self.form {
            Form::Tensors(instance) => compute(instance, &self.limits, outputs, targets, want_metrics)?,
            Form::Raw(raw) => raw.compute(&self.limits, outputs, targets, want_metrics)?,
        };
        prove_loss(&loss, outputs).and_then(|()| prove_metrics(&metrics)).map_err(|message| {
            PluginError::new(self.component.name(), "compute", PluginErrorKind::BadData, message)
        })?;
        Ok(LossValue { loss, metrics })
    }

    /// Whether it gives its gradient itself.
    pub fn is_raw(&self) -> bool {
        matches!(self.form, Form::Raw(_))
    }

    /// Memory of the instance now, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        match &self.form {
            Form::Tensors(instance) => instance.memory_bytes(),
            Form::Raw(raw) => raw.memory_bytes(),
        }
    }
}

fn start(component: &Component, config: &str, limits: &PluginLimits) -> Result<Form, PluginError> {
    if !component.is(World::Loss) {
        if component.is(World::RawLoss) {
            return RawLoss::start(component, config, limits).map(Form::Raw);
        }
        return Err(component.is_not("a loss"));
    }
    let mut instance = Instance::start(component, None, limits, |store, instance| {
        GuestIndices::new(component.pre())?.load(store, instance)
    })?;
    instance.call("open", limits.open_time, |guest, store| guest.call_open(store, config))?;
    Ok(Form::Tensors(instance))
}

fn compute(
    instance: &mut Instance<Guest>,
    limits: &PluginLimits,
    outputs: &[Tensor],
    targets: &[Tensor],
    want_metrics: bool,
) -> Result<(Tensor, Vec<(String, f64)>), PluginError> {
    let state = instance.store.data_mut();
    state.budget.begin(outputs.iter().chain(targets));
    let mut lend = |tensors: &[Tensor]| -> Result<Vec<Resource<Tensor>>, _> {
        tensors.iter().map(|tensor| state.table.push(tensor.shallow_clone())).collect()
    };
    let lent = lend(outputs).and_then(|outputs| Ok((outputs, lend(targets)?)));
    let (outputs, targets) = lent.map_err(|error| {
        let message =
            format!("no room for the inputs' handles: {error}; it keeps tensors that it does not drop");
        instance.error("compute", PluginErrorKind::BadOperation, message)
    })?;
    let computed = instance.call("compute", limits.time, |guest, store| {
        guest.call_compute(store, &outputs, &targets, want_metrics)
    })?;
    let loss = instance.store.data_mut().table.delete(computed.loss);
    let loss =
        loss.map_err(|error| instance.error("compute", PluginErrorKind::BadData, error.to_string()))?;
    Ok((loss, computed.metrics))
}

fn prove_loss(loss: &Tensor, outputs: &[Tensor]) -> Result<(), String> {
    let kind = loss.kind();
    if loss.dim() != 0 || !is_floating(kind) {
        let is = describe(kind, &loss.size());
        return Err(format!("the loss is {is} and should be a floating-point scalar: take its mean or sum"));
    }
    if !loss.requires_grad() && outputs.iter().any(Tensor::requires_grad) {
        return Err("the loss does not depend on the outputs: no gradient would flow; `detach`, `argmax`, comparisons \
                    and integers cut it off"
            .into());
    }
    Ok(())
}

fn prove_metrics(metrics: &[(String, f64)]) -> Result<(), String> {
    if metrics.len() > MOST_METRICS {
        return Err(format!("it reports {} metrics; {MOST_METRICS} are possible", metrics.len()));
    }
    for (index, (name, _)) in metrics.iter().enumerate() {
        if name.is_empty() || name.len() > 64 || tame(name) != *name {
            let name = tame(name);
            return Err(format!("a metric is named `{name}`; 1 to 64 printable characters are possible"));
        }
        if metrics[..index].iter().any(|(other, _)| other == name) {
            return Err(format!("two metrics are named `{name}`"));
        }
    }
    Ok(())
}
