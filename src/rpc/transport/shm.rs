//! The `shm` transport: slots of memory that two processes of one host share. The receiver makes it and says into which slot
//! a piece of a tensor is to be put; with so few and small ones they stay in the cache.
//!
//! RT-10: a segment is sealed against growing and shrinking, so neither side can take it from under the other.
//! RT-11: a rank writes only into a file that its peer has filled with what the peer told it, that is sealed as a segment
//! is, and that is not its own: whatever else the peer names, nothing is written there.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::memory::{Process, SharedMemory};
use crate::rpc::wire::{MAX_CHUNK_BYTES, READS_IN_FLIGHT};

/// Slots of `MAX_CHUNK_BYTES`, one for each read that may be under way.
const SEGMENT_BYTES: usize = MAX_CHUNK_BYTES * READS_IN_FLIGHT;

/// One end of shared memory.
pub(crate) struct Segment {
    pub memory: SharedMemory,
    /// At the receiver: those that hold nothing.
    free: RefCell<Vec<u32>>,
    reads: Arc<Semaphore>,
}

const OPEN: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

fn seals() -> SealFlag {
    SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL
}

impl Segment {
    /// The receiver's end, which begins with `nonce`, and the file that the peer opens.
    pub fn create(nonce: &[u8]) -> io::Result<(Segment, File)> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create("pstrain", flags)?);
        file.set_len(SEGMENT_BYTES as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals()))?;
        let memory = SharedMemory::map(&file, SEGMENT_BYTES)?;
        memory.fill(nonce);
        Ok((Segment::over(memory), file))
    }

    fn over(memory: SharedMemory) -> Segment {
        let free = RefCell::new((0..READS_IN_FLIGHT as u32).collect());
        Segment { memory, free, reads: Arc::new(Semaphore::new(READS_IN_FLIGHT)) }
    }

    /// The sender's end: file `file` of another process (RT-11).
    pub fn open(process: u32, file: u32, nonce: &[u8]) -> io::Result<Segment> {
        let owner = Process::open(process)?;
        let path = format!("/proc/{process}/fd/{file}");
        // By its name first: opening a device or a pipe may do something, or wait.
        if !std::fs::read_link(&path)?.as_os_str().as_bytes().starts_with(b"/memfd:pstrain") {
            return Err(io::Error::other("it is not memory of this kind"));
        }
        let file = OpenOptions::new().read(true).write(true).custom_flags(OPEN).open(path)?;
        // It lived until now: what was opened by its number is its own, and so not this process's.
        if owner.has_ended() {
            return Err(io::Error::other("the process has ended"));
        }
        let has = fcntl(&file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate);
        // Huge pages could be taken away in spite of the seals.
        let ordinary = fstatfs(&file).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC);
        if has != Ok(seals()) || !ordinary || file.metadata()?.len() != SEGMENT_BYTES as u64 {
            return Err(io::Error::other("it is not memory of this kind"));
        }
        let memory = SharedMemory::map(&file, SEGMENT_BYTES)?;
        match memory.begins_with(nonce) {
            true => Ok(Segment::over(memory)),
            false => Err(io::Error::other("something else is in it")),
        }
    }

    /// A slot for one read, as soon as one is free.
    pub async fn take(self: Rc<Segment>) -> Slot {
        let one = self.reads.clone().acquire_owned().await.ok();
        let number = self.free.borrow_mut().pop().expect("as many as reads");
        Slot { segment: self, number, _one: one }
    }

    /// Where the slot begins. None: there is no such slot.
    pub fn offset(slot: u32) -> Option<usize> {
        let slot = slot as usize;
        (slot < READS_IN_FLIGHT).then(|| slot * MAX_CHUNK_BYTES)
    }
}

/// A slot that nobody else uses. It is to be kept until the sender has answered, even if the read was given up.
pub(crate) struct Slot {
    pub segment: Rc<Segment>,
    pub number: u32,
    _one: Option<OwnedSemaphorePermit>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.segment.free.borrow_mut().push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    use crate::rpc::transport::memory::{ReceiveBuffer, SendBuffer};

    fn refusal(process: u32, file: u32) -> String {
        Segment::open(process, file, &[7; 32]).err().expect("refused").to_string()
    }

    #[test]
    fn nothing_but_shared_memory_of_another_process_is_opened() {
        let (_own, file) = Segment::create(&[7; 32]).expect("there is memory");
        assert_eq!(refusal(std::process::id(), file.as_raw_fd() as u32), "it says that it is this process");
        // Of a process that is there: a file that is not memory, and none at all.
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .stdin(tempfile::tempfile().expect("a file"))
            .spawn()
            .expect("starts");
        let (file, none) = (refusal(other.id(), 0), refusal(other.id(), 77));
        other.kill().and_then(|()| other.wait()).expect("it was there");
        assert_eq!(file, "it is not memory of this kind");
        assert!(none.contains("No such file"), "{none}");
    }

    #[test]
    fn what_one_end_puts_the_other_takes() {
        let (segment, _) = Segment::create(&[7; 32]).expect("there is memory");
        assert!(segment.memory.begins_with(&[7; 32]) && !segment.memory.begins_with(&[8; 32]));
        let bytes = SendBuffer::of_tensor(tch::Tensor::from_slice(&[1i32, 2, 3, 4])).expect("contiguous");
        let mut buffer = ReceiveBuffer::for_tensor(tch::Kind::Int, &[4]).expect("small");
        let last = Segment::offset(READS_IN_FLIGHT as u32 - 1).expect("a slot");
        assert!(segment.memory.put(last, &bytes, 4, 8) && segment.memory.take(last, &mut buffer, 8, 8));
        let ReceiveBuffer::Tensor(tensor) = &buffer else { unreachable!() };
        assert_eq!(tensor.slice(0, 2, 4, 1), tch::Tensor::from_slice(&[2i32, 3]));
        // Beyond the tensors, and beyond the segment.
        assert!(!segment.memory.put(0, &bytes, 12, 8) && !segment.memory.take(0, &mut buffer, 12, 8));
        assert!(!segment.memory.put(SEGMENT_BYTES - 4, &bytes, 0, 8));
        assert_eq!(Segment::offset(READS_IN_FLIGHT as u32), None);
    }

    #[test]
    fn a_segment_can_be_neither_grown_nor_shrunk() {
        let (_, file) = Segment::create(&[7; 32]).expect("there is memory");
        assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
    }
}
