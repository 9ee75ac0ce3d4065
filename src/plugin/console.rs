//! What a guest prints: the last part is kept for error messages, lines go to the log.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio_util::bytes::Bytes;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// Kept of one stream between two calls of [`Console::take`]; a panic's message is at the end.
const KEPT_BYTES: usize = 64 * 1024;

/// A guest's stdout or stderr. Never full: when there is too much, the oldest goes.
#[derive(Clone, Default)]
pub struct Console(Arc<Mutex<Vec<u8>>>);

impl Console {
    /// What was printed since the last call.
    pub fn take(&self) -> String {
        let mut kept = self.kept();
        if kept.is_empty() {
            return String::new();
        }
        let text = String::from_utf8_lossy(&kept).into_owned();
        kept.clear();
        text
    }

    fn print(&self, bytes: &[u8]) {
        let mut kept = self.kept();
        kept.extend_from_slice(&bytes[bytes.len().saturating_sub(KEPT_BYTES)..]);
        // Twice as much before it is cut, so that a chatty guest does not move the bytes at every write.
        if kept.len() > 2 * KEPT_BYTES {
            let surplus = kept.len() - KEPT_BYTES;
            kept.drain(..surplus);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StdoutStream for Console {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

impl IsTerminal for Console {
    fn is_terminal(&self) -> bool {
        false
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Console {
    async fn ready(&mut self) {}
}

impl OutputStream for Console {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.print(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(KEPT_BYTES)
    }
}

impl AsyncWrite for Console {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.print(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_was_printed_is_kept() {
        let console = Console::default();
        for _ in 0..10 {
            console.print(&[b'x'; KEPT_BYTES]);
        }
        console.print(b"the end");
        let text = console.take();
        assert!(text.ends_with("the end") && text.len() <= 2 * KEPT_BYTES + 7, "{}", text.len());
        assert_eq!(console.take(), "");
    }
}
