//! A loss that gives its value and its gradient as numbers, made into a node that libtorch differentiates.

use tch::{Device, Kind, Tensor};

use super::bindings::raw_loss::{Computed, Guest, GuestIndices};
use super::buffers::{buffer, buffers, widen};
use super::component::Component;
use super::dtype::{is_floating, kind_name};
use super::error::{PluginError, PluginErrorKind};
use super::instance::Instance;
use super::tensors::saturated;
use crate::job::PluginLimits;

pub struct RawLoss(Instance<Guest>);

impl RawLoss {
    pub fn start(component: &Component, config: &str, limits: &PluginLimits) -> Result<RawLoss, PluginError> {
        let mut instance = Instance::start(component, None, limits, |store, instance| {
            GuestIndices::new(component.pre())?.load(store, instance)
        })?;
        instance.call("open", limits.open_time, |guest, store| guest.call_open(store, config))?;
        Ok(RawLoss(instance))
    }

    pub fn is_spent(&self) -> bool {
        self.0.is_spent()
    }

    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }

    /// The loss as a scalar that carries the guest's gradient, and the metrics.
    pub fn compute(
        &mut self,
        limits: &PluginLimits,
        outputs: &[Tensor],
        targets: &[Tensor],
        want_metrics: bool,
    ) -> Result<(Tensor, Vec<(String, f64)>), PluginError> {
        let want_gradient = outputs.iter().any(Tensor::requires_grad);
        let host = |error: String| self.0.error("compute", PluginErrorKind::Host, error);
        let widened = outputs.iter().map(widen).collect::<Result<Vec<_>, _>>().map_err(host)?;
        let sent_outputs = widened.iter().map(buffer).collect::<Result<Vec<_>, _>>().map_err(host)?;
        let sent_targets = buffers(targets).map_err(host)?;
        let Computed { loss, gradients, metrics } = self.0.call("compute", limits.time, |guest, store| {
            guest.call_compute(store, &sent_outputs, &sent_targets, want_gradient, want_metrics)
        })?;
        let kind = value_kind(&widened);
        // A loss that float32 has not is infinite, and the job says what becomes of such a step.
        let loss = saturated(loss, kind);
        let scalar = if want_gradient {
            differentiable(loss, &gradients, &widened)
        } else {
            let device = outputs.first().map_or(Device::Cpu, Tensor::device);
            Tensor::f_scalar_tensor(loss, (kind, device)).map_err(|error| error.to_string())
        };
        let scalar = scalar.map_err(|message| self.0.error("compute", PluginErrorKind::BadData, message))?;
        Ok((scalar, metrics))
    }
}

fn value_kind(outputs: &[Tensor]) -> Kind {
    outputs.iter().map(Tensor::kind).find(|&kind| is_floating(kind)).unwrap_or(Kind::Float)
}

/// A scalar of exactly the guest's value whose backward gives each output exactly the guest's gradient.
///
/// The scalar is the sum over outputs of `output * gradient`, whose derivative is `gradient` by construction, with
/// the guest's value written over the sum afterwards. Writing under `no_grad` leaves the graph as it is, and neither
/// the sum's nor the product's derivative looks at its own result. Adding `value - sum` instead would round, and
/// would make NaN of outputs that are infinite (masked logits).
fn differentiable(value: f64, gradients: &[Vec<u8>], outputs: &[Tensor]) -> Result<Tensor, String> {
    if gradients.len() != outputs.len() {
        return Err(format!("it gave {} gradients for {} outputs", gradients.len(), outputs.len()));
    }
    let torch = |error: tch::TchError| error.to_string();
    let mut sum: Option<Tensor> = None;
    for (index, (bytes, output)) in gradients.iter().zip(outputs).enumerate() {
        let kind = output.kind();
        let wanted = if is_floating(kind) { output.numel() * kind.elt_size_in_bytes() } else { 0 };
        if bytes.len() != wanted {
            let shape = output.size();
            let kind = kind_name(kind);
            let given = bytes.len();
            return Err(format!(
                "the gradient of output {index}, {kind}{shape:?}, has {given} bytes, not {wanted}"
            ));
        }
        if !output.requires_grad() {
            continue;
        }
        let gradient = Tensor::f_from_data_size(bytes, &output.size(), kind).map_err(torch)?;
        let gradient = gradient.f_to_device(output.device()).map_err(torch)?;
        let part =
            output.f_mul(&gradient).and_then(|product| product.f_sum(value_kind(outputs))).map_err(torch)?;
        sum = Some(match sum {
            Some(sum) => sum.f_add(&part.f_to_device(sum.device()).map_err(torch)?).map_err(torch)?,
            None => part,
        });
    }
    let mut sum = sum.ok_or("no output takes a gradient")?;
    let _ = tch::no_grad(|| sum.f_fill_(value)).map_err(torch)?;
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_has_the_guests_value_and_gradient_exactly() {
        let leaf = Tensor::from_slice(&[1.0f32, f32::NEG_INFINITY, 3.0]).set_requires_grad(true);
        let gradient = [0.1f32, 0.0, -0.7];
        let bytes: Vec<u8> = gradient.iter().flat_map(|g| g.to_le_bytes()).collect();
        let loss = differentiable(0.123, &[bytes], &[leaf.shallow_clone()]).unwrap();
        assert_eq!(loss.double_value(&[]), f64::from(0.123f32));
        (&loss * 2.0).backward();
        let found = Vec::<f32>::try_from(leaf.grad()).unwrap();
        assert_eq!(found, gradient.map(|g| 2.0 * g));
    }

    #[test]
    fn several_outputs_take_part_and_those_without_gradient_do_not() {
        let a = Tensor::from_slice(&[1.0f64, 2.0]).set_requires_grad(true);
        let b = Tensor::from_slice(&[3.0f64]).set_requires_grad(true);
        let index = Tensor::from_slice(&[7i64]);
        let bytes = |values: &[f64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let outputs = [a.shallow_clone(), index, b.shallow_clone()];
        let gradients = [bytes(&[5.0, 6.0]), Vec::new(), bytes(&[7.0])];
        differentiable(1.0, &gradients, &outputs).unwrap().backward();
        assert_eq!(Vec::<f64>::try_from(a.grad()).unwrap(), [5.0, 6.0]);
        assert_eq!(Vec::<f64>::try_from(b.grad()).unwrap(), [7.0]);
    }
}
