//! What c10d measures.

use std::ffi::CStr;
use std::time::Duration;

use super::{Reducer, ffi};
use crate::{Result, shim};

/// Times of a step; zero where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReducerStats {
    pub forward: Duration,
    /// From its start until the last gradient was there.
    pub backward: Duration,
    /// From the start of the first bucket until the end of the last.
    pub communication: Duration,
    /// How much of the communication ran during the backward.
    pub overlap: Duration,
}

impl Reducer {
    /// How long ago the last gradient of a parameter came. Asked right behind a backward: how long that has waited for averages
    /// when all of its gradients were there. Zero where that is not known.
    pub fn since_last_gradient(&self) -> Duration {
        let mut nanoseconds = 0;
        // SAFETY: a reducer that is alive.
        let returned = unsafe { ffi::shim_reducer_since_last(self.ptr.as_ptr(), &mut nanoseconds) };
        // SAFETY: just returned by a guarded function.
        match unsafe { shim::check(returned) } {
            Ok(()) => Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0)),
            Err(_) => Duration::ZERO,
        }
    }

    /// The sizes of the buckets, in the order in which they are sent.
    ///
    /// # Errors
    /// None that is known.
    pub fn bucket_bytes(&self) -> Result<Vec<u64>> {
        let mut bytes = vec![0; self.n_parameters];
        let mut count = 0;
        // SAFETY: a reducer that is alive, and room for as many as said. There is no bucket without a parameter.
        let returned = unsafe {
            ffi::shim_reducer_buckets(self.ptr.as_ptr(), bytes.as_mut_ptr(), bytes.len(), &mut count)
        };
        // SAFETY: just returned by a guarded function.
        unsafe { shim::check(returned) }?;
        bytes.truncate(count);
        Ok(bytes.into_iter().map(|bytes| u64::try_from(bytes).unwrap_or(0)).collect())
    }

    /// What c10d measured, as averages over the steps that it took: the first ten, and then each hundredth.
    ///
    /// # Errors
    /// None that is known.
    pub fn stats(&self) -> Result<ReducerStats> {
        Ok(ReducerStats {
            forward: self.time(c"avg_forward_compute_time")?,
            backward: self.time(c"avg_backward_compute_time")?,
            communication: self.time(c"avg_backward_comm_time")?,
            overlap: self.time(c"avg_backward_compute_comm_overlap_time")?,
        })
    }

    fn time(&self, key: &CStr) -> Result<Duration> {
        let mut nanoseconds = 0;
        // SAFETY: a reducer that is alive, and a string that is too.
        let returned =
            unsafe { ffi::shim_reducer_statistic(self.ptr.as_ptr(), key.as_ptr(), &mut nanoseconds) };
        // SAFETY: just returned by a guarded function.
        unsafe { shim::check(returned) }?;
        Ok(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0)))
    }
}
