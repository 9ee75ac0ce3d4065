//! Which layer goes on which device: a pure rule.

use std::fmt;

use crate::job::Devices;
use crate::topology::Device;

/// A top-level layer, as far as the split is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    pub name: String,
    /// Of its parameters.
    pub bytes: u64,
}

/// Consecutive top-level layers on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub device: Device,
    pub first: String,
    pub last: String,
    pub layers: usize,
    /// Of the parameters.
    pub bytes: u64,
}

/// How a module's layers are laid over devices, from the first to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub parts: Vec<Part>,
    /// Devices that the job wants; more than `parts` has devices where the machine has fewer.
    pub wanted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("no device")]
    NoDevice,
    #[error("no layer `{0}`")]
    NoLayer(String),
}

impl Split {
    /// Lays `layers` over at most as many of `devices` as the job asks for. Where the machine has fewer devices than
    /// parts, the parts left over stay on the last one.
    ///
    /// # Errors
    /// No device at all; a part that starts at a layer which is not there.
    pub fn new(layers: &[Weight], ask: &Devices, devices: &[Device]) -> Result<Split, SplitError> {
        let last_device = devices.len().checked_sub(1).ok_or(SplitError::NoDevice)?;
        let (starts, wanted) = match ask {
            Devices::One => (vec![], 1),
            Devices::Count(count) => {
                let wanted = (*count).max(1) as usize;
                (balanced(layers, wanted.min(devices.len())), wanted)
            }
            Devices::At(names) => (named(layers, names)?, names.len() + 1),
        };
        let mut parts: Vec<Part> = Vec::new();
        let mut asked = 0;
        for (at, layer) in layers.iter().enumerate() {
            // A part that starts at the very first layer is the first part.
            asked += usize::from(at > 0 && starts.contains(&at));
            let device = devices[asked.min(last_device)];
            match parts.last_mut().filter(|part| part.device == device) {
                Some(part) => {
                    part.last.clone_from(&layer.name);
                    part.layers += 1;
                    part.bytes += layer.bytes;
                }
                None => parts.push(Part {
                    device,
                    first: layer.name.clone(),
                    last: layer.name.clone(),
                    layers: 1,
                    bytes: layer.bytes,
                }),
            }
        }
        Ok(Split { parts, wanted })
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

fn named(layers: &[Weight], names: &[String]) -> Result<Vec<usize>, SplitError> {
    let position = |name: &String| {
        layers.iter().position(|layer| layer.name == *name).ok_or_else(|| SplitError::NoLayer(name.clone()))
    };
    names.iter().map(position).collect()
}

/// Where the second to the last part start, so that the largest part is as small as it can be with at most `parts`
/// of them. Parts start at layers with parameters: what follows such a layer without parameters stays with it, which
/// for the tutorial's network is the tutorial's own split.
fn balanced(layers: &[Weight], parts: usize) -> Vec<usize> {
    let heavy: Vec<usize> = (0..layers.len()).filter(|&at| layers[at].bytes > 0).collect();
    let sizes: Vec<u64> = heavy.iter().map(|&at| layers[at].bytes).collect();
    // The least limit under which filling parts greedily needs no more than `parts` of them; it is a sum of
    // neighbours, and layers are few, so a search by halving over bytes is quick and exact.
    let (mut low, mut high) = (sizes.iter().copied().max().unwrap_or(0), sizes.iter().sum());
    while low < high {
        let limit = low + (high - low) / 2;
        if fill(&sizes, limit).len() < parts {
            high = limit;
        } else {
            low = limit + 1;
        }
    }
    fill(&sizes, high).into_iter().map(|at| heavy[at]).collect()
}

/// Starts of the second to the last part when each takes neighbours up to `limit` bytes.
fn fill(sizes: &[u64], limit: u64) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut used = 0;
    for (at, size) in sizes.iter().enumerate() {
        if at > 0 && used + size > limit {
            starts.push(at);
            used = 0;
        }
        used += size;
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(list: &[(&str, u64)]) -> Vec<Weight> {
        list.iter().map(|&(name, bytes)| Weight { name: name.into(), bytes }).collect()
    }

    fn conv_net() -> Vec<Weight> {
        layers(&[
            ("conv1", 1_280),
            ("relu1", 0),
            ("conv2", 73_984),
            ("relu2", 0),
            ("pool", 0),
            ("dropout1", 0),
            ("flatten", 0),
            ("fc1", 4_719_104),
            ("relu3", 0),
            ("dropout2", 0),
            ("fc2", 5_160),
            ("log_softmax", 0),
        ])
    }

    const GPUS: [Device; 4] = [Device::Cuda(0), Device::Cuda(1), Device::Cuda(2), Device::Cuda(3)];

    #[test]
    fn two_devices_split_the_conv_net_as_the_tutorial_does() {
        let split = Split::new(&conv_net(), &Devices::Count(2), &GPUS).unwrap();
        assert_eq!(split.to_string(), "layers conv1..flatten on cuda:0, fc1..log_softmax on cuda:1");
        assert_eq!(split.wanted, 2);
    }

    #[test]
    fn one_device_takes_all() {
        for (ask, devices) in [
            (Devices::One, &GPUS[..]),
            (Devices::Count(2), &GPUS[..1]),
            (Devices::Count(0), &GPUS[..]),
            (Devices::At(vec!["fc1".into()]), &GPUS[..1]),
        ] {
            let split = Split::new(&conv_net(), &ask, devices).unwrap();
            assert_eq!(split.to_string(), "layers conv1..log_softmax on cuda:0", "{ask:?}");
        }
        let cpu = Split::new(&conv_net(), &Devices::Count(2), &[Device::Cpu]).unwrap();
        assert_eq!(cpu.to_string(), "layers conv1..log_softmax on cpu");
        assert_eq!((cpu.parts.len(), cpu.wanted), (1, 2));
    }

    #[test]
    fn parts_start_where_the_job_says() {
        let ask = Devices::At(vec!["dropout1".into(), "fc2".into()]);
        let split = Split::new(&conv_net(), &ask, &GPUS).unwrap();
        assert_eq!(
            split.to_string(),
            "layers conv1..pool on cuda:0, dropout1..dropout2 on cuda:1, fc2..log_softmax on cuda:2"
        );
        let fewer = Split::new(&conv_net(), &ask, &GPUS[..2]).unwrap();
        assert_eq!(fewer.to_string(), "layers conv1..pool on cuda:0, dropout1..log_softmax on cuda:1");
        assert_eq!(fewer.wanted, 3);
    }

    #[test]
    fn parts_are_about_equal_in_bytes() {
        let even = layers(&[("a", 10), ("b", 10), ("c", 10), ("d", 10), ("e", 10), ("f", 10)]);
        let split = Split::new(&even, &Devices::Count(3), &GPUS).unwrap();
        assert_eq!(split.to_string(), "layers a..b on cuda:0, c..d on cuda:1, e..f on cuda:2");
        let split = Split::new(&even, &Devices::Count(9), &GPUS).unwrap();
        assert_eq!(split.parts.iter().map(|part| part.bytes).max(), Some(20));
    }

    #[test]
    fn more_devices_than_layers_with_parameters_leave_devices_unused() {
        let two = layers(&[("relu", 0), ("a", 10), ("b", 10), ("tanh", 0)]);
        let split = Split::new(&two, &Devices::Count(4), &GPUS).unwrap();
        assert_eq!(split.to_string(), "layers relu..a on cuda:0, b..tanh on cuda:1");
        assert_eq!(split.devices().collect::<Vec<_>>(), [GPUS[0], GPUS[0], GPUS[1], GPUS[1]]);
    }

    #[test]
    fn what_cannot_be_split_is_refused() {
        assert_eq!(Split::new(&conv_net(), &Devices::One, &[]), Err(SplitError::NoDevice));
        let ask = Devices::At(vec!["fc9".into()]);
        assert_eq!(Split::new(&conv_net(), &ask, &GPUS), Err(SplitError::NoLayer("fc9".into())));
    }

    #[test]
    fn a_module_without_layers_has_no_parts() {
        assert_eq!(Split::new(&[], &Devices::Count(2), &GPUS).unwrap().to_string(), "no layers");
    }
}
