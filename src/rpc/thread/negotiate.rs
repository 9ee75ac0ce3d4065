//! By which transport the tensors of a connection travel: each rank tries what could bring those of a peer fastest, and
//! asks the peer to send by the first that works.

use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{self, join_all};
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::link::Link;
use super::net::Net;
use crate::rpc::join::secret::{Nonce, nonce, same};
use crate::rpc::transport::bulk::{BulkReceiver, BulkSender};
use crate::rpc::transport::direction::{Receiving, Sending};
use crate::rpc::transport::memory::{self, Process};
use crate::rpc::transport::shm::Segment;
use crate::rpc::transport::socket;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::transport::Transport;

/// For the second connection to stand.
const DIAL_LIMIT: Duration = Duration::from_secs(3);

/// For an unauthenticated connection to bring the token.
const TOKEN_LIMIT: Duration = Duration::from_millis(500);

/// At a time, for one second connection.
const MOST_UNAUTHENTICATED: usize = 256;

impl Net {
    pub(super) async fn choose_transports(self: &Rc<Net>) {
        let links = self.membership.links();
        join_all(links.iter().map(|link| self.choose_transport(link))).await;
    }

    async fn choose_transport(&self, link: &Link) {
        let name = self.membership.name_of(link.rank);
        for transport in Transport::BY_SPEED.into_iter().filter(|transport| link.transports.has(*transport)) {
            match prepare(link, transport).await {
                Ok(receiving) => {
                    *link.receiving.borrow_mut() = receiving;
                    tracing::debug!("tensors of {name} travel by {transport}");
                    let mut request = link.peer.send_by_request();
                    request.get().set_transport(transport.bit());
                    // Should it fail, the connection has failed, or the peer goes on inline.
                    let _ = request.send().promise.await;
                    return;
                }
                Err(why) => tracing::info!("tensors of {name} do not travel by {transport}: {why}"),
            }
        }
    }
}

/// Makes this rank ready to receive tensors of the peer by this transport, if it works.
async fn prepare(link: &Link, transport: Transport) -> Result<Receiving, CallError> {
    Ok(match transport {
        Transport::Cma => Receiving::Cma(proven_process(link).await?),
        Transport::Shm => Receiving::Shm(Rc::new(shared_memory(link).await?)),
        Transport::Bulk => Receiving::Bulk(Rc::new(second_connection(link).await?)),
        Transport::Inline => Receiving::Inline,
    })
}

/// The process of the peer, if this rank can read its memory (RT-7).
async fn proven_process(link: &Link) -> Result<Arc<Process>, CallError> {
    on_this_host(link)?;
    let nonce = nonce();
    let mut request = link.peer.show_nonce_request();
    request.get().set_nonce(&nonce);
    let response = request.send().promise.await?;
    let response = response.get()?;
    let process = Process::open(response.get_process()).map_err(CallError::failed)?;
    let mut found = Nonce::default();
    memory::peek(&process, response.get_address(), &mut found).map_err(refused)?;
    match found == nonce {
        true => Ok(Arc::new(process)),
        false => Err(CallError::failed("something else is in its memory")),
    }
}

fn on_this_host(link: &Link) -> Result<(), CallError> {
    match link.ends.is_some_and(|(peer, own)| socket::same_host(peer, own)) {
        true => Ok(()),
        false => Err(CallError::failed("it is on another host")),
    }
}

/// Memory that the peer has found.
async fn shared_memory(link: &Link) -> Result<Segment, CallError> {
    on_this_host(link)?;
    let nonce = nonce();
    let (segment, file) = Segment::create(&nonce).map_err(CallError::failed)?;
    let mut request = link.peer.share_memory_request();
    request.get().set_process(std::process::id());
    request.get().set_file(file.as_raw_fd() as u32);
    request.get().set_nonce(&nonce);
    request.send().promise.await?;
    Ok(segment)
}

fn refused(error: io::Error) -> CallError {
    CallError::failed(format_args!("process_vm_readv: {error}"))
}

pub(super) fn nonce_of(bytes: &[u8]) -> Result<Nonce, capnp::Error> {
    bytes.try_into().map_err(|_| capnp::Error::failed(format!("a nonce of {} bytes", bytes.len())))
}

/// Waits where the peer is to connect to. Nobody else knows the token.
async fn second_connection(link: &Link) -> Result<BulkReceiver, CallError> {
    let (_, own) = link.ends.ok_or_else(|| CallError::failed("its address is not known"))?;
    let listener = TcpListener::bind((own, 0)).await.map_err(CallError::failed)?;
    let token = nonce();
    let mut request = link.peer.dial_request();
    request.get().set_port(listener.local_addr().map_err(CallError::failed)?.port());
    request.get().set_token(&token);
    let dialed = async { request.send().promise.await.map(drop).map_err(CallError::from) };
    let both = future::try_join(dialed, admit(&listener, &token));
    let ((), stream) = timeout(DIAL_LIMIT, both).await.unwrap_or_else(|_| {
        Err(CallError::failed(format_args!("no second connection came within {DIAL_LIMIT:?}")))
    })?;
    BulkReceiver::start(blocking(stream)?, link.rank).map_err(CallError::failed)
}

/// The connection that brings the token; others do not hold it up.
async fn admit(listener: &TcpListener, token: &Nonce) -> Result<TcpStream, CallError> {
    let mut unauthenticated = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if unauthenticated.len() < MOST_UNAUTHENTICATED => {
                    unauthenticated.push(timeout(TOKEN_LIMIT, brings(stream, token)));
                }
                Ok(_) => {}
                // One that is gone already is no reason to give up; the limit is the caller's.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            brought = unauthenticated.next(), if !unauthenticated.is_empty() => {
                if let Some(Ok(Some(stream))) = brought {
                    return Ok(stream);
                }
            }
        }
    }
}

async fn brings(mut stream: TcpStream, token: &Nonce) -> Option<TcpStream> {
    let mut brought = Nonce::default();
    stream.read_exact(&mut brought).await.ok()?;
    same(token, &brought).then_some(stream)
}

/// For a thread of its own.
fn blocking(stream: TcpStream) -> Result<std::net::TcpStream, CallError> {
    socket::tune(&stream).map_err(CallError::failed)?;
    let stream = stream.into_std().map_err(CallError::failed)?;
    stream.set_nonblocking(false).map_err(CallError::failed)?;
    Ok(stream)
}

impl Link {
    /// Makes the second connection for what this rank sends.
    pub async fn dial(&self, port: u16, token: Nonce) -> Result<(), CallError> {
        if self.asked_to_dial.replace(true) {
            return Err(CallError::failed("there is one second connection"));
        }
        let (peer, _) = self.ends.ok_or_else(|| CallError::failed("its address is not known"))?;
        let connect = async {
            let mut stream = TcpStream::connect((peer, port)).await?;
            stream.write_all(&token).await?;
            Ok::<_, io::Error>(stream)
        };
        let stream = timeout(DIAL_LIMIT, connect).await.map_err(CallError::failed)?;
        let stream = stream.map_err(|error| CallError::failed(format_args!("{peer}:{port}: {error}")))?;
        let outgoing = BulkSender::start(blocking(stream)?, self.rank).map_err(CallError::failed)?;
        *self.dialed.borrow_mut() = Some(Rc::new(outgoing));
        Ok(())
    }

    /// Finds the memory that the peer shares.
    pub fn map_memory(&self, process: u32, file: u32, nonce: Nonce) -> Result<(), CallError> {
        on_this_host(self)?;
        if self.mapped.borrow().is_some() {
            return Err(CallError::failed("memory is shared once"));
        }
        let segment = Segment::open(process, file, &nonce)
            .map_err(|error| CallError::failed(format_args!("file {file} of process {process}: {error}")))?;
        *self.mapped.borrow_mut() = Some(Rc::new(segment));
        Ok(())
    }

    /// Sends tensors as the peer has asked for it.
    pub fn send_by(&self, transport: u32) -> Result<Transport, CallError> {
        let asked = Transport::BY_SPEED
            .into_iter()
            .find(|known| known.bit() == transport && self.transports.has(*known));
        let ready = asked.and_then(|transport| {
            let sending = match transport {
                Transport::Inline => Sending::Inline,
                Transport::Cma => Sending::Cma,
                Transport::Shm => Sending::Shm(self.mapped.borrow().clone()?),
                Transport::Bulk => Sending::Bulk(self.dialed.borrow().clone()?),
            };
            Some((transport, sending))
        });
        let (transport, sending) = ready.ok_or_else(|| {
            let message = format_args!("transport {transport} is not one that both sides have made ready");
            CallError::of_kind(CallErrorKind::BadValue, message)
        })?;
        if !matches!(*self.sending.borrow(), Sending::Inline) {
            return Err(CallError::failed("how tensors go is settled once"));
        }
        *self.sending.borrow_mut() = sending;
        Ok(transport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_connections_do_not_hold_up_the_one_that_brings_the_token() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, token) = (listener.local_addr().expect("bound"), nonce());
        let mut silent = Vec::new();
        for _ in 0..50 {
            silent.push(TcpStream::connect(address).await.expect("connects"));
        }
        let comes = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(&token).await?;
            Ok::<_, io::Error>(stream)
        };
        let both = async { tokio::join!(comes, admit(&listener, &token)) };
        let (came, admitted) = timeout(DIAL_LIMIT, both).await.expect("in time");
        let admitted = admitted.expect("admitted").peer_addr().expect("connected");
        assert_eq!(came.expect("connects").local_addr().expect("connected"), admitted);
    }
}
