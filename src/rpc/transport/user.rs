//! Whose process is at the other end of a connection that stays inside this machine.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use nix::unistd::geteuid;

const LOOKS: u32 = 5;

/// Whether the process at the other end of a TCP connection inside this machine is of this process's user: as the system
/// lists its sockets (proc_pid_net(5)).
pub(super) fn is_own_by_tcp(peer: SocketAddr, own: SocketAddr) -> bool {
    let table = match peer {
        SocketAddr::V4(_) => "/proc/self/net/tcp",
        SocketAddr::V6(_) => "/proc/self/net/tcp6",
    };
    // A table that changes while it is read may lack a line.
    let look = |_| fs::read_to_string(table).ok().and_then(|table| owner(&table, peer, own));
    (0..LOOKS).find_map(look).is_some_and(is_own)
}

pub(super) fn is_own(user: u32) -> bool {
    user == geteuid().as_raw()
}

/// The user of the socket at `local` that is connected to `remote`.
fn owner(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    const USER: usize = 7;
    let (local, remote) = (listed(local), listed(remote));
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1..3) == Some(&[local.as_str(), remote.as_str()]);
        fields.get(USER).filter(|_| is_it)?.parse().ok()
    };
    table.lines().find_map(of)
}

/// As the table has it: words of the address as this machine reads them.
fn listed(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let word = |word: &[u8]| format!("{:08X}", u32::from_ne_bytes(word.try_into().expect("four bytes")));
    let words: String = octets.chunks_exact(4).map(word).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_of_this_process_is_of_its_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // Not every machine has IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
            let (far, _) = listener.accept().expect("a connection");
            let (peer, own) = (far.peer_addr().expect("connected"), far.local_addr().expect("connected"));
            assert!(is_own_by_tcp(peer, own));
            drop(near);
            assert!(!is_own_by_tcp("127.0.0.1:1".parse().expect("an address"), own), "nobody's");
        }
    }

    #[test]
    fn the_table_tells_who_has_a_socket() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 20 4 30 10 -1\n\
            1: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 13 1 0 20 4 30 10 -1\n";
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        if cfg!(target_endian = "little") {
            assert_eq!(owner(table, at(8080), at(40000)), Some(1000));
            assert_eq!(owner(table, at(40000), at(8080)), Some(1001));
            assert_eq!(owner(table, at(8080), at(40001)), None);
        }
    }
}
