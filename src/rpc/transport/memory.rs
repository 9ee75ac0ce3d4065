//! Memory as bytes: of tensors, of other processes, shared. The one file of `rpc` with hand-written `unsafe`.

#![allow(
    unsafe_code,
    reason = "libtorch gives a tensor's memory as a raw pointer only, and so do the system's calls"
)]

use std::collections::TryReserveError;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use nix::libc;
use tch::{Device, Kind, TchError, Tensor};

use crate::profile::beat;

/// Memory that a payload is read from. It owns its bytes, so they stay in place while it lives.
pub(crate) enum SendBuffer {
    /// Contiguous, on the CPU.
    Tensor(Tensor),
    Vec(Vec<u8>),
}

/// Memory that a payload is written to, all of it before it is handed on.
pub(crate) enum ReceiveBuffer {
    /// Contiguous, on the CPU, and looked at by nobody but who fills it before it is filled.
    Tensor(Tensor),
    /// It takes `len` bytes, for which there is memory; it has those up to the last that came.
    Vec { bytes: Vec<u8>, len: usize },
}

/// Moved by one system call: for its time the kernel holds the socket, and the other end waits. (A mebibyte over
/// loopback: 200 us in such pieces, 430 at once.)
const SOCKET_BYTES: usize = 256 << 10;

/// Another process, which is there and is not a thread of this one.
pub(crate) struct Process {
    id: i32,
    handle: OwnedFd,
}

impl Process {
    /// # Errors
    /// There is no such process (the number of one of its threads will not do), or it is this one.
    pub fn open(id: u32) -> io::Result<Process> {
        if id == std::process::id() {
            return Err(io::Error::other("it says that it is this process"));
        }
        let id = i32::try_from(id).map_err(io::Error::other)?;
        // SAFETY: pidfd_open(2) takes a number and flags, and gives a file descriptor of ours or -1.
        let handle = unsafe {
            match libc::syscall(libc::SYS_pidfd_open, id, 0) {
                -1 => return Err(io::Error::last_os_error()),
                handle => OwnedFd::from_raw_fd(handle as i32),
            }
        };
        Ok(Process { id, handle })
    }

    /// Then its number may be another's.
    pub fn has_ended(&self) -> bool {
        let mut wanted = libc::pollfd { fd: self.handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one `pollfd`, of ours, and no waiting.
        unsafe { libc::poll(&mut wanted, 1, 0) != 0 }
    }
}

/// Whether `len` bytes from `offset` on are among `there`.
fn inside(offset: usize, len: usize, there: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= there)
}

/// Bytes of a dense tensor's elements, none between them.
pub(crate) fn byte_len(tensor: &Tensor) -> Result<usize, TchError> {
    Ok(tensor.numel() * tensor.f_kind()?.elt_size_in_bytes())
}

impl SendBuffer {
    /// # Errors
    /// The tensor is not contiguous, or not on the CPU.
    pub fn of_tensor(tensor: Tensor) -> Result<SendBuffer, TchError> {
        readable(&tensor)?;
        Ok(SendBuffer::Tensor(tensor))
    }

    fn has(&self, offset: usize, len: usize) -> bool {
        let there = match self {
            SendBuffer::Vec(bytes) => bytes.len(),
            SendBuffer::Tensor(tensor) => byte_len(tensor).unwrap_or(0),
        };
        inside(offset, len, there)
    }

    /// Where they lie.
    pub fn address(&self) -> u64 {
        match self {
            SendBuffer::Vec(bytes) => bytes.as_ptr() as u64,
            SendBuffer::Tensor(tensor) => tensor.data_ptr() as u64,
        }
    }

    /// Writes the first `len` of them to `socket`. What is said of writers in `copy_to` holds here, too.
    ///
    /// # Errors
    /// They are not all there, or the connection is gone.
    pub fn send(&self, socket: &TcpStream, len: usize) -> io::Result<()> {
        if !self.has(0, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let from = self.address() as *const u8;
        // SAFETY: `len` bytes start there, and live as long as `self`; the kernel only reads them.
        all(len, |done| unsafe {
            let piece = SOCKET_BYTES.min(len - done);
            libc::send(socket.as_raw_fd(), from.add(done).cast(), piece, libc::MSG_NOSIGNAL)
        })
    }

    /// The bytes from `offset`, as many as `target` takes. False: they are not all there, and nothing was copied.
    ///
    /// Whoever sent a tensor may write to it meanwhile (parameters trained in place without locks are); then the
    /// copy has old bytes, new bytes, or some of both.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) -> bool {
        if !self.has(offset, target.len()) {
            return false;
        }
        match self {
            SendBuffer::Vec(bytes) => target.copy_from_slice(&bytes[offset..offset + target.len()]),
            SendBuffer::Tensor(tensor) => {
                if target.is_empty() {
                    return true;
                }
                // SAFETY: `of_tensor` saw a contiguous CPU tensor, whose `byte_len` bytes start at `data_ptr` and live
                // as long as `tensor` is held; the piece is inside them; `target` is borrowed mutably, hence elsewhere.
                unsafe {
                    let from = tensor.data_ptr().cast::<u8>().add(offset);
                    std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len());
                }
            }
        }
        true
    }
}

impl ReceiveBuffer {
    /// Fresh memory for a tensor. The caller has checked kind and shape against its limits.
    ///
    /// # Errors
    /// Libtorch has no memory for it.
    pub fn for_tensor(kind: Kind, shape: &[i64]) -> Result<ReceiveBuffer, TchError> {
        let tensor = Tensor::f_empty(shape, (kind, Device::Cpu))?;
        readable(&tensor)?;
        Ok(ReceiveBuffer::Tensor(tensor))
    }

    /// Fresh memory for bytes. The caller has checked their number against its limits.
    ///
    /// # Errors
    /// The system has no memory for them.
    pub fn for_bytes(len: usize) -> Result<ReceiveBuffer, TryReserveError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        Ok(ReceiveBuffer::Vec { bytes, len })
    }

    /// The same tensor once more, for whoever is to fill it, or other pieces of it.
    ///
    /// # Errors
    /// It is not of a tensor.
    pub fn again(&self) -> Result<ReceiveBuffer, TchError> {
        match self {
            ReceiveBuffer::Tensor(tensor) => Ok(ReceiveBuffer::Tensor(tensor.shallow_clone())),
            ReceiveBuffer::Vec { .. } => Err(TchError::Shape("not a tensor".into())),
        }
    }

    fn has(&self, offset: usize, len: usize) -> bool {
        let there = match self {
            ReceiveBuffer::Vec { len, .. } => *len,
            ReceiveBuffer::Tensor(tensor) => byte_len(tensor).unwrap_or(0),
        };
        inside(offset, len, there)
    }

    /// Fills the tensor with the next `len` bytes of `socket`.
    ///
    /// # Errors
    /// They are more than the tensor takes, or the connection is gone.
    pub fn receive(&mut self, socket: &TcpStream, len: usize) -> io::Result<()> {
        let ReceiveBuffer::Tensor(tensor) = &*self else { return Err(io::ErrorKind::InvalidInput.into()) };
        if !self.has(0, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let into = tensor.data_ptr().cast::<u8>();
        // SAFETY: as in `read_from`.
        all(len, |done| unsafe {
            let piece = SOCKET_BYTES.min(len - done);
            libc::recv(socket.as_raw_fd(), into.add(done).cast(), piece, 0)
        })
    }

    /// Fills `len` bytes of the tensor from `offset` on with those of another process, where its tensor begins at
    /// `address` (`process_vm_readv(2)`).
    ///
    /// # Errors
    /// This process may not read the other, it is gone, or it has no such memory.
    pub fn read_from(
        &mut self,
        process: &Process,
        address: u64,
        offset: usize,
        len: usize,
    ) -> io::Result<()> {
        let from = address.checked_add(offset as u64).filter(|_| self.has(offset, len));
        let ReceiveBuffer::Tensor(tensor) = self else { return Err(io::ErrorKind::InvalidInput.into()) };
        let from = from.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: `for_tensor` saw a contiguous CPU tensor of `byte_len` bytes, which live as long as `tensor` is held;
        // others who fill it write other pieces, and nobody reads before all are there; the piece is inside them.
        unsafe { copy_from_process(process, from, tensor.data_ptr().cast::<u8>().add(offset), len) }
    }

    /// False: it does not fit there, and nothing was copied.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        if !self.has(offset, bytes.len()) {
            return false;
        }
        match self {
            ReceiveBuffer::Vec { bytes: buffer, .. } => {
                let end = offset + bytes.len();
                // As far as a piece needs, and not all at once: zeros for gigabytes would hold the RPC thread up.
                if buffer.len() < end {
                    buffer.resize(end, 0);
                }
                buffer[offset..end].copy_from_slice(bytes);
            }
            ReceiveBuffer::Tensor(tensor) => {
                if bytes.is_empty() {
                    return true;
                }
                // SAFETY: as in `SendBuffer::copy_to`; the tensor was made by `for_tensor` and nobody else has it yet, so
                // nobody reads or writes its memory at the same time.
                unsafe {
                    let to = tensor.data_ptr().cast::<u8>().add(offset);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
                }
            }
        }
        true
    }
}

/// Fills `target` with the bytes at `address` of another process.
///
/// # Errors
/// As [`ReceiveBuffer::read_from`].
pub(crate) fn peek(process: &Process, address: u64, target: &mut [u8]) -> io::Result<()> {
    // SAFETY: `target` is borrowed mutably.
    unsafe { copy_from_process(process, address, target.as_mut_ptr(), target.len()) }
}

/// # Safety
/// `into` points to `len` bytes that nobody else reads or writes meanwhile.
unsafe fn copy_from_process(process: &Process, address: u64, into: *mut u8, len: usize) -> io::Result<()> {
    let address = usize::try_from(address).map_err(io::Error::other)?;
    address.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
    all(len, |done| {
        let theirs = libc::iovec { iov_base: (address + done) as *mut c_void, iov_len: len - done };
        // SAFETY: `done` is less than `len`, so this is inside; the kernel checks what `theirs` names.
        unsafe {
            let ours = libc::iovec { iov_base: into.add(done).cast(), iov_len: len - done };
            libc::process_vm_readv(process.id, &ours, 1, &theirs, 1, 0)
        }
    })?;
    match process.has_ended() {
        true => Err(io::Error::other("the process has ended")),
        false => Ok(()),
    }
}

/// Moves `len` bytes by a system call that may move fewer: `some` is told how many are done.
fn all(len: usize, some: impl Fn(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match usize::try_from(some(done)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => {
                done += moved;
                beat();
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Memory that another process may read and write at any time: what is copied out of it is whatever was there.
pub(crate) struct SharedMemory {
    map: MmapRaw,
}

impl SharedMemory {
    /// The first `len` bytes of `file`, which are there and stay there.
    ///
    /// # Errors
    /// The system cannot map it.
    pub fn map(file: &File, len: usize) -> io::Result<SharedMemory> {
        Ok(SharedMemory { map: MmapOptions::new().len(len).map_raw(file)? })
    }

    /// Puts `bytes` at the beginning, as many as there is room for.
    pub fn fill(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.map.len());
        // SAFETY: `len` bytes are mapped, and `bytes` is memory of this process alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr(), len) };
    }

    pub fn begins_with(&self, bytes: &[u8]) -> bool {
        let mut found = vec![0; bytes.len().min(self.map.len())];
        // SAFETY: as many bytes are mapped, and `found` is memory of this process alone.
        unsafe { std::ptr::copy_nonoverlapping(self.map.as_ptr(), found.as_mut_ptr(), found.len()) };
        found == bytes
    }

    /// Puts `len` of `bytes` from `offset` on at `at`. False: they are not all there, or do not fit.
    pub fn put(&self, at: usize, bytes: &SendBuffer, offset: usize, len: usize) -> bool {
        if !self.has(at, len) || !bytes.has(offset, len) {
            return false;
        }
        // SAFETY: both pieces are inside; `self` is mapped and `bytes` lives meanwhile; they are different memory.
        unsafe {
            let from = (bytes.address() as *const u8).add(offset);
            std::ptr::copy_nonoverlapping(from, self.map.as_mut_ptr().add(at), len);
        }
        true
    }

    /// Fills `len` bytes of `buffer` from `offset` on with those at `at`. False: they do not fit there.
    pub fn take(&self, at: usize, buffer: &mut ReceiveBuffer, offset: usize, len: usize) -> bool {
        if !buffer.has(offset, len) || !self.has(at, len) {
            return false;
        }
        let ReceiveBuffer::Tensor(tensor) = buffer else { return false };
        // SAFETY: as in `put`; for the tensor see `ReceiveBuffer::write`.
        unsafe {
            let into = tensor.data_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(self.map.as_ptr().add(at), into, len);
        }
        true
    }

    fn has(&self, at: usize, len: usize) -> bool {
        inside(at, len, self.map.len())
    }
}

fn readable(tensor: &Tensor) -> Result<(), TchError> {
    // In this order: libtorch throws when a sparse tensor is asked whether it is contiguous.
    if tensor.is_sparse() || tensor.is_mkldnn() || tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return Err(TchError::Shape("not a contiguous dense CPU tensor".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_copied_from_or_to_outside_a_tensor() {
        let bytes = SendBuffer::of_tensor(Tensor::from_slice(&[1i32, 2, 3])).expect("contiguous");
        let mut target = [0; 8];
        assert!(!bytes.copy_to(5, &mut target));
        assert!(!bytes.copy_to(usize::MAX, &mut target));
        assert!(bytes.copy_to(4, &mut target));
        assert_eq!(target, [2, 0, 0, 0, 3, 0, 0, 0]);

        let mut buffer = ReceiveBuffer::for_tensor(Kind::Int, &[2]).expect("small");
        assert!(!buffer.write(1, &target));
        assert!(buffer.write(0, &target));
        let ReceiveBuffer::Tensor(tensor) = buffer else { unreachable!() };
        assert_eq!(tensor, Tensor::from_slice(&[2i32, 3]));
    }

    #[test]
    fn room_for_bytes_takes_pieces_in_any_order_and_nothing_beyond_its_end() {
        let mut buffer = ReceiveBuffer::for_bytes(5).expect("small");
        assert!(buffer.write(3, &[4, 5]) && buffer.write(0, &[1, 2]) && buffer.write(2, &[3]));
        assert!(!buffer.write(4, &[6, 7]) && !buffer.write(usize::MAX, &[6]));
        let ReceiveBuffer::Vec { bytes, .. } = buffer else { unreachable!() };
        assert_eq!(bytes, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn room_that_the_system_does_not_have_is_an_error() {
        assert!(ReceiveBuffer::for_bytes(isize::MAX as usize).is_err());
    }

    #[test]
    fn a_strided_view_is_refused() {
        let tensor = Tensor::from_slice(&[1f32, 2., 3., 4.]).reshape([2, 2]).tr();
        assert!(SendBuffer::of_tensor(tensor).is_err());
    }
}
