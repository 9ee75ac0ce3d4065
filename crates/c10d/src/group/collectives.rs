//! Broadcast, reduce, all-reduce and barrier.
//!
//! Each operation has two forms. The plain one borrows its tensors and returns when this rank's part is done; the one called
//! `_async` owns them until its [`Work`] is waited for. Over NCCL both return when this thread's stream will wait for that
//! part: what is computed on it later comes after, but the host does not wait, and what goes wrong shows in a later operation.

use tch::Tensor;

use super::local::described;
use super::{ProcessGroup, Start};
use crate::backend::{CPU, CUDA};
use crate::shim::group as c;
use crate::work::{Running, Work};
use crate::{Backend, ReduceOp, Result, shim};

/// # Errors
/// Every operation of a group: a rank or a tensor that cannot be right is refused before anything is sent
/// ([`OutOfGroup`](crate::Error::OutOfGroup), [`Misuse`](crate::Error::Misuse)). Then, of the other ranks, that one is
/// gone ([`PeerLost`](crate::Error::PeerLost)), does not come in time ([`Timeout`](crate::Error::Timeout)) or, in a
/// checked group, does something else ([`Mismatch`](crate::Error::Mismatch)). After a lost rank or a timeout the group
/// cannot be used any more, and what a tensor holds is undefined.
///
/// A rank that dies is noticed at once, with one exception: Gloo does not tell an operation in the middle of a message that
/// the connection broke, so that one runs into its timeout, and then names the rank. [`Abort`](crate::Abort) ends it before.
impl ProcessGroup {
    /// Each rank's `tensor` becomes that of rank `root`. All have its shape and dtype.
    ///
    /// ```
    /// # c10d::threads(2, |group| {
    /// let mut tensor = tch::Tensor::from(group.rank() as i64);
    /// group.broadcast(&mut tensor, 1)?;
    /// assert_eq!(tensor.int64_value(&[]), 1);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As every operation.
    pub fn broadcast(&self, tensor: &mut Tensor, root: u32) -> Result<()> {
        self.start_broadcast(tensor, root, false)?.wait()
    }

    /// # Errors
    /// As every operation, here and from the work.
    pub fn broadcast_async(&self, tensor: Tensor, root: u32) -> Result<Work<Tensor>> {
        let running = self.start_broadcast(&tensor, root, true)?;
        Ok(Work::new(running, |_| Ok(tensor)))
    }

    /// Each rank's `tensor` becomes the reduction of all of them. All have one shape and dtype.
    ///
    /// ```
    /// # c10d::threads(2, |group| {
    /// use c10d::ReduceOp;
    /// let mut tensor = tch::Tensor::from_slice(&[1.0, group.rank() as f64]);
    /// group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    /// assert_eq!(Vec::<f64>::try_from(tensor).unwrap(), [2.0, 1.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As every operation.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
        self.start_all_reduce(tensor, op, false)?.wait()
    }

    /// # Errors
    /// As every operation, here and from the work.
    pub fn all_reduce_async(&self, tensor: Tensor, op: ReduceOp) -> Result<Work<Tensor>> {
        let running = self.start_all_reduce(&tensor, op, true)?;
        Ok(Work::new(running, |_| Ok(tensor)))
    }

    /// The `tensor` of rank `root` becomes the reduction of all of them; what the others hold then is undefined.
    ///
    /// # Errors
    /// As every operation.
    pub fn reduce(&self, tensor: &mut Tensor, root: u32, op: ReduceOp) -> Result<()> {
        self.start_reduce(tensor, root, op, false)?.wait()
    }

    /// # Errors
    /// As every operation, here and from the work.
    pub fn reduce_async(&self, tensor: Tensor, root: u32, op: ReduceOp) -> Result<Work<Tensor>> {
        let running = self.start_reduce(&tensor, root, op, true)?;
        Ok(Work::new(running, |_| Ok(tensor)))
    }

    /// Returns when all ranks have come here, and what this rank started before is done.
    ///
    /// A good last operation: the rank that holds a TCP store's server should not end before the others have.
    ///
    /// # Errors
    /// As every operation.
    pub fn barrier(&self) -> Result<()> {
        self.start_barrier(false)?.wait()
    }

    /// # Errors
    /// As every operation, here and from the work.
    pub fn barrier_async(&self) -> Result<Work<()>> {
        Ok(Work::new(self.start_barrier(true)?, |_| Ok(())))
    }

    fn start_broadcast(&self, tensor: &Tensor, root: u32, asynchronous: bool) -> Result<Running> {
        let operation = self.operation("broadcast");
        self.rank_exists(&operation, root)?;
        // The root only sends: its tensor may require grad.
        if root == self.rank() {
            self.input(&operation, tensor)?;
        } else {
            self.output(&operation, tensor)?;
        }
        let call = self.call(asynchronous, ReduceOp::Sum);
        let say = || format!("broadcast({}, from rank {root})", described(tensor));
        // SAFETY: group, call and tensors are borrowed until after the call, which copies what it keeps of them.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_broadcast(group, &call, shim::pointer(tensor), root as i32, work)
        })
    }

    fn start_all_reduce(&self, tensor: &Tensor, op: ReduceOp, asynchronous: bool) -> Result<Running> {
        let operation = self.operation("all_reduce");
        self.output(&operation, tensor)?;
        self.reducible(&operation, op, tensor)?;
        let call = self.call(asynchronous, op);
        let say = || format!("all_reduce({}, {op})", described(tensor));
        // SAFETY: as in `start_broadcast`.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_all_reduce(group, &call, shim::pointer(tensor), work)
        })
    }

    fn start_reduce(&self, tensor: &Tensor, root: u32, op: ReduceOp, asynchronous: bool) -> Result<Running> {
        let operation = self.operation("reduce");
        self.rank_exists(&operation, root)?;
        self.output(&operation, tensor)?;
        self.reducible(&operation, op, tensor)?;
        let call = self.call(asynchronous, op);
        let say = || format!("reduce({}, {op}, to rank {root})", described(tensor));
        // SAFETY: as in `start_broadcast`.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_reduce(group, &call, shim::pointer(tensor), root as i32, work)
        })
    }

    fn start_barrier(&self, asynchronous: bool) -> Result<Running> {
        let call = self.call(asynchronous, ReduceOp::Sum);
        let device = if self.backend() == Backend::Nccl { CUDA } else { CPU };
        let say = || "barrier()".to_owned();
        // SAFETY: as in `start_broadcast`.
        self.start(Start::collective(self.operation("barrier"), &say), |group, work| unsafe {
            c::shim_barrier(group, &call, device, work)
        })
    }
}
