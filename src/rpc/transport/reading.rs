//! A tensor being read out of another process: by the thread that needs it and, if it is large, by a second one, which
//! the mesh has for all of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use super::memory::{Process, ReceiveBuffer};

/// The bytes from which on two threads read a tensor. (16 MiB take 1.6 ms instead of 4 on a machine with two cores, 4 MiB 0.5
/// as before.)
const LARGE_BYTES: usize = 4 << 20;

/// Read at once by each of two threads, which then leaves its core to whoever wants it. (On two cores a small call beside
/// 64 MiB took 1.7 ms without that, and 0.7 with it.)
const CHUNK_BYTES: usize = 128 << 10;

/// Where the bytes lie.
#[derive(Clone)]
pub(crate) struct RemoteBuffer {
    pub process: Arc<Process>,
    pub address: u64,
}

/// What threads read together: each the next chunk that none has taken.
pub(super) struct Reading {
    buffer: ReceiveBuffer,
    len: usize,
    remote: RemoteBuffer,
    progress: Arc<Progress>,
    /// Where the second thread says how it went, if it helps.
    help: Option<Receiver<io::Result<()>>>,
}

/// In bytes.
#[derive(Default)]
struct Progress {
    /// From the first on, and beyond the last once there are no more.
    taken: AtomicUsize,
    done: AtomicUsize,
}

impl Reading {
    pub fn new(buffer: ReceiveBuffer, len: usize, remote: RemoteBuffer) -> Reading {
        Reading { buffer, len, remote, progress: Arc::default(), help: None }
    }

    /// Reads up to `most` bytes. True: then all are there.
    pub fn read_on(&mut self, most: usize, helper: &Helper) -> io::Result<bool> {
        if self.len >= LARGE_BYTES && self.taken() == 0 {
            self.help = self.again().and_then(|reading| helper.ask(reading));
        }
        if self.help.is_some() {
            for _ in 0..most / CHUNK_BYTES {
                if !self.read_chunk()? {
                    break;
                }
            }
        } else {
            self.read(most)?;
        }
        if self.taken() < self.len {
            return Ok(false);
        }
        if !self.is_done() {
            // The second thread is at its last chunk.
            let help = self.help.take().ok_or(io::ErrorKind::UnexpectedEof)?;
            help.recv().map_err(io::Error::other)??;
        }
        Ok(true)
    }

    /// Leaves nothing to read for the second thread.
    pub fn give_up(&self) {
        self.progress.taken.fetch_max(self.len, Ordering::Relaxed);
    }

    /// For another thread.
    fn again(&self) -> Option<Reading> {
        let (remote, progress) = (self.remote.clone(), self.progress.clone());
        Some(Reading { buffer: self.buffer.again().ok()?, len: self.len, remote, progress, help: None })
    }

    /// False: there is none left.
    fn read_chunk(&mut self) -> io::Result<bool> {
        let read = self.read(CHUNK_BYTES)?;
        thread::yield_now();
        Ok(read)
    }

    /// The next `most` bytes that none has taken. False: there are none left.
    fn read(&mut self, most: usize) -> io::Result<bool> {
        let start = self.progress.taken.fetch_add(most, Ordering::Relaxed);
        if start >= self.len {
            return Ok(false);
        }
        let len = most.min(self.len - start);
        self.buffer.read_from(&self.remote.process, self.remote.address, start, len)?;
        self.progress.done.fetch_add(len, Ordering::Release);
        Ok(true)
    }

    fn taken(&self) -> usize {
        self.progress.taken.load(Ordering::Relaxed)
    }

    /// Then what all threads have read is there for this one.
    fn is_done(&self) -> bool {
        self.progress.done.load(Ordering::Acquire) == self.len
    }
}

/// The thread that helps to read. It ends when the last clone is gone.
#[derive(Clone)]
pub(crate) struct Helper {
    /// None: there is no core for it, or no thread.
    ask: Option<SyncSender<Help>>,
}

struct Help {
    reading: Reading,
    done: SyncSender<io::Result<()>>,
}

impl Helper {
    pub fn start() -> Helper {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // Without a queue: what waited there would keep memory that nobody counts.
        let (ask, asked) = mpsc::sync_channel(0);
        let helps = move || asked.into_iter().for_each(Help::give);
        let started = cores > 1 && thread::Builder::new().name("rpc-read".into()).spawn(helps).is_ok();
        Helper { ask: started.then_some(ask) }
    }

    /// None: it has no time.
    fn ask(&self, reading: Reading) -> Option<Receiver<io::Result<()>>> {
        let (done, help) = mpsc::sync_channel(1);
        self.ask.as_ref()?.try_send(Help { reading, done }).ok()?;
        Some(help)
    }
}

impl Help {
    fn give(self) {
        let Help { mut reading, done } = self;
        let read = loop {
            match reading.read_chunk() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(reading);
        // Whoever asked may have all, or have given up.
        let _ = done.send(read);
    }
}
