//! Mixed precision: `torch.autocast`, on any device.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use tch::{Device, Kind};

use crate::TorchError;
use crate::shim::{self, autocast};

/// A region in which this thread runs operations in fewer bits where torch's lists say so: `torch.autocast(device, dtype)`. It ends
/// when this is dropped; regions end in the opposite order of their beginnings.
#[derive(Debug)]
#[must_use = "a region ends when it is dropped"]
pub struct Autocast {
    before: autocast::Autocast,
    /// It is of one thread.
    _of_thread: PhantomData<*const ()>,
}

impl Autocast {
    /// Begins a region for operations on devices of the type of `device`. As in PyTorch, a parameter that is used several times in it is
    /// cast once.
    ///
    /// ```
    /// use tch::{Device, Kind, Tensor};
    /// let (x, weight) = (Tensor::ones([2, 3], (Kind::Float, Device::Cpu)), Tensor::ones([4, 3], (Kind::Float, Device::Cpu)));
    /// let region = c10d::Autocast::begin(Device::Cpu, Kind::BFloat16)?;
    /// assert_eq!(x.linear::<&Tensor>(&weight, None).kind(), Kind::BFloat16);
    /// drop(region);
    /// assert_eq!(x.linear::<&Tensor>(&weight, None).kind(), Kind::Float);
    /// # Ok::<(), c10d::TorchError>(())
    /// ```
    ///
    /// # Errors
    /// A device that is neither the CPU nor CUDA's; a dtype that is neither `BFloat16` nor `Half`.
    pub fn begin(device: Device, kind: Kind) -> Result<Autocast, TorchError> {
        let refused = |what: String| TorchError { message: what };
        let device_type = match device {
            Device::Cpu => 0,
            Device::Cuda(_) => 1,
            other => return Err(refused(format!("there is no autocast on {other:?}"))),
        };
        let dtype = match kind {
            Kind::Half => 5,
            Kind::BFloat16 => 15,
            other => return Err(refused(format!("autocast is to BFloat16 or Half, and not to {other:?}"))),
        };
        let wanted = autocast::Autocast { device_type, enabled: true, dtype, cache: true };
        let mut before = MaybeUninit::uninit();
        // SAFETY: `before` is written before null is returned; the message is of a guarded function.
        unsafe {
            shim::check(autocast::shim_autocast_begin(wanted, before.as_mut_ptr()))?;
            Ok(Autocast { before: before.assume_init(), _of_thread: PhantomData })
        }
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: it has been begun on this thread; the message is of a guarded function. It sets flags only.
        let _ = unsafe { shim::check(autocast::shim_autocast_end(self.before)) };
    }
}
