//! From one rank to another.
//!
//! A message goes to the receive of the same tag; of one tag and sender, in the order they were started. The receiver
//! must know shape and dtype: it is bytes that travel, and their number has to be the same.

use tch::Tensor;

use super::agree::Message;
use super::local::{contents, misuse};
use super::{ProcessGroup, Says, Start};
use crate::error::Operation;
use crate::shim::group as c;
use crate::work::{Running, Work};
use crate::{Result, shim};

impl ProcessGroup {
    /// Returns when `tensor` may be written again, which does not mean that rank `to` has it.
    ///
    /// ```
    /// # c10d::threads(2, |group| {
    /// let mut tensor = tch::Tensor::from(group.rank() as i64);
    /// match group.rank() {
    ///     0 => group.send(&tensor, 1, 7)?,
    ///     _ => group.recv(&mut tensor, 0, 7)?,
    /// }
    /// assert_eq!(tensor.int64_value(&[]), 0);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); `to` is this rank.
    pub fn send(&self, tensor: &Tensor, to: u32, tag: u32) -> Result<()> {
        self.start_send("send", tensor, to, tag)?.wait()
    }

    /// [`ProcessGroup::send`] that does not wait.
    ///
    /// # Errors
    /// As [`ProcessGroup::send`], here and from the work.
    pub fn isend(&self, tensor: Tensor, to: u32, tag: u32) -> Result<Work<Tensor>> {
        let running = self.start_send("isend", &tensor, to, tag)?;
        Ok(Work::new(running, |_| Ok(tensor)))
    }

    /// Fills `tensor` with what rank `from` sends.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); `from` is this rank.
    pub fn recv(&self, tensor: &mut Tensor, from: u32, tag: u32) -> Result<()> {
        self.start_recv("recv", tensor, from, tag)?.wait()
    }

    /// [`ProcessGroup::recv`] that does not wait.
    ///
    /// # Errors
    /// As [`ProcessGroup::recv`], here and from the work.
    pub fn irecv(&self, tensor: Tensor, from: u32, tag: u32) -> Result<Work<Tensor>> {
        let running = self.start_recv("irecv", &tensor, from, tag)?;
        Ok(Work::new(running, |_| Ok(tensor)))
    }

    /// Fills `tensor` with what whoever sends first sends, and gives the sender's rank.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors).
    pub fn recv_any(&self, tensor: &mut Tensor, tag: u32) -> Result<u32> {
        let running = self.start_recv_any("recv_any", tensor, tag)?;
        running.wait()?;
        running.source()
    }

    /// [`ProcessGroup::recv_any`] that does not wait.
    ///
    /// # Errors
    /// As [`ProcessGroup::recv_any`], here and from the work.
    pub fn irecv_any(&self, tensor: Tensor, tag: u32) -> Result<Work<(Tensor, u32)>> {
        let running = self.start_recv_any("irecv_any", &tensor, tag)?;
        Ok(Work::new(running, |running| Ok((tensor, running.source()?))))
    }

    fn start_send(&self, name: &'static str, tensor: &Tensor, to: u32, tag: u32) -> Result<Running> {
        let operation = self.operation(name);
        self.other_rank(&operation, to)?;
        self.input(&operation, tensor)?;
        let wire_tag = tagged(&operation, tag)?;
        let (message, say) = (Message { from: self.rank(), to, tag }, || contents(tensor));
        let start = Start::message(operation, self.backend(), Says::Two(message, &say));
        // SAFETY: group and tensor are borrowed until after the call, which copies what it keeps of them.
        self.start(start, |group, work| unsafe {
            c::shim_send(group, shim::pointer(tensor), to as i32, wire_tag, work)
        })
    }

    fn start_recv(&self, name: &'static str, tensor: &Tensor, from: u32, tag: u32) -> Result<Running> {
        let operation = self.operation(name);
        self.other_rank(&operation, from)?;
        self.output(&operation, tensor)?;
        let wire_tag = tagged(&operation, tag)?;
        let (message, say) = (Message { from, to: self.rank(), tag }, || contents(tensor));
        let start = Start::message(operation, self.backend(), Says::Two(message, &say));
        // SAFETY: as in `start_send`.
        self.start(start, |group, work| unsafe {
            c::shim_recv(group, shim::pointer(tensor), from as i32, wire_tag, work)
        })
    }

    fn start_recv_any(&self, name: &'static str, tensor: &Tensor, tag: u32) -> Result<Running> {
        let operation = self.operation(name);
        self.output(&operation, tensor)?;
        let wire_tag = tagged(&operation, tag)?;
        let start = Start::message(operation, self.backend(), Says::FromAnyone(tag));
        // SAFETY: as in `start_send`.
        self.start(start, |group, work| unsafe {
            c::shim_recv_any(group, shim::pointer(tensor), wire_tag, work)
        })
    }

    fn other_rank(&self, operation: &Operation, rank: u32) -> Result<()> {
        self.rank_exists(operation, rank)?;
        if rank == self.rank() {
            let reason = format!("rank {rank} is this rank");
            return Err(misuse(operation, reason, "a rank does not send to itself: copy the tensor"));
        }
        Ok(())
    }
}

/// The largest are kept for small buckets of a Reducer (`csrc/comm_hooks.h`) and for the end of a group (`csrc/gloo.h`).
const LAST_TAG: i32 = 2_147_418_110;

fn tagged(operation: &Operation, tag: u32) -> Result<i32> {
    let tag = i32::try_from(tag).ok().filter(|&tag| tag <= LAST_TAG).ok_or(tag);
    tag.map_err(|tag| misuse(operation, format!("tag {tag}"), "tags go up to 2147418110"))
}
