//! How fast calls between two ranks are: one at a time, many at once, with tensors.
//!
//! Rank 0 calls rank 1. A method runs on a thread of rank 1 that serves rank 0, as in a job, so each time is there and
//! back over four threads.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use serde::Serialize;
use tch::{Device, Kind, Tensor};

use super::calls::bench::{Echo, Echoed, Sink, Sunk};
use crate::human::thousands;
use crate::rpc::{CallError, Mesh, Methods, PendingReply};
use crate::topology::Rank;

const CALLEE: Rank = Rank(1);

/// How many calls are under way at a time.
const IN_FLIGHT: [usize; 3] = [1, 8, 64];

const SMALL_CALLS: usize = 2_000;
const WARM_UP: usize = 200;

/// Bytes of the tensor beside which small calls are timed.
const BESIDE_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallTimes {
    /// One small call at a time, in microseconds.
    pub small: Times,
    /// Small calls while a tensor of 64 MiB is on its way, in microseconds.
    pub small_beside_large: Times,
    pub rates: Vec<Rate>,
    /// How those tensors travel that do not fit into a message.
    pub transport: String,
    pub tensors: Vec<TensorTimes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    pub median_us: f64,
    pub p99_us: f64,
    pub least_us: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rate {
    pub in_flight: usize,
    pub calls_per_s: f64,
}

/// A tensor of float32 one way, a small answer back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorTimes {
    pub bytes: u64,
    #[serde(flatten)]
    pub times: Times,
    /// 10^9 bytes per second, at the median.
    pub gb_per_s: f64,
}

/// What both ranks answer.
pub fn methods() -> Methods {
    let mut methods = Methods::new();
    methods.serve(|_, Echo { number }| std::future::ready(Ok::<_, CallError>(Echoed { number })));
    methods.serve(|_, Sink { tensor }| {
        std::future::ready(Ok::<_, CallError>(Sunk { elements: tensor.numel() as u64 }))
    });
    methods
}

/// Measures, on rank 0 of two.
///
/// # Errors
/// When a call fails.
pub fn measure(mesh: &Mesh, sizes: &[u64]) -> Result<CallTimes> {
    let small = times(SMALL_CALLS, WARM_UP, || call_small(mesh).wait().map(drop))?;
    let rates = IN_FLIGHT.into_iter().map(|in_flight| rate(mesh, in_flight)).collect::<Result<_>>()?;
    let mut tensors = Vec::new();
    for &bytes in sizes {
        let timed = tensor_times(mesh, bytes).with_context(|| format!("a tensor of {bytes} bytes"))?;
        tensors.push(timed);
    }
    Ok(CallTimes {
        small,
        small_beside_large: beside_large(mesh)?,
        rates,
        transport: mesh.transport_to(CALLEE).to_string(),
        tensors,
    })
}

fn call_small(mesh: &Mesh) -> PendingReply<Echoed> {
    mesh.request(CALLEE, Echo { number: 1 })
}

fn rate(mesh: &Mesh, in_flight: usize) -> Result<Rate> {
    let rounds = (4 * SMALL_CALLS / in_flight).max(20);
    let mut start = Instant::now();
    for round in 0..rounds + WARM_UP / in_flight {
        if round == WARM_UP / in_flight {
            start = Instant::now();
        }
        PendingReply::wait_all((0..in_flight).map(|_| call_small(mesh)).collect())?;
    }
    Ok(Rate { in_flight, calls_per_s: (rounds * in_flight) as f64 / start.elapsed().as_secs_f64() })
}

fn tensor_times(mesh: &Mesh, bytes: u64) -> Result<TensorTimes> {
    let tensor = ones(bytes)?;
    let send = || call_tensor(mesh, &tensor).wait().map(drop);
    let times = times(repeats(bytes), 3, send)?;
    let bytes = tensor.numel() as u64 * 4;
    Ok(TensorTimes { bytes, times, gb_per_s: bytes as f64 / (times.median_us * 1e3) })
}

/// Small calls, one after the other, for as long as a large tensor takes, a few times.
fn beside_large(mesh: &Mesh) -> Result<Times> {
    let tensor = ones(BESIDE_BYTES)?;
    let mut taken = Vec::new();
    for _ in 0..5 {
        let mut large = call_tensor(mesh, &tensor);
        while (&mut large).now_or_never().transpose()?.is_none() {
            taken.push(timed(|| call_small(mesh).wait().map(drop))?);
        }
    }
    Ok(Times::of(taken))
}

fn call_tensor(mesh: &Mesh, tensor: &Tensor) -> PendingReply<Sunk> {
    mesh.request_within(CALLEE, Sink { tensor: tensor.shallow_clone() }, Duration::from_secs(120))
}

fn ones(bytes: u64) -> Result<Tensor> {
    Ok(Tensor::f_ones([(bytes / 4).max(1) as i64], (Kind::Float, Device::Cpu))?)
}

/// Large tensors are dear, and less noisy.
fn repeats(bytes: u64) -> usize {
    (1_000_000_000 / bytes.max(1)).clamp(7, 500) as usize
}

fn times<E>(repeats: usize, warm_up: usize, mut call: impl FnMut() -> Result<(), E>) -> Result<Times>
where
    anyhow::Error: From<E>,
{
    for _ in 0..warm_up {
        call()?;
    }
    let taken = (0..repeats).map(|_| timed(&mut call)).collect::<Result<Vec<_>, E>>()?;
    Ok(Times::of(taken))
}

/// Microseconds that `call` takes.
fn timed<E>(call: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

impl Times {
    fn of(mut taken: Vec<f64>) -> Times {
        taken.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| taken.get((taken.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
        Times { median_us: at(0.5), p99_us: at(0.99), least_us: at(0.0) }
    }
}

impl fmt::Display for CallTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "two ranks on this machine, there and back\n")?;
        writeln!(f, "{:<28} {:>10} {:>10} {:>10}", "small call", "median us", "p99 us", "least us")?;
        let mut row = |what: &str, Times { median_us, p99_us, least_us }: Times| {
            writeln!(f, "{what:<28} {median_us:>10.1} {p99_us:>10.1} {least_us:>10.1}")
        };
        row("one at a time", self.small)?;
        row("while 64 MiB are on their way", self.small_beside_large)?;
        writeln!(f, "\n{:<28} {:>10}", "small calls in flight", "calls/s")?;
        for Rate { in_flight, calls_per_s } in &self.rates {
            writeln!(f, "{in_flight:<28} {:>10}", thousands(*calls_per_s as u64))?;
        }
        write!(
            f,
            "\n{:<28} {:>10} {:>10} {:>10} {:>8}",
            format!("tensor, bytes (by {})", self.transport),
            "median us",
            "p99 us",
            "least us",
            "GB/s"
        )?;
        for TensorTimes { bytes, times: Times { median_us, p99_us, least_us }, gb_per_s } in &self.tensors {
            let bytes = thousands(*bytes);
            write!(f, "\n{bytes:<28} {median_us:>10.1} {p99_us:>10.1} {least_us:>10.1} {gb_per_s:>8.2}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle_and_the_99th_of_a_hundred_near_the_end() {
        let times = Times::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((times.least_us, times.median_us, times.p99_us), (1.0, 51.0, 100.0));
    }

    #[test]
    fn large_tensors_are_sent_less_often() {
        assert_eq!((repeats(4), repeats(16 << 20), repeats(1 << 30)), (500, 59, 7));
    }
}
