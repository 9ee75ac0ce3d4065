//! A loss: one instance of a plug-in that turns outputs and targets into a number that libtorch can differentiate.

use tch::Tensor;
use wasmtime::component::Resource;

use super::bindings::{loss, loss_weight};
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

/// How much the mean of a batch counts beside the means of others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight {
    /// What the loss was divided by: the number of samples, or the sum of what the targets weigh. 0 where none counts; the loss
    /// is 0 then, and so is its gradient.
    pub loss: f64,
    /// How many numbers the metrics are means over.
    pub metrics: f64,
}

/// An open loss of either form. `Send`; for several threads, open one on each.
pub struct Loss {
    component: Component,
    config: String,
    limits: PluginLimits,
    form: Form,
    weighs: bool,
}

enum Form {
    /// Operations on host tensors.
    Tensors(Instance<Guest>),
    /// Numbers in, value and gradient out.
    Raw(RawLoss),
}

/// What a loss of tensor operations exports.
struct Guest {
    loss: loss::Guest,
    weight: Option<loss_weight::Guest>,
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
        let mut form = start(component, &config, &limits)?;
        let weighs = weighs(&mut form, &limits)?;
        Ok(Loss { component: component.clone(), config, limits, form, weighs })
    }

    /// Whether its mean is divided by something else than the number of samples: by what the targets weigh.
    pub fn weighs(&self) -> bool {
        self.weighs
    }

    /// How much a batch of so many samples with these targets counts, as they come to [`Loss::compute`]. Of a loss that does not
    /// weigh it is the number of samples.
    ///
    /// # Errors
    /// As [`Loss::compute`].
    pub fn weigh(&mut self, targets: &[Tensor], samples: u64) -> Result<Weight, PluginError> {
        if !self.weighs {
            return Ok(Weight { loss: samples as f64, metrics: samples as f64 });
        }
        self.start_again_if_spent()?;
        let Form::Tensors(instance) = &mut self.form else { unreachable!("a raw loss does not weigh") };
        let weight = weigh(instance, &self.limits, targets)?;
        prove_weight(weight).map_err(|message| {
            PluginError::new(self.component.name(), "weigh", PluginErrorKind::BadData, message)
        })?;
        Ok(weight)
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
        self.start_again_if_spent()?;
        let (loss, metrics) = match &mut self.form {
            Form::Tensors(instance) => compute(instance, &self.limits, outputs, targets, want_metrics)?,
            Form::Raw(raw) => raw.compute(&self.limits, outputs, targets, want_metrics)?,
        };
        prove_loss(&loss, outputs).and_then(|()| prove_metrics(&metrics)).map_err(|message| {
            PluginError::new(self.component.name(), "compute", PluginErrorKind::BadData, message)
        })?;
        Ok(LossValue { loss, metrics })
    }

    fn start_again_if_spent(&mut self) -> Result<(), PluginError> {
        let spent = match &self.form {
            Form::Tensors(instance) => instance.is_spent(),
            Form::Raw(raw) => raw.is_spent(),
        };
        if spent {
            self.form = start(&self.component, &self.config, &self.limits)?;
        }
        Ok(())
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
        let loss = loss::GuestIndices::new(component.pre())?.load(&mut *store, instance)?;
        let weight = component
            .has_loss_weight()
            .then(|| loss_weight::GuestIndices::new(component.pre())?.load(&mut *store, instance));
        Ok(Guest { loss, weight: weight.transpose()? })
    })?;
    instance.call("open", limits.open_time, |guest, store| guest.loss.call_open(store, config))?;
    Ok(Form::Tensors(instance))
}

fn compute(
    instance: &mut Instance<Guest>,
    limits: &PluginLimits,
    outputs: &[Tensor],
    targets: &[Tensor],
    want_metrics: bool,
) -> Result<(Tensor, Vec<(String, f64)>), PluginError> {
    instance.store.data_mut().budget.begin(outputs.iter().chain(targets));
    let outputs = lend(instance, "compute", outputs)?;
    let targets = lend(instance, "compute", targets)?;
    let computed = instance.call("compute", limits.time, |guest, store| {
        guest.loss.call_compute(store, &outputs, &targets, want_metrics)
    })?;
    let loss = instance.store.data_mut().table.delete(computed.loss);
    let loss =
        loss.map_err(|error| instance.error("compute", PluginErrorKind::BadData, error.to_string()))?;
    Ok((loss, computed.metrics))
}

/// Handles on tensors, for a call that takes them over.
fn lend(
    instance: &mut Instance<Guest>,
    what: &'static str,
    tensors: &[Tensor],
) -> Result<Vec<Resource<Tensor>>, PluginError> {
    let table = &mut instance.store.data_mut().table;
    let lent: Result<Vec<_>, _> = tensors.iter().map(|tensor| table.push(tensor.shallow_clone())).collect();
    lent.map_err(|_| {
        let (inputs, limit) = (tensors.len(), instance.max_files());
        let message = format!("there is no room for {inputs} more handles, those of its inputs; the limit is {limit}");
        let hint = "drop tensors that are not used any more; if it needs more at one time, raise `plugins.max_files`";
        instance.error(what, PluginErrorKind::BadOperation, message).with_hint(hint)
    })
}

fn weighs(form: &mut Form, limits: &PluginLimits) -> Result<bool, PluginError> {
    let Form::Tensors(instance) = form else { return Ok(false) };
    instance.call("weighs", limits.time, |guest, store| match &guest.weight {
        Some(weight) => weight.call_weighs(store).map(Ok),
        None => Ok(Ok(false)),
    })
}

fn weigh(
    instance: &mut Instance<Guest>,
    limits: &PluginLimits,
    targets: &[Tensor],
) -> Result<Weight, PluginError> {
    instance.store.data_mut().budget.begin(targets.iter());
    let targets = lend(instance, "weigh", targets)?;
    instance.call("weigh", limits.time, |guest, store| {
        let weight = guest.weight.as_ref().expect("only a loss that exports it weighs");
        let weighed = weight.call_weigh(store, &targets)?;
        Ok(weighed.map(|weight| Weight { loss: weight.loss, metrics: weight.metrics }))
    })
}

fn prove_weight(Weight { loss, metrics }: Weight) -> Result<(), String> {
    for (what, weight) in [("a batch weighs", loss), ("the metrics of a batch are over", metrics)] {
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(format!("{what} {weight}, which is not a number from 0 on"));
        }
    }
    Ok(())
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
