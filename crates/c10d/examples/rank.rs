//! One rank of a group whose others may be Python's; see README.md.
//!
//!     rank STORE RANK SIZE      STORE: tcp://HOST:PORT or a path

use std::env;

use c10d::{Options, ProcessGroup, ReduceOp, Result, Store, TcpOptions};
use tch::Tensor;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().collect();
    let [_, place, rank, size] = args.as_slice() else { panic!("usage: rank STORE RANK SIZE") };
    let (rank, size) = (rank.parse().expect("a rank"), size.parse().expect("a number of ranks"));
    let store = match place.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':')) {
        Some((host, port)) => Store::tcp(&TcpOptions::new(host, port.parse().expect("a port"), rank, size))?,
        None => Store::file(place, size)?,
    };
    let group = ProcessGroup::new(&store, rank, size, Options::default())?;

    let mut sum = Tensor::from_slice(&[f64::from(rank), 1.0]);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    println!("rank {rank}: all_reduce {:?}", Vec::<f64>::try_from(&sum).expect("numbers"));

    let mut from_last = Tensor::from(i64::from(rank));
    group.broadcast(&mut from_last, size - 1)?;
    println!("rank {rank}: broadcast {}", from_last.int64_value(&[]));

    // Around the ring.
    let sent = group.isend(Tensor::from(i64::from(rank)), (rank + 1) % size, 3)?;
    let mut received = Tensor::from(0i64);
    group.recv(&mut received, (rank + size - 1) % size, 3)?;
    drop(sent.wait()?);
    println!("rank {rank}: ring {}", received.int64_value(&[]));

    // The second group leaves this rank's neighbours out, the third has all.
    let ends = group.subgroup(&[0, size - 1])?;
    let all = group.subgroup(&(0..size).collect::<Vec<_>>())?;
    for (name, group) in [("ends", ends), ("all", all)] {
        if let Some(group) = group {
            let mut most = Tensor::from(i64::from(rank));
            group.all_reduce(&mut most, ReduceOp::Max)?;
            println!("rank {rank}: {name} {}", most.int64_value(&[]));
        }
    }
    group.barrier()
}
