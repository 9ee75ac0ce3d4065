//! The three messages that open a connection (`schema/join.capnp`). Nothing that comes is trusted before its proof.

use std::io;
use std::time::Duration;

use capnp::message::{Builder, HeapAllocator, Reader, ReaderOptions};
use capnp::serialize::{self, OwnedSegments};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::secret::{Key, Nonce, nonce, same};
use crate::rpc::transport::socket::{Socket, UnixName};
use crate::rpc::transport::stream::Stream;
use crate::rpc::types::job_keys::JobKeys;
use crate::rpc::types::join_error::RefusalReason;
use crate::rpc::types::transport::Transports;
use crate::rpc::wire::join_capnp::{self as schema, answer, challenge, hello, refusal};
use crate::rpc::wire::{self, MAX_NAME_BYTES, MAX_TEXT_BYTES};
use crate::topology::{Rank, WorldSize};

/// For one message of the other side.
const PATIENCE: Duration = Duration::from_secs(10);

/// Of a message before its sender has proven anything.
const MAX_FRAME_BYTES: usize = 8 << 10;

/// Who a connector says it is.
#[derive(Clone, Debug)]
pub(crate) struct Introduction {
    pub rank: Rank,
    pub world_size: WorldSize,
    pub job_hash: [u8; 32],
    /// Digests of [`JobKeys`].
    pub job_keys: Vec<u8>,
    pub name: String,
    pub role: String,
    /// `host:port` at which it accepts others.
    pub address: String,
    /// By which it can receive large tensors.
    pub transports: Transports,
}

/// Why somebody is sent away.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub reason: RefusalReason,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: RefusalReason, message: impl Into<String>) -> Refusal {
        Refusal { reason, message: message.into() }
    }
}

/// How a handshake failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The other side is something else.
    NotPstrain,
    /// It does not know the token.
    Unproven,
    Refused(Refusal),
    /// The connection broke, or nothing came.
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<capnp::Error> for Failure {
    fn from(_: capnp::Error) -> Failure {
        Failure::NotPstrain
    }
}

impl From<capnp::NotInSchema> for Failure {
    fn from(_: capnp::NotInSchema) -> Failure {
        Failure::NotPstrain
    }
}

impl Introduction {
    fn mac(&self, key: &Key, acceptor: &Nonce, connector: &Nonce) -> [u8; 32] {
        key.mac(&[
            b"hello",
            acceptor,
            connector,
            &self.rank.0.to_le_bytes(),
            &self.world_size.0.to_le_bytes(),
            &self.job_hash,
            &self.job_keys,
            self.name.as_bytes(),
            self.role.as_bytes(),
            self.address.as_bytes(),
            &self.transports.0.to_le_bytes(),
        ])
    }
}

/// The accepting side, which may name a nearer way to come. `admit` decides about a connector that knows the key; of the
/// transports that it has those are left that are among `own_transports`.
pub(crate) async fn accept(
    socket: Socket,
    nearer: Option<UnixName>,
    key: &Key,
    own_transports: Transports,
    admit: impl FnOnce(&Introduction) -> Result<(), Refusal>,
) -> Result<(Stream, Introduction), Failure> {
    let mut stream = Stream::over(socket);
    let own = nonce();
    send::<challenge::Owned>(&mut stream, |mut to| {
        to.set_magic(wire::MAGIC);
        to.set_version(wire::VERSION);
        to.set_nonce(&own);
        if let Some(UnixName(name)) = &nearer {
            to.set_unix(name);
        }
    })
    .await?;
    let frame = receive(&mut stream, MAX_FRAME_BYTES).await?;
    let verdict = judge(&frame, key, &own).and_then(|(mut came, nonce)| {
        came.transports = came.transports & own_transports;
        admit(&came).map_err(Failure::Refused)?;
        Ok((came, nonce))
    });
    match verdict {
        Ok((came, nonce)) => {
            let proof = accepted(key, &nonce, &own, came.transports);
            send::<answer::Owned>(&mut stream, |to| {
                let mut to = to.init_accepted();
                to.set_proof(&proof);
                to.set_transports(came.transports.0);
            })
            .await?;
            Ok((stream, came))
        }
        Err(Failure::Refused(refused)) => {
            refuse(&mut stream, &refused).await?;
            Err(Failure::Refused(refused))
        }
        Err(failure) => Err(failure),
    }
}

/// Version and key first: an unauthenticated connection learns nothing else.
fn judge(frame: &Frame, key: &Key, own: &Nonce) -> Result<(Introduction, Nonce), Failure> {
    let hello: hello::Reader<'_> = frame.get_root()?;
    if hello.get_magic() != wire::MAGIC {
        return Err(Failure::NotPstrain);
    }
    if hello.get_version() != wire::VERSION {
        return Err(Failure::Refused(Refusal::new(
            RefusalReason::Version,
            format!(
                "it speaks version {} of the protocol, here is version {}",
                hello.get_version(),
                wire::VERSION
            ),
        )));
    }
    let nonce: Nonce = exactly(hello.get_nonce()?)?;
    let came = Introduction {
        rank: Rank(hello.get_rank()),
        world_size: WorldSize(hello.get_world_size()),
        job_hash: exactly(hello.get_job_hash()?)?,
        job_keys: job_keys(hello.get_job_keys()?)?,
        name: text(hello.get_name()?, MAX_NAME_BYTES)?,
        role: text(hello.get_role()?, MAX_NAME_BYTES)?,
        address: text(hello.get_address()?, MAX_NAME_BYTES)?,
        transports: Transports(hello.get_transports()),
    };
    if !same(&came.mac(key, own, &nonce), hello.get_proof()?) {
        return Err(Failure::Refused(Refusal::new(
            RefusalReason::Token,
            "its join token is not the one of this job",
        )));
    }
    Ok((came, nonce))
}

pub(crate) async fn refuse(stream: &mut Stream, refused: &Refusal) -> Result<(), Failure> {
    send::<answer::Owned>(stream, |to| write_refusal(to.init_refused(), refused)).await
}

/// What the acceptor says first.
struct Challenge {
    nonce: Nonce,
    nearer: Option<UnixName>,
}

async fn challenge(stream: &mut Stream) -> Result<Challenge, Failure> {
    let frame = receive(stream, MAX_FRAME_BYTES).await?;
    let challenge: challenge::Reader<'_> = frame.get_root()?;
    if challenge.get_magic() != wire::MAGIC {
        return Err(Failure::NotPstrain);
    }
    let nearer = challenge.has_unix().then(|| exactly(challenge.get_unix()?).map(UnixName)).transpose()?;
    Ok(Challenge { nonce: exactly(challenge.get_nonce()?)?, nearer })
}

/// The connecting side, which comes nearer if it can. Gives the transports that both take.
pub(crate) async fn introduce(
    socket: Socket,
    key: &Key,
    me: &Introduction,
) -> Result<(Stream, Transports), Failure> {
    let near = socket.is_near();
    let mut stream = Stream::over(socket);
    let mut challenged = challenge(&mut stream).await?;
    if let Some(name) = challenged.nearer.filter(|_| me.transports.near() && near) {
        match Socket::connect_near(name).await {
            Ok(near) => {
                stream = Stream::over(near);
                challenged = challenge(&mut stream).await?;
            }
            Err(error) => tracing::debug!("a rank of this machine is reached by TCP only: {error}"),
        }
    }
    let (own, theirs) = (nonce(), challenged.nonce);
    let proof = me.mac(key, &theirs, &own);
    // Even to another version: its answer says so in its own log too.
    send::<hello::Owned>(&mut stream, |mut to| {
        to.set_magic(wire::MAGIC);
        to.set_version(wire::VERSION);
        to.set_nonce(&own);
        to.set_rank(me.rank.0);
        to.set_world_size(me.world_size.0);
        to.set_job_hash(&me.job_hash);
        to.set_job_keys(&me.job_keys);
        to.set_name(me.name.as_str());
        to.set_role(me.role.as_str());
        to.set_address(me.address.as_str());
        to.set_transports(me.transports.0);
        to.set_proof(&proof);
    })
    .await?;
    let frame = receive(&mut stream, MAX_FRAME_BYTES).await?;
    let answer: answer::Reader<'_> = frame.get_root()?;
    match answer.which()? {
        answer::Refused(refused) => Err(Failure::Refused(read_refusal(refused?)?)),
        answer::Accepted(answer) => {
            let transports = Transports(answer.get_transports());
            let expected = accepted(key, &own, &theirs, transports);
            match same(&expected, answer.get_proof()?) {
                true => Ok((stream, transports & me.transports)),
                false => Err(Failure::Unproven),
            }
        }
    }
}

fn accepted(key: &Key, connector: &Nonce, acceptor: &Nonce, transports: Transports) -> [u8; 32] {
    key.mac(&[b"accepted", connector, acceptor, &transports.0.to_le_bytes()])
}

pub(super) fn write_refusal(mut to: refusal::Builder<'_>, refused: &Refusal) {
    use schema::Reason as Wire;
    to.set_reason(match refused.reason {
        RefusalReason::Version => Wire::Version,
        RefusalReason::Token => Wire::Token,
        RefusalReason::Job => Wire::Job,
        RefusalReason::WorldSize => Wire::WorldSize,
        RefusalReason::RankOutOfRange => Wire::RankOutOfRange,
        RefusalReason::RankTaken => Wire::RankTaken,
        RefusalReason::NotExpected => Wire::NotExpected,
        RefusalReason::Timeout => Wire::Timeout,
    });
    to.set_message(wire::clip(&refused.message, MAX_TEXT_BYTES / 2));
}

pub(super) fn read_refusal(from: refusal::Reader<'_>) -> Result<Refusal, Failure> {
    use schema::Reason as Wire;
    let reason = match from.get_reason()? {
        Wire::Version => RefusalReason::Version,
        Wire::Token => RefusalReason::Token,
        Wire::Job => RefusalReason::Job,
        Wire::WorldSize => RefusalReason::WorldSize,
        Wire::RankOutOfRange => RefusalReason::RankOutOfRange,
        Wire::RankTaken => RefusalReason::RankTaken,
        Wire::NotExpected => RefusalReason::NotExpected,
        Wire::Timeout => RefusalReason::Timeout,
    };
    Ok(Refusal { reason, message: text(from.get_message()?, MAX_TEXT_BYTES)? })
}

pub(super) fn text(from: capnp::text::Reader<'_>, limit: usize) -> Result<String, Failure> {
    match from.len() <= limit {
        true => from.to_string().map_err(|_| Failure::NotPstrain),
        false => Err(Failure::NotPstrain),
    }
}

fn job_keys(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    match JobKeys::is_digests(bytes) {
        true => Ok(bytes.to_vec()),
        false => Err(Failure::NotPstrain),
    }
}

pub(super) fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Failure> {
    bytes.try_into().map_err(|_| Failure::NotPstrain)
}

pub(super) type Frame = Reader<OwnedSegments>;

/// One message: its length in bytes (u32, little-endian), then Cap'n Proto's own framing.
pub(super) async fn send<T>(stream: &mut Stream, write: impl FnOnce(T::Builder<'_>)) -> Result<(), Failure>
where
    T: capnp::traits::Owned,
{
    let mut message = Builder::new(HeapAllocator::new());
    write(message.init_root());
    let body = serialize::write_message_to_words(&message);
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    within(PATIENCE, stream.write_all(&frame)).await?;
    Ok(())
}

pub(super) async fn receive(stream: &mut Stream, limit: usize) -> Result<Frame, Failure> {
    within(PATIENCE, receive_frame(stream, limit)).await
}

/// Without a limit of its own on the time.
pub(super) async fn receive_frame(stream: &mut Stream, limit: usize) -> Result<Frame, Failure> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await?;
    let len = u32::from_le_bytes(len) as usize;
    if len > limit {
        return Err(Failure::NotPstrain);
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    Ok(serialize::read_message(&mut body.as_slice(), ReaderOptions::new())?)
}

async fn within<T, E>(limit: Duration, work: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
where
    Failure: From<E>,
{
    match tokio::time::timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => {
            Err(Failure::Io(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"))))
        }
    }
}
