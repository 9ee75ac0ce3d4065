//! What is to go out on a connection. Messages that are ready at the same time leave in one write: those of one turn of
//! the RPC thread, and those that come while the socket takes the ones before.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::human::exact_bytes;

/// A buffer that grew larger than that is not kept.
const KEPT_BYTES: usize = 256 << 10;

pub(super) struct Outbox {
    /// Everything that waits: the RPC system keeps nothing back.
    bytes: RefCell<Vec<u8>>,
    /// What the peer may leave unread.
    most_bytes: usize,
    filled: Notify,
    /// Nothing is left, or nothing will be written any more.
    idle: Cell<bool>,
    emptied: Notify,
}

/// The end into which messages are written. A flush does not wait for the socket.
pub(super) struct Inlet(pub Rc<Outbox>);

impl Outbox {
    pub fn new(most_bytes: usize) -> Rc<Outbox> {
        Rc::new(Outbox {
            bytes: RefCell::default(),
            most_bytes,
            filled: Notify::new(),
            idle: Cell::new(true),
            emptied: Notify::new(),
        })
    }

    /// Writes to the socket what comes, until that fails.
    pub async fn empty_into(&self, mut socket: impl AsyncWrite + Unpin) -> io::Result<()> {
        let mut leaving = Vec::new();
        loop {
            while self.bytes.borrow().is_empty() {
                self.idle.set(true);
                self.emptied.notify_waiters();
                self.filled.notified().await;
            }
            mem::swap(&mut leaving, &mut *self.bytes.borrow_mut());
            if let Err(error) = socket.write_all(&leaving).await {
                self.idle.set(true);
                self.emptied.notify_waiters();
                return Err(error);
            }
            leaving.clear();
            leaving.shrink_to(KEPT_BYTES);
        }
    }

    /// Waits until everything has gone to the socket.
    pub async fn emptied(&self) {
        while !self.idle.get() {
            self.emptied.notified().await;
        }
    }
}

impl AsyncWrite for Inlet {
    /// # Errors
    /// The peer reads too little of what is sent to it.
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let outbox = &self.0;
        let mut bytes = outbox.bytes.borrow_mut();
        if bytes.len() + from.len() > outbox.most_bytes {
            let why = format!("it does not read: {} wait for it", exact_bytes(bytes.len() as u64));
            return Poll::Ready(Err(io::Error::other(why)));
        }
        bytes.extend_from_slice(from);
        outbox.idle.set(false);
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.filled.notify_one();
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;
    use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};

    use super::*;

    /// Counts writes.
    struct Socket(Rc<RefCell<Vec<usize>>>);

    impl AsyncWrite for Socket {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
            self.0.borrow_mut().push(from.len());
            Poll::Ready(Ok(from.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn on_one_thread(work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, work);
    }

    #[test]
    fn what_is_there_at_once_leaves_in_one_write() {
        on_one_thread(async {
            let (outbox, writes) = (Outbox::new(1 << 20), Rc::default());
            let (own, socket) = (outbox.clone(), Socket(Rc::clone(&writes)));
            let task = tokio::task::spawn_local(async move { own.empty_into(socket).await });
            let mut inlet = Inlet(outbox.clone());
            for _ in 0..3 {
                inlet.write_all(&[7; 10]).await.expect("room");
                inlet.flush().await.expect("never waits");
            }
            outbox.emptied().await;
            assert_eq!(*writes.borrow(), [30]);
            task.abort();
        });
    }

    #[test]
    fn a_peer_that_reads_nothing_takes_bounded_memory() {
        on_one_thread(async {
            let (near, far) = tokio::io::duplex(16);
            let outbox = Outbox::new(1 << 20);
            let own = outbox.clone();
            let task = tokio::task::spawn_local(async move { own.empty_into(near.compat_write()).await });
            let mut inlet = Inlet(outbox.clone());
            let mut written = Ok(());
            for _ in 0..100 {
                written = inlet.write_all(&[1; 64 << 10]).await;
                inlet.flush().await.expect("never waits");
                tokio::task::yield_now().await;
                assert!(outbox.bytes.borrow().len() <= 1 << 20);
                if written.is_err() {
                    break;
                }
            }
            assert!(written.expect_err("too much").to_string().starts_with("it does not read: "));
            drop(far.compat());
            task.await.expect("no panic").expect_err("nobody reads");
            outbox.emptied().await;
        });
    }
}
