//! A ring all-reduce made of send and receive, beside the one that c10d has.
//!
//! Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations" (2009), as DeepSpeech
//! used it: the tensor is cut into as many chunks as there are ranks. In `n - 1` rounds each rank sends one chunk to
//! the right and adds the one that comes from the left, after which each has one finished chunk; in `n - 1` more the
//! finished chunks go round. Each rank sends `2 (n - 1) / n` of the tensor.

use anyhow::Result;
use c10d::ProcessGroup;
use tch::Tensor;

/// Tells a ring's messages from others between the same ranks.
const TAG: u32 = 7;

/// The sum of `tensor` (dense, of one dimension, of one shape on all ranks) over the ranks of `group`, in its place.
///
/// # Errors
/// When a neighbour is lost, or does not answer within the group's timeout.
pub fn all_reduce(group: &ProcessGroup, tensor: &mut Tensor) -> Result<()> {
    let (rank, size) = (group.rank() as usize, group.size() as usize);
    if size == 1 {
        return Ok(());
    }
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let mut ring = Ring { group, left: left as u32, right: right as u32, chunks: chunks(tensor, size)? };
    // In round r a rank passes on the chunk that it completed in the round before: first its own.
    for round in 0..size - 1 {
        let (give, take) = ((rank + size - round) % size, (rank + size - round - 1) % size);
        let came = ring.pass(give, take)?;
        let _ = ring.chunks[take].f_add_(&came)?;
    }
    for round in 0..size - 1 {
        let (give, take) = ((rank + 1 + size - round) % size, (rank + size - round) % size);
        let came = ring.pass(give, take)?;
        ring.chunks[take].f_copy_(&came)?;
    }
    Ok(())
}

/// One rank's place in the ring.
struct Ring<'a> {
    group: &'a ProcessGroup,
    left: u32,
    right: u32,
    /// Views of the tensor.
    chunks: Vec<Tensor>,
}

impl Ring<'_> {
    /// Sends chunk `give` to the right while the neighbour's chunk `take` comes from the left.
    fn pass(&mut self, give: usize, take: usize) -> Result<Tensor> {
        let space = self.chunks[take].f_empty_like()?;
        let sent = self.group.isend(self.chunks[give].f_detach_copy()?, self.right, TAG)?;
        let came = self.group.irecv(space, self.left, TAG)?;
        let came = came.wait()?;
        let _ = sent.wait()?;
        Ok(came)
    }
}

/// As many pieces as ranks; the last ones are empty where there are fewer elements.
fn chunks(tensor: &Tensor, count: usize) -> Result<Vec<Tensor>, tch::TchError> {
    let elements = tensor.numel() as i64;
    let size = (elements + count as i64 - 1) / count as i64;
    let piece = |index: usize| {
        let start = (index as i64 * size).min(elements);
        tensor.f_narrow(0, start, size.min(elements - start))
    };
    (0..count).map(piece).collect()
}
