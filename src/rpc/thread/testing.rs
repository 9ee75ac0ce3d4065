//! What tests of this crate share that need ranks.

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::rpc::{Mesh, MeshConfig, Methods};
use crate::topology::{Rank, WorldSize};

/// Longer than any world takes to meet.
const LIMIT: Duration = Duration::from_secs(60);

/// The ranks of a world, all of them in this process. `register` adds what each offers, `adjust` changes how it joins.
pub(crate) fn world(
    size: u32,
    register: impl Fn(&mut Methods),
    adjust: impl Fn(&mut MeshConfig),
) -> Vec<Mesh> {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("bound").to_string();
    let mut socket = Some(socket);
    let joins: Vec<_> = (0..size)
        .map(|rank| {
            let mut config = MeshConfig::new(Rank(rank), WorldSize(size), address.clone());
            config.listen = socket.take();
            adjust(&mut config);
            let (mut methods, (done, joined)) = (Methods::new(), mpsc::channel());
            register(&mut methods);
            thread::spawn(move || done.send(Mesh::join(config, methods)));
            joined
        })
        .collect();
    joins.into_iter().map(|joined| joined.recv_timeout(LIMIT).expect("in time").expect("joins")).collect()
}
