//! A listening socket that c10d takes over, or does not.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};

pub struct Listening {
    socket: TcpListener,
    /// A second descriptor of it, c10d's to close once it has seen it.
    given: RawFd,
}

impl Listening {
    pub fn at(address: IpAddr, port: u16) -> io::Result<Self> {
        let socket = TcpListener::bind((address, port))?;
        let given = socket.try_clone()?.into_raw_fd();
        Ok(Self { socket, given })
    }

    /// The one that the system chose, where it was to.
    pub fn port(&self) -> Option<u16> {
        self.socket.local_addr().ok().map(|address| address.port())
    }

    pub fn given(&self) -> RawFd {
        self.given
    }

    /// Closes what c10d has not taken over, after it has failed. It does not say whether it has: the descriptor may be
    /// closed, and then be somebody else's by now.
    pub fn take_back(self) {
        let own = socket_of(self.socket.as_raw_fd());
        if own.is_some() && own == socket_of(self.given) {
            // SAFETY: a descriptor of our socket that is open, and that c10d, which has failed, will not use any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.given) });
        }
    }
}

/// What a descriptor stands for.
fn socket_of(descriptor: RawFd) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: takes any number, and room for its answer.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled in by the call, which did not fail.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn answers(port: u16) -> bool {
        TcpStream::connect((HERE, port)).is_ok()
    }

    #[test]
    fn what_was_not_taken_over_is_closed() {
        let listening = Listening::at(HERE, 0).unwrap();
        let port = listening.port().unwrap();
        assert!(answers(port));
        listening.take_back();
        assert!(!answers(port));
    }

    #[test]
    fn a_descriptor_that_is_somebody_elses_by_now_stays_open() {
        let listening = Listening::at(HERE, 0).unwrap();
        let other = TcpListener::bind((HERE, 0)).unwrap();
        // SAFETY: c10d closes what it was given; its number becomes the other's.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), listening.given()) }, listening.given());
        let given = listening.given();
        listening.take_back();
        assert!(socket_of(given).is_some());
        // SAFETY: the descriptor made above.
        drop(unsafe { OwnedFd::from_raw_fd(given) });
    }
}
