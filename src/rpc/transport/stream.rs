//! What a handshake and then the calls of a connection run over.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::socket::Socket;

/// A connected socket with what is wrapped around it, which today is nothing.
///
/// Both sides of a connection make one before the first byte of their handshake ([`Stream::over`], called by `accept` and
/// `introduce` in `join/handshake.rs` and nowhere else): encryption belongs here, and whatever comes later, from the
/// challenge to the last call, goes through it. (The second connections of [`bulk`](super::bulk) have no handshake but a
/// token; they are made in `thread/negotiate.rs`.)
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
}

impl Stream {
    pub fn over(socket: Socket) -> Stream {
        Stream { socket }
    }

    /// Addresses: the peer's and this rank's. Those of a Unix socket are loopback.
    pub fn ends(&self) -> io::Result<(IpAddr, IpAddr)> {
        self.socket.ends()
    }

    /// Whether it stays inside this machine, as far as its ends tell.
    pub fn is_near(&self) -> bool {
        self.socket.is_near()
    }

    /// Whether the other end is a process of this one's user, on this machine.
    pub fn is_own(&self) -> bool {
        self.socket.is_own()
    }

    /// Waits until something comes, which is lost, or the peer is gone.
    pub async fn activity(&self) {
        self.socket.activity().await;
    }

    /// Whether it is a Unix socket.
    #[cfg(test)]
    pub fn is_unix(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(context, from)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }
}
