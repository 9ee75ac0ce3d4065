//! The crate's own device type and libtorch's, into one another.

use super::ModelError;
use crate::topology::Device;

impl From<Device> for tch::Device {
    fn from(device: Device) -> tch::Device {
        match device {
            Device::Cpu => tch::Device::Cpu,
            Device::Cuda(ordinal) => tch::Device::Cuda(ordinal as usize),
        }
    }
}

impl TryFrom<tch::Device> for Device {
    type Error = ModelError;

    fn try_from(device: tch::Device) -> Result<Device, ModelError> {
        match device {
            tch::Device::Cpu => Ok(Device::Cpu),
            tch::Device::Cuda(ordinal) => {
                u32::try_from(ordinal).map(Device::Cuda).map_err(|_| ModelError::Device { device })
            }
            tch::Device::Mps | tch::Device::Vulkan => Err(ModelError::Device { device }),
        }
    }
}
