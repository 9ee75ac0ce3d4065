//! What NVIDIA's management library tells of a device, where there is one.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use tch::Device;

use super::records::GpuUse;

/// A device of this process.
pub struct Gpu {
    nvml: Nvml,
    index: u32,
}

impl Gpu {
    /// None: it is the processor, or nobody tells of it.
    pub fn of(device: Device) -> Option<Gpu> {
        let Device::Cuda(index) = device else { return None };
        Some(Gpu { nvml: Nvml::init().ok()?, index: visible(index)? })
    }

    pub fn used(&self) -> Option<GpuUse> {
        let device = self.nvml.device_by_index(self.index).ok()?;
        let busy_pct = f64::from(device.utilization_rates().ok()?.gpu);
        let here = std::process::id();
        let processes = device.running_compute_processes().ok()?;
        let bytes = processes.iter().filter(|process| process.pid == here).map(|process| {
            match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => bytes,
                UsedGpuMemory::Unavailable => 0,
            }
        });
        Some(GpuUse { busy_pct, bytes: bytes.sum() })
    }
}

/// The library's number of the device that CUDA has as `index`. None: CUDA_VISIBLE_DEVICES names it otherwise than by number.
fn visible(index: usize) -> Option<u32> {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(devices) => devices.split(',').nth(index)?.trim().parse().ok(),
        Err(_) => u32::try_from(index).ok(),
    }
}
