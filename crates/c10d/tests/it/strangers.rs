//! Who connects to a rank without belonging to its group.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use c10d::{Options, ProcessGroup, ReduceOp, Store};
use tch::Tensor;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LIMIT: Duration = Duration::from_secs(60);
/// For the system to hand over what it would: nothing tells that nothing comes.
const MOMENT: Duration = Duration::from_millis(300);

fn member(store: &Store, rank: u32) -> ProcessGroup {
    let options = Options { host: Some(HERE), timeout: LIMIT, ..Options::default() };
    ProcessGroup::new(store, rank, 2, options).unwrap()
}

/// From what a rank leaves in the store: its host's name and an address, each behind its length.
fn address_of(rank: u32, store: &Store) -> SocketAddr {
    let store = store.prefix("default_pg").unwrap().prefix("0/").unwrap().prefix("cpu/").unwrap();
    let entry = store.get(&format!("0/{rank}")).unwrap();
    let name = usize::from_ne_bytes(entry[..8].try_into().unwrap());
    let port = &entry[8 + name + 8 + 2..][..2];
    (HERE, u16::from_be_bytes(port.try_into().unwrap())).into()
}

/// The connections to `port` that this process has taken in, by their own ports.
fn taken_in(port: u16) -> HashSet<u16> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port_in = |address: &str| u16::from_str_radix(address.split_once(':').unwrap().1, 16).unwrap();
    let sockets = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let here = sockets.filter(|socket| socket[3] == ESTABLISHED && port_in(socket[1]) == port);
    here.map(|socket| port_in(socket[2])).collect()
}

fn port_of(stream: &TcpStream) -> u16 {
    stream.local_addr().unwrap().port()
}

/// Two ranks meet, and others try to get in where the first one listens: while it is alone, and afterwards.
fn meet(first: u32) {
    let store = Store::hash().unwrap();
    let own = store.clone();
    let one = thread::spawn(move || member(&own, first));
    let address = address_of(first, &store);
    let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    let two = member(&store, 1 - first);
    let one = one.join().unwrap();
    let late: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[0; 64]).unwrap();
            stream
        })
        .collect();
    thread::sleep(MOMENT);
    let inside = taken_in(address.port());
    // One of the two connects to the other: which one, their addresses decide.
    assert_eq!(inside.len() + taken_in(address_of(1 - first, &store).port()).len(), 1);
    assert!(silent.iter().chain(&late).all(|stranger| !inside.contains(&port_of(stranger))));
    let sum = |group: &ProcessGroup| {
        let mut tensor = Tensor::from_slice(&[1.0f32]);
        group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        tensor.double_value(&[0])
    };
    let sums = thread::scope(|scope| {
        let other = scope.spawn(|| sum(&two));
        (sum(&one), other.join().unwrap())
    });
    assert_eq!(sums, (2.0, 2.0));
}

#[test]
fn neither_silent_connections_nor_late_ones_get_into_a_group() {
    meet(0);
    meet(1);
}
