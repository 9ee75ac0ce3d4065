//! One rank of a group whose others may be Python's; see README.md.
//!
//!     rank env://               the rank, the size and the address are in the environment, as torchrun sets them
//!     rank tcp://HOST:PORT RANK SIZE
//!     rank file:///PATH RANK SIZE

use std::env;

use c10d::{Options, ProcessGroup, ReduceOp, Result, rendezvous};
use tch::Tensor;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let number = |text: &String| text.parse().expect("a number");
    let (url, given) = match args.as_slice() {
        [url] => (url, None),
        [url, rank, size] => (url, Some((number(rank), number(size)))),
        _ => panic!("usage: rank URL [RANK SIZE]"),
    };
    let (store, rank, size) = rendezvous(url, given)?;
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
