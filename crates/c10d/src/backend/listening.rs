//! The socket at which Gloo listens for the other ranks of a group.
//!
//! Gloo takes in whoever connects, waits for their first bytes without end, and keeps the connection as long as the group;
//! a rank that has no descriptors left for one more is ended by it. So the system keeps strangers away from it. While the
//! ranks meet, a connection is handed to Gloo with its first bytes, which a rank sends at once. When all have come, nobody
//! is let in any more: a connection that begins is answered, so that others see that this rank lives
//! ([`Peers::silent`](crate::group::Peers::silent)), and gets no further.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{FromRawFd as _, RawFd};
use std::{fs, io, ptr, slice};

use crate::shim;

/// For a first byte: far longer than ranks take to meet.
const FIRST_BYTE_LIMIT_S: c_int = 24 * 3600;

/// The shim calls it with what this rank is about to tell the others, who connect only then.
///
/// # Safety
/// `size` bytes, which live until it returns.
pub(super) unsafe extern "C" fn announced(entry: *const u8, size: usize) -> *mut c_char {
    // SAFETY: the caller's promise.
    let entry = unsafe { slice::from_raw_parts(entry, size) };
    let Some(address) = listens_at(entry) else {
        return shim::give_text("Gloo does not say where it listens in the way that this version of it does");
    };
    match with_socket(address, defer) {
        Ok(()) => ptr::null_mut(),
        Err(why) => shim::give_text(&format!("the socket of Gloo at {address}: {why}")),
    }
}

/// All ranks have come.
pub(crate) fn close(address: SocketAddr) -> io::Result<()> {
    with_socket(address, turn_away)
}

fn defer(socket: RawFd) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &FIRST_BYTE_LIMIT_S)
}

/// Lets no packet through but those that begin a connection: those the system answers by itself.
fn turn_away(socket: RawFd) -> io::Result<()> {
    const LOAD_FLAGS: libc::sock_filter = statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 13);
    const SYN: u32 = 0x02;
    let if_syn = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let mut program = [
        LOAD_FLAGS,
        libc::sock_filter { jt: 0, jf: 1, ..statement(if_syn, SYN) },
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn set<T>(socket: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let value: *const c_void = ptr::from_ref(value).cast();
    // SAFETY: takes any number for a socket, and reads a value of the size that is given, which lives until it returns.
    let returned = unsafe { libc::setsockopt(socket, level, name, value, size_of::<T>() as libc::socklen_t) };
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Calls `body` with this process's listening socket of that address, which belongs to a device of Gloo's that lives.
fn with_socket(address: SocketAddr, body: impl FnOnce(RawFd) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        if let Some(socket) = number.filter(|&number| is_listening_at(number, address)) {
            return body(socket);
        }
    }
    Err(io::Error::other("it is not there"))
}

fn is_listening_at(descriptor: RawFd, address: SocketAddr) -> bool {
    let mut listens: c_int = 0;
    let mut size = size_of::<c_int>() as libc::socklen_t;
    let into: *mut c_void = ptr::from_mut(&mut listens).cast();
    // SAFETY: takes any number for a socket, and writes at most `size` bytes.
    let asked =
        unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, into, &mut size) };
    if asked != 0 || listens == 0 {
        return false;
    }
    // SAFETY: a listening socket, which is asked for its address and not closed.
    let socket = ManuallyDrop::new(unsafe { TcpListener::from_raw_fd(descriptor) });
    // Not all of an address: IPv6 has a scope besides.
    socket.local_addr().is_ok_and(|own| (own.ip(), own.port()) == (address.ip(), address.port()))
}

/// From what a rank leaves in the store: the length of its host's name (8 bytes) and the name, the length of an
/// address (8 bytes) and the address as a `sockaddr`, then what does not matter here.
pub(crate) fn listens_at(entry: &[u8]) -> Option<SocketAddr> {
    let length = |at: usize| {
        let bytes = entry.get(at..at.checked_add(8)?)?;
        usize::try_from(u64::from_ne_bytes(bytes.try_into().ok()?)).ok()
    };
    let after_name = 8usize.checked_add(length(0)?)?;
    length(after_name)?;
    let address = entry.get(after_name.checked_add(8)?..)?;
    let family = u16::from_ne_bytes(address.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(address.get(2..4)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let ip: [u8; 4] = address.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = address.get(8..24)?.try_into().ok()?;
            Some(SocketAddr::new(Ipv6Addr::from(ip).into(), port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    /// For the system to hand over what it would: nothing tells that nothing comes.
    const MOMENT: Duration = Duration::from_millis(300);

    #[test]
    fn an_entry_of_gloos_table_gives_the_address() {
        let mut entry = [2u64.to_ne_bytes().as_slice(), b"vm", &136u64.to_ne_bytes()].concat();
        entry.extend([2, 0, 0x86, 0x03, 127, 0, 0, 1]);
        assert_eq!(listens_at(&entry), Some("127.0.0.1:34307".parse().unwrap()));
        assert_eq!(listens_at(&entry[..20]), None);
        assert_eq!(listens_at(&u64::MAX.to_ne_bytes()), None);
    }

    /// The connections that wait to be taken in.
    fn taken_in(listener: &TcpListener) -> Vec<TcpStream> {
        listener.set_nonblocking(true).unwrap();
        std::iter::from_fn(|| listener.accept().ok()).map(|(stream, _)| stream).collect()
    }

    #[test]
    fn while_ranks_meet_only_who_says_something_is_taken_in() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        with_socket(address, defer).unwrap();
        let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut rank = TcpStream::connect(address).unwrap();
        rank.write_all(b"hello").unwrap();
        let (first, comes) = mpsc::channel();
        let accepting = listener.try_clone().unwrap();
        std::thread::spawn(move || first.send(accepting.accept().unwrap().0));
        let mut came = comes.recv_timeout(LIMIT).unwrap();
        came.set_read_timeout(Some(LIMIT)).unwrap();
        let mut heard = [0; 5];
        came.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
        assert!(taken_in(&listener).is_empty(), "{} said nothing", silent.len());
    }

    #[test]
    fn when_all_have_come_who_connects_is_answered_and_not_taken_in() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut before = TcpStream::connect(address).unwrap();
        let mut rank = listener.accept().unwrap().0;
        close(address).unwrap();
        for _ in 0..20 {
            let mut late = TcpStream::connect_timeout(&address, Duration::from_secs(2)).unwrap();
            late.write_all(b"hello").unwrap();
        }
        std::thread::sleep(MOMENT);
        assert!(taken_in(&listener).is_empty());
        rank.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        before.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello", "who was there before stays");
        drop(listener);
        let gone = TcpStream::connect(address).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_socket_that_is_not_there_is_said_to_be_missing() {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        assert_eq!(close(address).unwrap_err().to_string(), "it is not there");
    }
}
