//! One connection: sockets, and the RPC system on top.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use capnp::message::ReaderOptions;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use capnp_rpc::{Disconnector, RpcSystem};
use futures::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn_local};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::outbox::{Inlet, Outbox};
use super::questions::Bounded;
use crate::rpc::join::secret::Nonce;
use crate::rpc::join::world::Joined;
use crate::rpc::mesh::shared::Shared;
use crate::rpc::message::write::MessageWriter;
use crate::rpc::transport::bulk::BulkSender;
use crate::rpc::transport::direction::{Receiving, Sending};
use crate::rpc::transport::quota::ReceiveQuota;
use crate::rpc::transport::reaper::Reaper;
use crate::rpc::transport::shm::Segment;
use crate::rpc::types::transport::Transports;
use crate::rpc::wait::spin;
use crate::rpc::wire::peer_capnp::peer;
use crate::rpc::wire::{self, MAX_DEPTH};
use crate::topology::Rank;

/// Most messages come in by one read.
const BUFFER_BYTES: usize = 64 << 10;

pub(crate) struct Link {
    pub rank: Rank,
    pub peer: peer::Client,
    pub quota: ReceiveQuota,
    /// How large tensors go there, as the peer has asked for it.
    pub sending: RefCell<Sending>,
    /// How large tensors come from there, as this rank has asked for it.
    pub receiving: RefCell<Receiving>,
    /// The transports that both sides have.
    pub transports: Transports,
    /// Memory that the peer shares with this rank, if it has.
    pub mapped: RefCell<Option<Rc<Segment>>>,
    /// The peer has asked for a second connection, and is not to ask again.
    pub asked_to_dial: Cell<bool>,
    /// The second connection for what goes there, if the peer has asked for one.
    pub dialed: RefCell<Option<Rc<BulkSender>>>,
    /// Where the peer is, and this rank as the peer sees it.
    pub ends: Option<(IpAddr, IpAddr)>,
    /// What the peer is to find in this rank's memory.
    shown: RefCell<Box<Nonce>>,
    /// Calls of this peer that are served.
    pub served: Arc<AtomicUsize>,
    /// When something last came from it.
    pub last_received: Rc<Cell<Instant>>,
    /// Since then, how long this thread was not there to listen.
    pub overslept: Cell<Duration>,
    /// How often what this rank does had changed when the peer was told last.
    pub announced: Cell<u64>,
    /// The last heartbeat is not answered yet.
    pub beating: Cell<bool>,
    /// What it last said it was doing, and when.
    pub doing: RefCell<(String, Instant)>,
    system: AbortHandle,
    outbox: Rc<Outbox>,
    writer: AbortHandle,
    disconnector: RefCell<Option<Disconnector<Side>>>,
}

impl Link {
    /// Starts to talk and listen; the peer may call what is `offered`. `gone` says why the connection is of no use any
    /// more.
    pub fn start(
        joined: Joined,
        offered: peer::Client,
        shared: &Shared,
        gone: oneshot::Sender<String>,
    ) -> Link {
        let Joined { rank, stream, accepted, transports } = joined;
        let ends = stream.ends().ok();
        let last_received = Rc::new(Cell::new(Instant::now()));
        let gone = Rc::new(Gone(Cell::new(Some(gone))));
        let (read, write) = tokio::io::split(stream);
        let read = Watched { inner: read.compat(), last_received: last_received.clone(), gone: gone.clone() };
        let write =
            Watched { inner: write.compat_write(), last_received: last_received.clone(), gone: gone.clone() };
        let outbox = Outbox::new(shared.max_unread_bytes);
        // What cannot be written the RPC system drops, and goes on.
        let inlet = Watched {
            inner: Inlet(outbox.clone()),
            last_received: last_received.clone(),
            gone: gone.clone(),
        };
        let leaving = outbox.clone();
        // What goes wrong is noticed by `write`.
        let writer = spawn_local(async move { leaving.empty_into(write).await });
        let (own, other) = match accepted {
            true => (Side::Server, Side::Client),
            false => (Side::Client, Side::Server),
        };
        let network =
            VatNetwork::new(BufReader::with_capacity(BUFFER_BYTES, read), inlet, own, reader_options());
        let mut system = RpcSystem::new(Box::new(Bounded(network)), Some(offered.client));
        let peer = system.bootstrap(other);
        let disconnector = system.get_disconnector();
        let task = spawn_local(async move {
            let outcome = system.await;
            gone.report(|| match outcome {
                Ok(()) => "its connection was closed".into(),
                Err(error) => format!("its connection failed: {error}"),
            });
        });
        Link {
            rank,
            peer,
            quota: ReceiveQuota::new(shared.max_payload_bytes),
            sending: RefCell::default(),
            receiving: RefCell::default(),
            transports,
            mapped: RefCell::default(),
            asked_to_dial: Cell::default(),
            dialed: RefCell::default(),
            ends,
            shown: RefCell::default(),
            served: Arc::default(),
            last_received,
            overslept: Cell::default(),
            announced: Cell::default(),
            beating: Cell::default(),
            doing: RefCell::new(("starting".into(), Instant::now())),
            system: task.abort_handle(),
            outbox,
            writer: writer.abort_handle(),
            disconnector: RefCell::new(Some(disconnector)),
        }
    }

    pub fn message_writer<'a>(&self, reaper: &'a Reaper) -> MessageWriter<'a> {
        MessageWriter::new(reaper, self.sending.borrow().clone())
    }

    /// Puts `nonce` where the peer can look for it.
    pub fn show(&self, nonce: Nonce) -> u64 {
        let mut shown = self.shown.borrow_mut();
        **shown = nonce;
        shown.as_ptr() as u64
    }

    /// Writes out what is queued, for at most `limit`, then breaks the connection.
    pub async fn close(&self, limit: Duration) {
        let disconnector = self.disconnector.borrow_mut().take();
        if let Some(disconnector) = disconnector {
            let written = async {
                let _ = disconnector.await;
                self.outbox.emptied().await;
            };
            let _ = tokio::time::timeout(limit, written).await;
        }
        self.system.abort();
        self.writer.abort();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.system.abort();
        self.writer.abort();
    }
}

fn reader_options() -> ReaderOptions {
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(Some(wire::MAX_MESSAGE_WORDS));
    // Each list is two levels of pointers; some more lead to the first.
    options.nesting_limit(2 * MAX_DEPTH as i32 + 16);
    options
}

/// Says once why a connection is of no use any more.
struct Gone(Cell<Option<oneshot::Sender<String>>>);

impl Gone {
    fn report(&self, why: impl FnOnce() -> String) {
        if let Some(gone) = self.0.take() {
            let _ = gone.send(why());
        }
    }
}

/// Half of a socket, or the way to it, that tells when something comes, and notices its end at once.
struct Watched<T> {
    inner: T,
    last_received: Rc<Cell<Instant>>,
    gone: Rc<Gone>,
}

impl<T> Watched<T> {
    fn notice(&self, moved: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Err(error)) = moved {
            self.gone.report(|| format!("its connection broke: {error}"));
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.notice(&read);
        match &read {
            Poll::Ready(Ok(0)) => self.gone.report(|| "its process ended, or closed the connection".into()),
            Poll::Ready(Ok(_)) => {
                self.last_received.set(Instant::now());
                spin::end_wait();
            }
            _ => {}
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, buffer);
        self.notice(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(context)
    }
}
