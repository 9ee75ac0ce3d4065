//! Somebody between two ranks, who reads and changes what they say.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Connector,
    Acceptor,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Goes,
    Ends,
    /// Nothing more is passed on in this direction.
    Stalls,
}

/// Sees and may change bytes of one side, of which so many went before.
pub type Edit = dyn Fn(Side, usize, &mut Vec<u8>) -> Then + Send + Sync;

/// Passes on connections to `target`; the address at which it listens. Its threads end with the connections, and with the
/// test's process.
pub fn between(target: SocketAddr, edit: Arc<Edit>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for connector in listener.incoming().flatten() {
            // Its target may be gone: then so is the connection.
            let Ok(acceptor) = TcpStream::connect(target) else { continue };
            for (side, from, to) in
                [(Side::Connector, &connector, &acceptor), (Side::Acceptor, &acceptor, &connector)]
            {
                let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                let edit = edit.clone();
                thread::spawn(move || pass_on(side, from, to, &*edit));
            }
        }
    });
    address
}

fn pass_on(side: Side, mut from: TcpStream, mut to: TcpStream, edit: &Edit) {
    let mut before = 0;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..len].to_vec();
        let then = edit(side, before, &mut bytes);
        before += len;
        if to.write_all(&bytes).is_err() || then == Then::Ends {
            break;
        }
        if then == Then::Stalls {
            // Read on, so that the other side does not wait for that.
            while let Ok(1..) = from.read(&mut buffer) {}
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
