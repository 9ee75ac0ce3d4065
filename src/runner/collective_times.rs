//! How fast the collectives of a group are, by operation, size and dtype.
//!
//! Bus bandwidth is the bytes of the tensor over the time, times what the operation makes each rank send in units of
//! it: comparable between operations and numbers of ranks, and with the hardware (NVIDIA's nccl-tests,
//! "Performance reported by NCCL tests").

use std::fmt;
use std::time::Instant;

use anyhow::{Context as _, Result};
use c10d::{ProcessGroup, ReduceOp};
use serde::Serialize;
use tch::{Cuda, Device, Kind, Tensor};

use crate::human::thousands;
use crate::job::Operation;

/// The operations that can be measured.
pub const MEASURED: [Operation; 7] = [
    Operation::AllReduce,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::SendRecv,
];

/// What tensors can be made of, by the names of PyTorch's short dtypes.
pub const DTYPES: [(&str, Kind); 7] = [
    ("f16", Kind::Half),
    ("bf16", Kind::BFloat16),
    ("f32", Kind::Float),
    ("f64", Kind::Double),
    ("i32", Kind::Int),
    ("i64", Kind::Int64),
    ("u8", Kind::Uint8),
];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveTimes {
    pub backend: String,
    pub ranks: u32,
    pub rows: Vec<Row>,
}

/// One operation on one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub operation: Operation,
    pub dtype: &'static str,
    /// Bytes of the largest tensor that a rank sends or receives.
    pub bytes: u64,
    pub repeats: usize,
    /// Until the slowest rank is done.
    pub median_ms: f64,
    pub least_ms: f64,
    /// 10^9 bytes per second, at the median.
    pub bus_gb_per_s: f64,
}

/// Measures on this rank, on the device that the group sends from; all ranks of the group call it with the same arguments, and have the same result.
///
/// # Errors
/// When an operation fails, or a rank is lost.
pub fn measure(
    group: &ProcessGroup,
    operations: &[Operation],
    dtypes: &[Kind],
    sizes: &[u64],
) -> Result<CollectiveTimes> {
    let mut rows = Vec::new();
    for &operation in operations {
        for &(name, dtype) in DTYPES.iter().filter(|(_, dtype)| dtypes.contains(dtype)) {
            for &bytes in sizes {
                let row = row(group, operation, (name, dtype), bytes);
                rows.push(row.with_context(|| format!("{} of {bytes} bytes", operation.name()))?);
            }
        }
    }
    Ok(CollectiveTimes { backend: group.backend().to_string(), ranks: group.size(), rows })
}

fn row(
    group: &ProcessGroup,
    operation: Operation,
    (name, dtype): (&'static str, Kind),
    bytes: u64,
) -> Result<Row> {
    let device = group.device();
    let ranks = u64::from(group.size());
    // The parts of an operation that has parts are all of one size.
    let elements = (bytes / dtype.elt_size_in_bytes() as u64 / ranks).max(1) * ranks;
    let mut subject = Subject::new(operation, elements as i64, group.size(), dtype, device)?;
    let repeats = repeats(bytes);
    let mut times = Vec::with_capacity(repeats);
    for turn in 0..WARM_UP + repeats {
        group.barrier()?;
        let start = Instant::now();
        subject.run(group)?;
        if let Device::Cuda(index) = device {
            // The operation is only queued there.
            Cuda::synchronize(index as i64);
        }
        if turn >= WARM_UP {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    // The operation is over when it is over on all ranks.
    let mut slowest = Tensor::f_from_slice(&times)?.f_to_device(device)?;
    group.all_reduce(&mut slowest, ReduceOp::Max)?;
    let mut times = Vec::<f64>::try_from(slowest)?;
    times.sort_unstable_by(f64::total_cmp);
    let (median_ms, least_ms) = (times[times.len() / 2], times[0]);
    let bytes = elements * dtype.elt_size_in_bytes() as u64;
    let bus_gb_per_s = bytes as f64 * bus_factor(operation, ranks as f64) / (median_ms * 1e6);
    Ok(Row { operation, dtype: name, bytes, repeats, median_ms, least_ms, bus_gb_per_s })
}

const WARM_UP: usize = 5;

/// Small tensors are cheap, and noisy.
fn repeats(bytes: u64) -> usize {
    (64_000_000 / bytes.max(1)).clamp(15, 300) as usize
}

/// What each rank sends, in units of the tensor.
fn bus_factor(operation: Operation, ranks: f64) -> f64 {
    match operation {
        Operation::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => (ranks - 1.0) / ranks,
        _ => 1.0,
    }
}

/// One operation with the tensors that it needs.
enum Subject {
    Whole(Operation, Tensor),
    /// A part of this rank and one of each.
    Parts(Operation, Tensor, Vec<Tensor>),
    Exchange(Vec<Tensor>, Vec<Tensor>),
}

impl Subject {
    fn new(operation: Operation, elements: i64, ranks: u32, dtype: Kind, device: Device) -> Result<Subject> {
        let tensor = |elements| Tensor::f_ones([elements], (dtype, device));
        let each = elements / i64::from(ranks);
        let list = || (0..ranks).map(|_| tensor(each)).collect::<Result<Vec<_>, _>>();
        Ok(match operation {
            Operation::AllGather | Operation::ReduceScatter => {
                Subject::Parts(operation, tensor(each)?, list()?)
            }
            Operation::AllToAll => Subject::Exchange(list()?, list()?),
            _ => Subject::Whole(operation, tensor(elements)?),
        })
    }

    fn run(&mut self, group: &ProcessGroup) -> Result<()> {
        // The largest of ones stays one, whatever the dtype and however often.
        match self {
            Subject::Whole(Operation::AllReduce, whole) => group.all_reduce(whole, ReduceOp::Max)?,
            Subject::Whole(Operation::Reduce, whole) => group.reduce(whole, 0, ReduceOp::Max)?,
            Subject::Whole(Operation::Broadcast, whole) => group.broadcast(whole, 0)?,
            Subject::Whole(Operation::SendRecv, whole) => match group.rank() {
                0 => group.send(whole, 1, 0)?,
                1 => group.recv(whole, 0, 0)?,
                _ => {}
            },
            Subject::Parts(Operation::AllGather, part, parts) => group.all_gather(parts, part)?,
            Subject::Parts(Operation::ReduceScatter, part, parts) => {
                group.reduce_scatter(part, parts, ReduceOp::Max)?;
            }
            Subject::Exchange(came, parts) => group.all_to_all(came, parts)?,
            Subject::Whole(other, _) | Subject::Parts(other, ..) => {
                anyhow::bail!("`{}` moves nothing that could be measured", other.name())
            }
        }
        Ok(())
    }
}

impl fmt::Display for CollectiveTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ranks over {}, until the slowest is done", self.ranks, self.backend)?;
        write!(
            f,
            "{:<15} {:>9} {:>12} {:>11} {:>11} {:>10}",
            "operation", "dtype", "bytes", "median ms", "least ms", "bus GB/s"
        )?;
        for row in &self.rows {
            let operation = row.operation.name();
            write!(
                f,
                "\n{operation:<15} {:>9} {:>12} {:>11.3} {:>11.3} {:>10.2}",
                row.dtype,
                thousands(row.bytes),
                row.median_ms,
                row.least_ms,
                row.bus_gb_per_s
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_counts_what_a_rank_sends() {
        assert_eq!(bus_factor(Operation::AllReduce, 4.0), 1.5);
        assert_eq!(bus_factor(Operation::AllGather, 4.0), 0.75);
        assert_eq!(bus_factor(Operation::Broadcast, 4.0), 1.0);
    }

    #[test]
    fn large_tensors_are_sent_less_often() {
        assert_eq!(repeats(4), 300);
        assert_eq!(repeats(1 << 20), 61);
        assert_eq!(repeats(64 << 20), 15);
    }

    #[test]
    fn each_operation_is_measured_among_two_ranks() {
        let measured = c10d::threads(2, |group| {
            Ok(measure(group, &MEASURED, &[Kind::Float, Kind::Half], &[4096]).unwrap())
        });
        let measured = measured.unwrap();
        let rows = &measured[0].rows;
        assert_eq!(rows.len(), 14);
        assert!(
            rows.iter().all(|row| row.bytes == 4096 && row.least_ms > 0.0 && row.median_ms >= row.least_ms)
        );
        assert_eq!(rows, &measured[1].rows, "all ranks have the same result");
    }
}
