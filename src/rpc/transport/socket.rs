//! Sockets as calls want them: TCP between machines, Unix sockets inside one, where a message there and back takes half the
//! time.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;

use super::user;
use crate::human::hex;

/// Loss is the only sign of congestion that it knows (RFC 5681). Every Linux has it, and lets everybody choose it unless
/// told otherwise.
const UNPACED: &str = "reno";

/// A connection that was idle so long is tried, lest something on the way forget it: tensors may not come for hours.
const KEPT_ALIVE_AFTER_S: u32 = 60;

/// One attempt to connect; a packet may be lost without a word.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Where other ranks connect to.
pub(in crate::rpc) struct Listener {
    tcp: TcpListener,
    unix: Option<(UnixListener, UnixName)>,
}

/// The name of a Unix socket in the abstract namespace of this machine (of its network namespace: unix(7)). Whoever is there
/// can see it; both ends talk to processes of their own user only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) struct UnixName(pub [u8; 16]);

impl UnixName {
    /// One that nobody else has, from a nonce.
    pub fn of(nonce: &[u8; 32]) -> UnixName {
        UnixName(*nonce.first_chunk().expect("it is longer"))
    }
}

impl fmt::Display for UnixName {
    /// As a path, which begins with a zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\0pstrain-{}", hex(self.0))
    }
}

impl Listener {
    /// At a Unix socket of this name, too, if there is one. Should that not be possible, TCP does as well.
    pub fn new(tcp: TcpListener, unix: Option<UnixName>) -> Listener {
        let bind = |name: UnixName| match UnixListener::bind(name.to_string()) {
            Ok(listener) => Some((listener, name)),
            Err(error) => {
                tracing::debug!("ranks of this machine connect by TCP: no Unix socket: {error}");
                None
            }
        };
        Listener { tcp, unix: unix.and_then(bind) }
    }

    #[cfg(test)]
    pub fn tcp(&self) -> &TcpListener {
        &self.tcp
    }

    /// A connection, and if it came by TCP from this machine, the name at which it can come nearer.
    pub async fn accept(&self) -> io::Result<(Socket, Option<UnixName>)> {
        let Some((unix, name)) = &self.unix else { return Ok((self.accept_tcp().await?, None)) };
        tokio::select! {
            stream = self.accept_tcp() => {
                let stream = stream?;
                let nearer = stream.is_near().then_some(*name);
                Ok((stream, nearer))
            }
            stream = accept_own(unix) => Ok((Socket::Unix(stream?), None)),
        }
    }

    async fn accept_tcp(&self) -> io::Result<Socket> {
        let (stream, _) = self.tcp.accept().await?;
        // One that is gone already will say so.
        let _ = tune(&stream);
        Ok(Socket::Tcp(stream))
    }
}

/// The next connection of a process of this user; whoever else finds the socket is not even answered.
async fn accept_own(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        if stream.peer_cred().is_ok_and(|peer| user::is_own(peer.uid())) {
            return Ok(stream);
        }
        tracing::debug!("another user of this machine connected to the Unix socket");
    }
}

impl Socket {
    /// `address`: host:port.
    pub async fn connect(address: &str) -> io::Result<Socket> {
        let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await??;
        tune(&stream)?;
        Ok(Socket::Tcp(stream))
    }

    /// # Errors
    /// Nobody is there, or somebody of another user.
    pub async fn connect_near(name: UnixName) -> io::Result<Socket> {
        let stream = timeout(CONNECT_LIMIT, UnixStream::connect(name.to_string())).await??;
        match user::is_own(stream.peer_cred()?.uid()) {
            true => Ok(Socket::Unix(stream)),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is of another user")),
        }
    }

    /// Whether the process at the other end is on this machine and of this process's user.
    pub fn is_own(&self) -> bool {
        match self {
            Socket::Tcp(stream) => {
                let ends = stream.peer_addr().ok().zip(stream.local_addr().ok());
                ends.is_some_and(|(peer, own)| {
                    same_host(peer.ip(), own.ip()) && user::is_own_by_tcp(peer, own)
                })
            }
            // Of another user it would not have come this far.
            Socket::Unix(_) => true,
        }
    }

    /// Addresses: the peer's and this rank's. Those of a Unix socket are loopback.
    pub fn ends(&self) -> io::Result<(IpAddr, IpAddr)> {
        match self {
            Socket::Tcp(stream) => Ok((stream.peer_addr()?.ip(), stream.local_addr()?.ip())),
            Socket::Unix(_) => Ok((Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into())),
        }
    }

    /// Whether it stays inside this machine, as far as its ends tell.
    pub fn is_near(&self) -> bool {
        self.ends().is_ok_and(|(peer, own)| same_host(peer, own))
    }

    /// Waits until something comes, which is lost, or the peer is gone.
    pub async fn activity(&self) {
        loop {
            let read = match self {
                Socket::Tcp(stream) => {
                    stream.ready(Interest::READABLE).await.and_then(|_| stream.try_read(&mut [0]))
                }
                Socket::Unix(stream) => {
                    stream.ready(Interest::READABLE).await.and_then(|_| stream.try_read(&mut [0]))
                }
            };
            if !matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(context, from),
            Socket::Unix(stream) => Pin::new(stream).poll_write(context, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Neither keeps anything back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// What is written leaves at once. On a connection inside one machine, which loses nothing, it is not paced either, as
/// congestion control by bandwidth (BBR, the default of some systems) would; between machines it is kept alive.
///
/// # Errors
/// The connection is gone already.
pub(in crate::rpc) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if same_host(stream.peer_addr()?.ip(), stream.local_addr()?.ip()) {
        // Only for speed.
        let _ = setsockopt(stream, sockopt::TcpCongestion, &UNPACED.into());
        return Ok(());
    }
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEPT_ALIVE_AFTER_S)?;
    Ok(setsockopt(stream, sockopt::TcpKeepInterval, &KEPT_ALIVE_AFTER_S)?)
}

/// Whether a connection with these ends does not leave the machine.
pub(in crate::rpc) fn same_host(peer: IpAddr, own: IpAddr) -> bool {
    peer == own
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::sys::socket::getsockopt;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn unused_name() -> UnixName {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut name = [0; 16];
        name[..4].copy_from_slice(&std::process::id().to_le_bytes());
        name[4..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        UnixName(name)
    }

    /// The connecting end, the accepting one, and the name that came with it.
    async fn connect(listener: &Listener, name: Option<UnixName>) -> (Socket, Socket, Option<UnixName>) {
        let address = listener.tcp().local_addr().expect("bound").to_string();
        let near = async {
            match name {
                Some(name) => Socket::connect_near(name).await,
                None => Socket::connect(&address).await,
            }
        };
        let both = async { tokio::try_join!(near, listener.accept()) };
        let (near, (far, name)) = timeout(CONNECT_LIMIT, both).await.expect("in time").expect("both");
        (near, far, name)
    }

    #[tokio::test]
    async fn who_comes_by_tcp_hears_of_the_unix_socket_and_who_comes_there_does_not() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = unused_name();
        let listener = Listener::new(tcp, Some(at));
        let (by_tcp, _, name) = connect(&listener, None).await;
        assert_eq!((by_tcp.ends().expect("connected").0, name), (Ipv4Addr::LOCALHOST.into(), Some(at)));
        let (mut near, mut far, name) = connect(&listener, name).await;
        assert_eq!(name, None);
        near.write_all(b"hello").await.expect("there is room");
        let mut heard = [0; 5];
        timeout(CONNECT_LIMIT, far.read_exact(&mut heard)).await.expect("in time").expect("it was written");
        assert_eq!(&heard, b"hello");
    }

    #[tokio::test]
    async fn a_connection_that_leaves_the_machine_is_kept_alive() {
        for (address, kept_alive) in [("127.0.0.1:0", false), ("127.0.0.2:0", true)] {
            // From 127.0.0.1: with two different ends.
            let listener = Listener::new(TcpListener::bind(address).await.expect("a free port"), None);
            let (near, _far, _) = connect(&listener, None).await;
            let Socket::Tcp(near) = near else { panic!("there is no Unix socket") };
            assert_eq!(getsockopt(&near, sockopt::KeepAlive), Ok(kept_alive), "{address}");
        }
    }

    #[tokio::test]
    async fn a_stream_stirs_when_its_peer_goes() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = unused_name();
        let listener = Listener::new(tcp, Some(at));
        for name in [None, Some(at)] {
            let (near, far, _) = connect(&listener, name).await;
            let moment = Duration::from_millis(20);
            timeout(moment, far.activity()).await.expect_err("it is there");
            drop(near);
            timeout(CONNECT_LIMIT, far.activity()).await.expect("it is gone");
        }
    }
}
