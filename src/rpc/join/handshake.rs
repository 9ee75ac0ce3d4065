//! The three messages that open a connection (`schema/join.capnp`). Nothing that comes is trusted before its proof.

use std::time::Duration;

use super::failure::{Failure, Refusal};
use super::frame::{Frame, PATIENCE, exactly, raw_text, receive_unproven, send, text, within};
use super::secret::{Key, Mac, Nonce, nonce, same};
use crate::human::one_line;
use crate::rpc::transport::socket::{Socket, UnixName};
use crate::rpc::transport::stream::Stream;
use crate::rpc::types::job_keys::JobKeys;
use crate::rpc::types::join_error::RefusalReason;
use crate::rpc::types::transport::Transports;
use crate::rpc::wire::join_capnp::{self as schema, answer, challenge, hello, refusal};
use crate::rpc::wire::{self, MAX_NAME_BYTES, MAX_TEXT_BYTES};
use crate::topology::{Rank, WorldSize};

/// From the moment that a connection stands until it has proven the token. A rank needs milliseconds, and comes again if it
/// was too slow.
const PROOF_LIMIT: Duration = Duration::from_secs(2);

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
    let frame = within(PROOF_LIMIT, async {
        send::<challenge::Owned>(&mut stream, |mut to| {
            to.set_magic(wire::MAGIC);
            to.set_version(wire::VERSION);
            to.set_nonce(&own);
            if let Some(UnixName(name)) = &nearer {
                to.set_unix(name);
            }
        })
        .await?;
        receive_unproven(&mut stream).await
    })
    .await?;
    let (mut came, nonce) = match judge(&frame, key, &own) {
        Ok(came) => came,
        Err(Failure::Refused(refused)) => {
            refuse(&mut stream, &refused, None).await?;
            return Err(Failure::Refused(refused));
        }
        Err(failure) => return Err(failure),
    };
    came.transports = came.transports & own_transports;
    if let Err(refused) = of_this_user(&stream, key).and_then(|()| admit(&came)) {
        refuse(&mut stream, &refused, Some(refusal_proof(key, &nonce, &own, &refused.message))).await?;
        return Err(Failure::Refused(refused));
    }
    let proof = accepted(key, &nonce, &own, came.transports);
    send::<answer::Owned>(&mut stream, |to| {
        let mut to = to.init_accepted();
        to.set_proof(&proof);
        to.set_transports(came.transports.0);
    })
    .await?;
    Ok((stream, came))
}

/// Without a token the system says who is on the other side.
fn of_this_user(stream: &Stream, key: &Key) -> Result<(), Refusal> {
    match key.is_public() && !stream.is_own() {
        false => Ok(()),
        true => Err(Refusal::new(
            RefusalReason::OtherUser,
            "it is not known to be of the same user, and there is no token",
        )),
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
    let mut came = Introduction {
        rank: Rank(hello.get_rank()),
        world_size: WorldSize(hello.get_world_size()),
        job_hash: exactly(hello.get_job_hash()?)?,
        job_keys: job_keys(hello.get_job_keys()?)?,
        name: raw_text(hello.get_name()?, MAX_NAME_BYTES)?.into(),
        role: raw_text(hello.get_role()?, MAX_NAME_BYTES)?.into(),
        address: raw_text(hello.get_address()?, MAX_NAME_BYTES)?.into(),
        transports: Transports(hello.get_transports()),
    };
    if !same(&came.mac(key, own, &nonce), hello.get_proof()?) {
        return Err(Failure::Refused(Refusal::new(
            RefusalReason::Token,
            "its join token is not the one of this job",
        )));
    }
    for text in [&mut came.name, &mut came.role, &mut came.address] {
        *text = one_line(text).into_owned();
    }
    Ok((came, nonce))
}

async fn refuse(stream: &mut Stream, refused: &Refusal, proof: Option<Mac>) -> Result<(), Failure> {
    send::<answer::Owned>(stream, |to| {
        let mut to = to.init_refused();
        write_refusal(to.reborrow(), refused);
        if let Some(proof) = &proof {
            to.set_proof(proof);
        }
    })
    .await
}

/// What the acceptor says first.
struct Challenge {
    nonce: Nonce,
    nearer: Option<UnixName>,
}

async fn challenge(stream: &mut Stream) -> Result<Challenge, Failure> {
    let frame = within(PATIENCE, receive_unproven(stream)).await?;
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
    if key.is_public() && !stream.is_own() {
        return Err(Failure::OtherUser);
    }
    let (own, theirs) = (nonce(), challenged.nonce);
    let proof = me.mac(key, &theirs, &own);
    // Even to another version: its answer says so in its own log too.
    send::<hello::Owned>(&mut stream, |to| write_hello(to, me, &own, &proof)).await?;
    let frame = within(PATIENCE, receive_unproven(&mut stream)).await?;
    let answer: answer::Reader<'_> = frame.get_root()?;
    match answer.which()? {
        answer::Refused(from) => {
            let from = from?;
            let mut refused = read_refusal(from)?;
            let proof = refusal_proof(key, &own, &theirs, from.get_message()?.to_str().unwrap_or_default());
            refused.is_proven = same(&proof, from.get_proof()?);
            Err(Failure::Refused(refused))
        }
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

fn write_hello(mut to: hello::Builder<'_>, me: &Introduction, nonce: &Nonce, proof: &Mac) {
    to.set_magic(wire::MAGIC);
    to.set_version(wire::VERSION);
    to.set_nonce(nonce);
    to.set_rank(me.rank.0);
    to.set_world_size(me.world_size.0);
    to.set_job_hash(&me.job_hash);
    to.set_job_keys(&me.job_keys);
    to.set_name(me.name.as_str());
    to.set_role(me.role.as_str());
    to.set_address(me.address.as_str());
    to.set_transports(me.transports.0);
    to.set_proof(proof);
}

/// What shows that who refuses knows the token.
fn refusal_proof(key: &Key, connector: &Nonce, acceptor: &Nonce, message: &str) -> Mac {
    key.mac(&[b"refused", connector, acceptor, sent_message(message).as_bytes()])
}

fn sent_message(message: &str) -> &str {
    wire::clip(message, MAX_TEXT_BYTES / 2)
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
        RefusalReason::OtherUser => Wire::OtherUser,
    });
    to.set_message(sent_message(&refused.message));
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
        Wire::OtherUser => RefusalReason::OtherUser,
    };
    Ok(Refusal::new(reason, text(from.get_message()?, MAX_TEXT_BYTES)?))
}

fn job_keys(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    match JobKeys::is_digests(bytes) {
        true => Ok(bytes.to_vec()),
        false => Err(Failure::NotPstrain),
    }
}

#[cfg(test)]
mod tests {
    use capnp::message::{Builder, HeapAllocator};
    use capnp::serialize;
    use proptest::prelude::*;

    use super::*;
    use crate::rpc::join::frame::read;
    use crate::rpc::join::world::introduction;
    use crate::rpc::types::config::MeshConfig;
    use crate::rpc::types::token::Token;

    fn hello(key: &Key, own: &Nonce) -> Vec<u8> {
        let me = introduction(&MeshConfig::new(Rank(1), WorldSize(2), "node1:1"), "node2:2".into());
        let nonce = nonce();
        let mut message = Builder::new(HeapAllocator::new());
        write_hello(message.init_root(), &me, &nonce, &me.mac(key, own, &nonce));
        serialize::write_message_to_words(&message)
    }

    proptest! {
        #[test]
        fn a_hello_that_was_changed_proves_nothing(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..8),
        ) {
            let (key, own) = (Key::from_token(Some(&Token::random())), nonce());
            let honest = hello(&key, &own);
            let mut bytes = honest.clone();
            for (at, change) in changes {
                let at = at.index(bytes.len());
                bytes[at] ^= change;
            }
            let known = judge(&read(&honest).expect("read"), &key, &own).expect("honest").0;
            let came = read(&bytes).and_then(|frame| judge(&frame, &key, &own));
            // Bytes that nobody reads may be anything.
            if let Ok((came, _)) = came {
                prop_assert_eq!((came.rank, came.name, came.address), (known.rank, known.name, known.address));
            }
        }
    }
}
