//! Sockets as calls want them.

use std::io;
use std::net::IpAddr;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

/// Loss is the only sign of congestion that it knows (RFC 5681). Every Linux has it, and lets everybody choose it unless
/// told otherwise.
const UNPACED: &str = "reno";

/// What is written leaves at once. On a connection inside one machine, which loses nothing, it is not paced either, as
/// congestion control by bandwidth (BBR, the default of some systems) would.
///
/// # Errors
/// The connection is gone already.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if same_host(stream.peer_addr()?.ip(), stream.local_addr()?.ip()) {
        // Only for speed.
        let _ = setsockopt(stream, sockopt::TcpCongestion, &UNPACED.into());
    }
    Ok(())
}

/// Whether a connection with these ends does not leave the machine.
pub(super) fn same_host(peer: IpAddr, own: IpAddr) -> bool {
    peer == own
}
