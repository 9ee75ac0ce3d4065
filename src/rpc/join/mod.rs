//! How the ranks find one another: all come to rank 0, which lets them in or says why not, and tells everyone who is
//! there; then each connects to the others directly, the higher rank to the lower.
//!
//! J-1: nothing a connection says is used, and nothing of the job is told to it, before it has proven the token. (But for
//! the name of a Unix socket, at which it has to prove it as well.)
//! J-2: somebody who is refused, or who talks nonsense, takes nothing from the others: rank 0 goes on waiting.
//! J-3: every wait ends with the join's deadline, and that for a proof after two seconds.
//! J-4: connections that have proven nothing wait side by side, there are few of them, and what they announce is not
//! allocated; nobody listens when all are in.

mod address;
mod coordinator;
mod failure;
mod frame;
mod handshake;
mod member;
pub(crate) mod secret;
mod unauthenticated;
pub(crate) mod world;

use std::time::Instant;

use tokio::sync::mpsc;

use self::world::World;
use super::types::config::MeshConfig;
use super::types::join_error::JoinError;
use super::types::waiting::Waiting;
use crate::topology::Rank;

/// Joins; whom it waits for goes to `waiting` meanwhile.
pub(crate) async fn meet(
    config: MeshConfig,
    deadline: Instant,
    waiting: mpsc::UnboundedSender<Waiting>,
) -> Result<World, JoinError> {
    match config.rank {
        Rank(0) => coordinator::gather(config, deadline, waiting).await,
        _ => member::join(config, deadline, waiting).await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::try_join_all;
    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::secret::{Key, nonce};
    use super::world::introduction;
    use super::*;
    use crate::rpc::transport::socket::{Listener, Socket, UnixName};
    use crate::rpc::types::transport::{Transport, Transports};
    use crate::topology::WorldSize;

    /// Whether the connections between three ranks of this machine are Unix sockets: six ends.
    fn unix_sockets(transports: [Transports; 3]) -> Vec<bool> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = socket.local_addr().expect("bound").to_string();
        let mut socket = Some(socket);
        let ranks = (0..).zip(transports).map(|(rank, transports)| {
            let mut config = MeshConfig::new(Rank(rank), WorldSize(3), address.clone());
            (config.transports, config.listen) = (transports, socket.take());
            meet(config, Instant::now() + Duration::from_secs(60), mpsc::unbounded_channel().0)
        });
        let all_connected = async {
            let worlds = try_join_all(ranks).await?;
            try_join_all(worlds.into_iter().map(|World { mut joined, others, .. }| async {
                joined.extend(others.await?);
                Ok(joined)
            }))
            .await
        };
        let worlds: Result<Vec<_>, JoinError> = LocalSet::new().block_on(&runtime, all_connected);
        worlds.expect("all meet").iter().flatten().map(|joined| joined.stream.is_unix()).collect()
    }

    #[test]
    fn ranks_of_one_machine_meet_at_unix_sockets() {
        assert_eq!(unix_sockets([Transports::ALL; 3]), [true; 6]);
    }

    #[tokio::test]
    async fn who_cannot_reach_the_unix_socket_stays_at_tcp() {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("bound").to_string();
        let (key, me) = (Key::from_token(None), MeshConfig::new(Rank(1), WorldSize(2), address.clone()));
        let connector = async {
            let socket = Socket::connect(&address).await?;
            let introduced = handshake::introduce(socket, &key, &introduction(&me, address.clone())).await;
            introduced.map(|(stream, _)| stream)
        };
        let acceptor = async {
            let (socket, _) = Listener::new(socket, None).accept().await?;
            let nowhere = UnixName::of(&nonce());
            handshake::accept(socket, Some(nowhere), &key, Transports::ALL, |_| Ok(())).await
        };
        let (stream, (_, came)) = tokio::try_join!(connector, acceptor).expect("let in");
        assert!(!stream.is_unix() && came.rank == Rank(1));
    }

    #[test]
    fn who_takes_no_form_of_one_machine_stays_at_tcp() {
        let far = Transports::only(Transport::Bulk);
        assert_eq!(unix_sockets([far; 3]), [false; 6]);
        // Rank 0 with 1 and 2, 1 with 0 and 2, 2 with 0 and 1.
        assert_eq!(
            unix_sockets([Transports::ALL, far, Transports::ALL]),
            [false, true, false, false, true, false]
        );
    }
}
