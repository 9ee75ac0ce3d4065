//! Which layer went on which device: the job's split ([`crate::job::split`]) over the devices at hand, for people to
//! read.

use std::fmt;

use crate::job::{Devices, split};
use crate::layers::Layer;
use crate::topology::Device;

/// Consecutive top-level layers on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLayers {
    pub device: Device,
    /// Names of the first and the last of them.
    pub first: String,
    pub last: String,
    pub layers: usize,
}

/// How a module's layers are laid over devices, from the first to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub parts: Vec<DeviceLayers>,
}

impl Split {
    /// Lays `layers` over as many of `devices` as the job asks for; there is at least one device.
    pub fn new(layers: &[Layer], asked: &Devices, devices: &[Device]) -> Split {
        let available = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        let mut parts: Vec<DeviceLayers> = Vec::new();
        for (layer, part) in layers.iter().zip(split::devices(layers, asked, available)) {
            match parts.last_mut().filter(|last| last.device == devices[part]) {
                Some(part) => {
                    part.last.clone_from(&layer.name);
                    part.layers += 1;
                }
                None => parts.push(DeviceLayers {
                    device: devices[part],
                    first: layer.name.clone(),
                    last: layer.name.clone(),
                    layers: 1,
                }),
            }
        }
        Split { parts }
    }

    /// The device of each top-level layer, in order.
    pub fn devices(&self) -> impl Iterator<Item = Device> {
        self.parts.iter().flat_map(|part| std::iter::repeat_n(part.device, part.layers))
    }
}

/// `layers conv1..flatten on cuda:0, fc1..log_softmax on cuda:1`.
impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() {
            return f.write_str("no layers");
        }
        for (at, part) in self.parts.iter().enumerate() {
            f.write_str(if at == 0 { "layers " } else { ", " })?;
            match part.layers {
                1 => write!(f, "{} on {}", part.first, part.device)?,
                _ => write!(f, "{}..{} on {}", part.first, part.last, part.device)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Dropout2d, Flatten, LayerOp, Linear, LogSoftmax, Relu};

    const GPUS: [Device; 4] = [Device::Cuda(0), Device::Cuda(1), Device::Cuda(2), Device::Cuda(3)];

    /// The tutorial's network, as far as its names and sizes go.
    fn conv_net() -> Vec<Layer> {
        let linear = |ins, outs| LayerOp::Linear(Linear { in_features: ins, out_features: outs, bias: true });
        [
            ("conv1", linear(9, 32)),
            ("relu1", LayerOp::Relu(Relu {})),
            ("conv2", linear(288, 64)),
            ("relu2", LayerOp::Relu(Relu {})),
            ("dropout1", LayerOp::Dropout2d(Dropout2d { p: 0.25 })),
            ("flatten", LayerOp::Flatten(Flatten { start_dim: 1, end_dim: -1 })),
            ("fc1", linear(9216, 128)),
            ("relu3", LayerOp::Relu(Relu {})),
            ("fc2", linear(128, 10)),
            ("log_softmax", LayerOp::LogSoftmax(LogSoftmax { dim: 1 })),
        ]
        .map(|(name, op)| Layer { name: name.into(), op })
        .to_vec()
    }

    fn text(asked: &Devices, devices: &[Device]) -> String {
        Split::new(&conv_net(), asked, devices).to_string()
    }

    #[test]
    fn two_devices_split_the_tutorials_network_as_it_does_itself() {
        let both = "layers conv1..flatten on cuda:0, fc1..log_softmax on cuda:1";
        assert_eq!(text(&Devices::Count(2), &GPUS), both);
        assert_eq!(text(&Devices::At(vec!["fc1".into()]), &GPUS), both);
    }

    #[test]
    fn fewer_devices_than_wanted_are_told_apart() {
        let split = Split::new(&conv_net(), &Devices::Count(2), &[Device::Cpu]);
        assert_eq!(split.to_string(), "layers conv1..log_softmax on cpu");
        assert_eq!(split.parts.len(), 1);
        let split = Split::new(&conv_net(), &Devices::At(vec!["conv2".into(), "fc2".into()]), &GPUS[..2]);
        assert_eq!(split.to_string(), "layers conv1..relu1 on cuda:0, conv2..log_softmax on cuda:1");
    }

    #[test]
    fn a_part_of_one_layer_is_named_once() {
        assert_eq!(
            text(&Devices::At(vec!["log_softmax".into()]), &GPUS),
            "layers conv1..fc2 on cuda:0, log_softmax on cuda:1"
        );
    }

    #[test]
    fn every_layer_has_a_device() {
        let split = Split::new(&conv_net(), &Devices::Count(3), &GPUS);
        assert_eq!(split.devices().count(), conv_net().len());
    }

    #[test]
    fn a_module_without_layers_has_no_parts() {
        assert_eq!(Split::new(&[], &Devices::Count(2), &GPUS).to_string(), "no layers");
    }
}
