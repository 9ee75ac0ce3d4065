//! Connections that have not proven anything yet. Each has a task of its own, so none waits for another; there are limits
//! to how many there are, of one address and in all, and beyond them the oldest give way. Who knows the token has proven it
//! long before that.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{AbortHandle, spawn_local};

use crate::rpc::transport::socket::{Listener, Socket, UnixName};

/// The most connections of one address.
const MOST_OF_ONE: usize = 128;

/// The most connections of all addresses.
const MOST_IN_ALL: usize = 256;

/// When there are no file descriptors: they come back as others give up.
const PAUSE: Duration = Duration::from_millis(50);

/// Where a connection comes from. None: by the Unix socket, where only processes of this user come.
type Source = Option<IpAddr>;

#[derive(Default)]
pub(super) struct Unauthenticated {
    /// In the order in which they came.
    pending: RefCell<Vec<Pending>>,
    next: Cell<u64>,
    /// Addresses of ranks that are to come: they give way last.
    expected: Vec<IpAddr>,
}

struct Pending {
    number: u64,
    from: Source,
    task: AbortHandle,
}

/// Counts a connection among the unauthenticated ones until it is dropped.
pub(super) struct PendingConnection {
    among: Rc<Unauthenticated>,
    number: u64,
}

#[cfg(test)]
impl PendingConnection {
    /// A connection that nobody counts.
    pub fn alone() -> PendingConnection {
        PendingConnection { among: Rc::default(), number: 0 }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.among.pending.borrow_mut().retain(|pending| pending.number != self.number);
    }
}

/// Ends what it holds when it is dropped: nobody listens any more, and who has proven nothing is sent away.
pub(super) struct Accepting {
    task: AbortHandle,
    unauthenticated: Rc<Unauthenticated>,
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.task.abort();
        for pending in self.unauthenticated.pending.borrow().iter() {
            pending.task.abort();
        }
    }
}

/// Accepts connections side by side until what comes back is dropped. `welcome` drops its `PendingConnection` as soon as the other
/// side has proven itself.
pub(super) fn accept_all<F>(
    listener: Listener,
    expected: Vec<IpAddr>,
    welcome: impl Fn(Socket, Option<UnixName>, PendingConnection) -> F + 'static,
) -> Accepting
where
    F: Future<Output = ()> + 'static,
{
    let unauthenticated = Rc::new(Unauthenticated { expected, ..Unauthenticated::default() });
    let among = unauthenticated.clone();
    let task = spawn_local(async move {
        loop {
            match listener.accept().await {
                Ok((socket, nearer)) => {
                    let from = source(&socket);
                    among.start(from, |counted| welcome(socket, nearer, counted));
                }
                // Out of file descriptors, or the connection is gone already: neither lasts.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    });
    Accepting { task: task.abort_handle(), unauthenticated }
}

/// Ends connections that come before anybody can know of this rank, lest they fill the socket's queue. (A rank that was
/// told first comes again.)
pub(super) async fn turn_away(listener: &Listener) {
    loop {
        if listener.accept().await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn source(socket: &Socket) -> Source {
    match socket {
        Socket::Tcp(_) => socket.ends().ok().map(|(peer, _)| peer),
        Socket::Unix(_) => None,
    }
}

impl Unauthenticated {
    /// One more, for which another may have to go.
    fn start<F>(self: &Rc<Self>, from: Source, work: impl FnOnce(PendingConnection) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let sources: Vec<Source> = self.pending.borrow().iter().map(|pending| pending.from).collect();
        if let Some(goes) = gives_way(&sources, from, &self.expected) {
            let pending = self.pending.borrow_mut().remove(goes);
            pending.task.abort();
        }
        let number = self.next.replace(self.next.get() + 1);
        let task = spawn_local(work(PendingConnection { among: self.clone(), number }));
        self.pending.borrow_mut().push(Pending { number, from, task: task.abort_handle() });
    }
}

/// Which of the pending connections, oldest first, gives way to one more from `from`: the oldest of the same address
/// where that has as many as it may have; where there are as many as there may be, the oldest of the address that has
/// most, of those that are not expected first.
fn gives_way(pending: &[Source], from: Source, expected: &[IpAddr]) -> Option<usize> {
    let of = |source: Source| pending.iter().filter(|other| **other == source).count();
    let oldest = |source: Source| pending.iter().position(|other| *other == source);
    if of(from) >= MOST_OF_ONE {
        return oldest(from);
    }
    if pending.len() < MOST_IN_ALL {
        return None;
    }
    let is_expected = |source: Source| source.is_none_or(|address| expected.contains(&address));
    let crowd = pending.iter().max_by_key(|source| (!is_expected(**source), of(**source)))?;
    oldest(*crowd)
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Welcomes so many silent connections, whose welcome does not end. Which of them were sent away?
    async fn welcome_silent(count: usize) -> io::Result<Vec<usize>> {
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let address = tcp.local_addr()?;
        let welcomed = Rc::new(Cell::new(0));
        let counts = welcomed.clone();
        // As where ranks of that address are to come.
        let accepting =
            accept_all(Listener::new(tcp, None), vec![address.ip()], move |socket, _, counted| {
                counts.set(counts.get() + 1);
                async move {
                    let _held = (socket, counted);
                    std::future::pending().await
                }
            });
        let mut silent = Vec::new();
        for number in 1..=count {
            silent.push(TcpStream::connect(address).await?);
            while welcomed.get() < number {
                yield_now().await;
            }
        }
        // Whoever was to go has gone by then.
        let (mut gone, goes) = (Vec::new(), count.saturating_sub(MOST_OF_ONE));
        while gone.len() < goes {
            yield_now().await;
            gone = (0..count).filter(|&at| silent[at].try_read(&mut [0]).is_ok_and(|len| len == 0)).collect();
        }
        drop(accepting);
        Ok(gone)
    }

    #[tokio::test]
    async fn connections_are_welcomed_side_by_side_and_of_a_crowd_the_first_give_way() {
        let tasks = LocalSet::new();
        let work = tasks.run_until(async {
            assert_eq!(welcome_silent(2).await.expect("connects"), [0; 0]);
            assert_eq!(welcome_silent(MOST_OF_ONE + 2).await.expect("connects"), [0, 1]);
        });
        tokio::time::timeout(LIMIT, work).await.expect("in time");
    }

    fn address(last: u8) -> Source {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn who_comes_in_numbers_gives_way_to_itself() {
        let flood = vec![address(1); MOST_OF_ONE];
        assert_eq!(gives_way(&flood[1..], address(1), &[]), None);
        assert_eq!(gives_way(&flood, address(1), &[]), Some(0));
        assert_eq!(gives_way(&flood, address(2), &[]), None, "another address has room");
        let behind: Vec<Source> = [address(2)].into_iter().chain(flood).collect();
        assert_eq!(gives_way(&behind, address(1), &[]), Some(1), "not the other address");
    }

    #[test]
    fn when_all_is_full_the_largest_crowd_gives_way_and_expected_ranks_last() {
        let half = MOST_IN_ALL / 2;
        let mut pending = vec![address(1); half - 1];
        pending.extend(vec![address(2); half - 2]);
        pending.extend([address(3), address(4), None]);
        assert_eq!(pending.len(), MOST_IN_ALL);
        assert_eq!(gives_way(&pending, address(5), &[]), Some(0));
        let expected = [IpAddr::from([10, 0, 0, 1])];
        assert_eq!(gives_way(&pending, address(5), &expected), Some(half - 1));
        let all_expected = [1, 2, 3, 4].map(|last| IpAddr::from([10, 0, 0, last]));
        assert_eq!(gives_way(&pending, address(5), &all_expected), Some(0));
    }
}
