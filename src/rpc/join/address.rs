//! Where to listen, and what to call it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, lookup_host};

use crate::rpc::types::config::MeshConfig;
use crate::rpc::types::join_error::JoinError;

/// The address at which rank 0 listens: the master's, and no other. Beyond loopback only with a token.
pub(super) fn bind_address(
    master: &[SocketAddr],
    token: bool,
    called: &str,
) -> Result<SocketAddr, JoinError> {
    // IPv4 first: it is what the other ranks try first where a name has both.
    let chosen = master.iter().find(|address| address.is_ipv4()).or(master.first());
    let Some(chosen) = chosen else {
        return Err(JoinError::Config(format!(
            "`{called}` has no address\n  hint: give the master's address as host:port"
        )));
    };
    if !token && !master.iter().all(|address| address.ip().is_loopback()) {
        return Err(JoinError::NoToken { address: called.into() });
    }
    Ok(*chosen)
}

fn everywhere(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, address.port())
}

/// Rank 0's socket.
pub(super) async fn listen_at_master(config: &mut MeshConfig) -> Result<TcpListener, JoinError> {
    let master = config.master.clone();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => JoinError::PortInUse { address: master.clone() },
        _ => JoinError::Listen { address: master.clone(), source },
    };
    if let Some(listener) = config.listen.take() {
        let here = listener.local_addr().map_err(failed)?;
        if config.token.is_none() && !here.ip().is_loopback() {
            return Err(JoinError::NoToken { address: here.to_string() });
        }
        listener.set_nonblocking(true).map_err(failed)?;
        return TcpListener::from_std(listener).map_err(failed);
    }
    let addresses: Vec<_> = lookup_host(&master).await.map_err(failed)?.collect();
    let address = bind_address(&addresses, config.token.is_some(), &master)?;
    match TcpListener::bind(address).await {
        // Something between this machine and the others translates addresses: the master's is not on any interface here.
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && config.token.is_some() => {
            TcpListener::bind(everywhere(address)).await.map_err(failed)
        }
        bound => bound.map_err(failed),
    }
}

/// A socket for the ranks above this one, which has reached rank 0 at `master` from `own`: on that interface. Who came by
/// loopback to a master that others may reach from elsewhere listens everywhere, if there is a token.
pub(super) async fn listen_beside(
    own: IpAddr,
    master: &str,
    token: bool,
) -> io::Result<(TcpListener, String)> {
    let any_port = SocketAddr::new(own, 0);
    let is_far = token && own.is_loopback() && !is_called_loopback(master);
    let listener = TcpListener::bind(if is_far { everywhere(any_port) } else { any_port }).await?;
    let address = SocketAddr::new(own, listener.local_addr()?.port());
    Ok((listener, address.to_string()))
}

/// Whether `host:port` means this machine on every machine. (A machine's own name may stand for loopback only there.)
fn is_called_loopback(master: &str) -> bool {
    let host = master.rsplit_once(':').map_or(master, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The address of a rank that reached rank 0 by loopback, for one that did not and so reached it at `master`.
pub(super) fn seen_from(address: &str, asker_is_far: bool, master: IpAddr) -> String {
    match address.parse::<SocketAddr>() {
        Ok(near) if asker_is_far && near.ip().is_loopback() => {
            SocketAddr::new(master, near.port()).to_string()
        }
        _ => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn without_a_token_only_loopback_is_listened_at() {
        let near = bind_address(&[at("[::1]:7"), at("127.0.0.1:7")], false, "localhost:7").expect("near");
        assert_eq!(near, at("127.0.0.1:7"));
        let far = bind_address(&[at("10.0.0.1:7")], false, "node:7").expect_err("far");
        assert!(matches!(far, JoinError::NoToken { .. }), "{far}");
    }

    #[test]
    fn with_a_token_too_only_the_masters_interface_is_listened_at() {
        assert_eq!(bind_address(&[at("10.0.0.1:7")], true, "node:7").expect("far"), at("10.0.0.1:7"));
        assert_eq!(bind_address(&[at("127.0.0.1:7")], true, "localhost:7").expect("near"), at("127.0.0.1:7"));
    }

    #[tokio::test]
    async fn the_other_ranks_listen_where_they_reached_rank_0() {
        let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for (master, token, everywhere) in [
            ("127.0.0.1:7", true, false),
            ("localhost:7", true, false),
            ("[::1]:7", true, false),
            ("node1:7", true, true),
            ("node1:7", false, false),
        ] {
            let (listener, address) = listen_beside(own, master, token).await.expect("a free port");
            let at = listener.local_addr().expect("bound");
            assert_eq!(at.ip().is_unspecified(), everywhere, "{master} {token}");
            assert_eq!(address, format!("127.0.0.1:{}", at.port()));
        }
    }

    #[test]
    fn a_far_rank_is_not_sent_to_its_own_loopback() {
        let master = "10.0.0.1".parse().expect("an address");
        assert_eq!(seen_from("127.0.0.1:400", true, master), "10.0.0.1:400");
        assert_eq!(seen_from("127.0.0.1:400", false, master), "127.0.0.1:400");
        assert_eq!(seen_from("10.0.0.2:400", true, master), "10.0.0.2:400");
    }
}
