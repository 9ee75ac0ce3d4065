//! What NVIDIA's management library tells of a rank's devices, where there is one.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use tch::Device;

use super::records::GpuUse;

/// The devices of this process.
pub struct Gpus {
    nvml: Nvml,
    /// The library's numbers of them.
    indices: Vec<u32>,
}

impl Gpus {
    /// None: there are only processors, or nobody tells of a device.
    pub fn of(devices: &[Device]) -> Option<Gpus> {
        let named = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let indices = numbers(devices, named.as_deref())?;
        Some(Gpus { nvml: Nvml::init().ok()?, indices })
    }

    pub fn used(&self) -> Option<GpuUse> {
        let used: Result<Vec<GpuUse>, NvmlError> =
            self.indices.iter().map(|&index| self.one(index)).collect();
        together(&used.ok()?)
    }

    fn one(&self, index: u32) -> Result<GpuUse, NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let busy_pct = f64::from(device.utilization_rates()?.gpu);
        let here = std::process::id();
        let processes = device.running_compute_processes()?;
        let of_process = processes.iter().filter(|process| process.pid == here);
        let bytes = of_process.filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        });
        Ok(GpuUse { busy_pct, bytes: bytes.reduce(|sum, bytes| sum + bytes) })
    }
}

/// A device without the process has none of its memory, if another one has some. None: there is nothing to tell of.
fn together(devices: &[GpuUse]) -> Option<GpuUse> {
    if devices.is_empty() {
        return None;
    }
    let busy_pct = devices.iter().map(|device| device.busy_pct).sum::<f64>() / devices.len() as f64;
    let bytes = devices.iter().filter_map(|device| device.bytes);
    Some(GpuUse { busy_pct, bytes: bytes.reduce(|sum, bytes| sum + bytes) })
}

/// The library's numbers of the GPUs among `devices`, of which CUDA has those that are `named`, by default all. None: there is
/// no GPU, or they are named otherwise than by number.
fn numbers(devices: &[Device], named: Option<&str>) -> Option<Vec<u32>> {
    let number = |index: usize| match named {
        Some(named) => named.split(',').nth(index)?.trim().parse().ok(),
        None => u32::try_from(index).ok(),
    };
    let gpus = devices.iter().filter_map(|device| match device {
        Device::Cuda(index) => Some(*index),
        _ => None,
    });
    gpus.map(number).collect::<Option<Vec<u32>>>().filter(|numbers| !numbers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_numbers_by_which_the_environment_names_them() {
        let two = [Device::Cuda(0), Device::Cuda(1)];
        assert_eq!(numbers(&two, None), Some(vec![0, 1]));
        assert_eq!(numbers(&two, Some("3, 5,6")), Some(vec![3, 5]));
        assert_eq!(numbers(&two, Some("3")), None);
        assert_eq!(numbers(&two, Some("GPU-8932f937,GPU-0e2a3c4d")), None);
        assert_eq!(numbers(&[Device::Cpu], None), None);
    }

    #[test]
    fn several_devices_are_told_as_one() {
        let one = |busy_pct, bytes| GpuUse { busy_pct, bytes };
        assert_eq!(together(&[one(40.0, Some(3)), one(80.0, Some(5))]), Some(one(60.0, Some(8))));
        assert_eq!(together(&[one(40.0, Some(3)), one(80.0, None)]), Some(one(60.0, Some(3))));
        assert_eq!(together(&[one(40.0, None), one(80.0, None)]), Some(one(60.0, None)));
        assert_eq!(together(&[]), None);
    }
}
