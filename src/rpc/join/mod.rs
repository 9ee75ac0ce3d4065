//! How the ranks find one another: all come to rank 0, which lets them in or says why not, and tells everyone who is
//! there; then each connects to the others directly, the higher rank to the lower.
//!
//! J-1: nothing a connection says is used, and nothing of the job is told to it, before it has proven the token. (But for
//! the name of a Unix socket, at which it has to prove it as well.)
//! J-2: somebody who is refused, or who talks nonsense, takes nothing from the others: rank 0 goes on waiting.
//! J-3: every wait ends with the join's deadline.

mod address;
mod handshake;
mod member;
mod rank0;
mod secret;

use std::time::Instant;

use tokio::net::TcpListener;

use self::handshake::{Introduction, Refusal};
pub(crate) use self::handshake::{Nonce, nonce};
pub(crate) use self::secret::same;
use super::config::MeshConfig;
use super::error::{JoinError, RefusalReason};
use super::mesh::Peer;
use super::payload::Forms;
use super::socket::{Listener, Stream, UnixName};
use crate::topology::Rank;

/// Connections that have not proven anything yet.
const MAX_STRANGERS: usize = 64;

/// Of the message that says who is there.
const MAX_WORLD_BYTES: usize = 1 << 20;

/// Everybody is here.
pub(crate) struct World {
    /// By rank.
    pub members: Vec<Peer>,
    /// A connection to each other rank.
    pub joined: Vec<Joined>,
}

pub(crate) struct Joined {
    pub rank: Rank,
    pub stream: Stream,
    /// Whether this rank is the one that accepted.
    pub accepted: bool,
    /// The payload forms that both sides take.
    pub forms: Forms,
}

pub(crate) async fn meet(config: MeshConfig, deadline: Instant) -> Result<World, JoinError> {
    match config.rank {
        Rank(0) => rank0::gather(config, deadline).await,
        _ => member::join(config, deadline).await,
    }
}

/// Where ranks reach this one: by TCP, and inside this machine by a Unix socket if that is wanted.
fn listener(config: &MeshConfig, tcp: TcpListener) -> Listener {
    Listener::new(tcp, config.forms.near().then(|| UnixName::of(&nonce())))
}

/// What a rank says of itself.
fn introduction(config: &MeshConfig, address: String) -> Introduction {
    Introduction {
        rank: config.rank,
        world_size: config.world_size,
        job_hash: config.job_hash,
        name: config.name.clone(),
        role: config.role.clone(),
        address,
        forms: config.forms,
    }
}

/// What every acceptor asks of a newcomer besides the token.
fn fits(config: &MeshConfig, came: &Introduction) -> Result<(), Refusal> {
    let refuse = |reason, message| Err(Refusal::new(reason, message));
    if came.job_hash != config.job_hash {
        let message =
            format!("it runs job {}, here runs job {}", short(&came.job_hash), short(&config.job_hash));
        return refuse(RefusalReason::Job, message);
    }
    if came.world_size != config.world_size {
        let message = format!("its world has {} ranks, here are {}", came.world_size, config.world_size);
        return refuse(RefusalReason::WorldSize, message);
    }
    if !config.world_size.contains(came.rank) {
        let message = format!("there is no rank {} in a world of {}", came.rank, config.world_size);
        return refuse(RefusalReason::RankOutOfRange, message);
    }
    Ok(())
}

fn short(hash: &[u8; 32]) -> String {
    hash[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Introduction {
    fn into_peer(self) -> Peer {
        Peer { rank: self.rank, name: self.name, role: self.role, address: self.address }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::try_join_all;
    use tokio::task::LocalSet;

    use super::secret::Key;
    use super::*;
    use crate::rpc::payload::Form;
    use crate::topology::WorldSize;

    /// Of the connections between three ranks of this machine, which are Unix sockets: six ends.
    fn unix_sockets(forms: [Forms; 3]) -> Vec<bool> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = socket.local_addr().expect("bound").to_string();
        let mut socket = Some(socket);
        let ranks = (0..).zip(forms).map(|(rank, forms)| {
            let mut config = MeshConfig::new(Rank(rank), WorldSize(3), address.clone());
            (config.forms, config.listen) = (forms, socket.take());
            meet(config, Instant::now() + Duration::from_secs(60))
        });
        let worlds = LocalSet::new().block_on(&runtime, try_join_all(ranks)).expect("all meet");
        let joined = worlds.iter().flat_map(|world| &world.joined);
        joined.map(|joined| matches!(joined.stream, Stream::Unix(_))).collect()
    }

    #[test]
    fn ranks_of_one_machine_meet_at_unix_sockets() {
        assert_eq!(unix_sockets([Forms::ALL; 3]), [true; 6]);
    }

    #[tokio::test]
    async fn who_cannot_reach_the_unix_socket_stays_at_tcp() {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("bound").to_string();
        let (key, me) = (Key::from_token(None), MeshConfig::new(Rank(1), WorldSize(2), address.clone()));
        let connector = async {
            let mut stream = Stream::connect(&address).await?;
            handshake::introduce(&mut stream, &key, &introduction(&me, address.clone())).await?;
            Ok(stream)
        };
        let acceptor = async {
            let (mut stream, _) = Listener::new(socket, None).accept().await?;
            let nowhere = UnixName::of(&nonce());
            handshake::accept(&mut stream, Some(nowhere), &key, Forms::ALL, |_| Ok(())).await
        };
        let (stream, came) = tokio::try_join!(connector, acceptor).expect("let in");
        assert!(matches!(stream, Stream::Tcp(_)) && came.rank == Rank(1));
    }

    #[test]
    fn who_takes_no_form_of_one_machine_stays_at_tcp() {
        let far = Forms::only(Form::Bulk);
        assert_eq!(unix_sockets([far; 3]), [false; 6]);
        // Rank 0 with 1 and 2, 1 with 0 and 2, 2 with 0 and 1.
        assert_eq!(unix_sockets([Forms::ALL, far, Forms::ALL]), [false, true, false, false, true, false]);
    }
}
