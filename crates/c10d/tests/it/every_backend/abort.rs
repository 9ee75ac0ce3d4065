//! A group that is given up, over every backend: what waits for a rank that does not come, ends.

use std::time::{Duration, Instant};

use c10d::{Error, ReduceOp, Result};
use tch::{Device, Kind, Tensor};

fn ones() -> Tensor {
    Tensor::ones([4], (Kind::Float, Device::Cpu))
}

#[test]
fn what_waits_for_a_late_rank_ends_with_the_group() {
    let aborted = |result: Result<Tensor>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
    };
    super::threads(2, |group| {
        if group.rank() == 1 {
            group.store().wait(&["given up"], Duration::from_secs(30))?;
            // MPI does not end before its operations have; Gloo's connections are closed.
            let _ = group.all_reduce(&mut ones(), ReduceOp::Sum);
            return Ok(());
        }
        let work = group.all_reduce_async(ones(), ReduceOp::Sum)?;
        let message = group.irecv(ones(), 1, 7)?;
        let start = Instant::now();
        group.abort();
        aborted(work.wait());
        aborted(message.wait());
        aborted(group.all_reduce_async(ones(), ReduceOp::Sum).and_then(|work| work.wait()));
        aborted(group.irecv(ones(), 1, 7).and_then(|work| work.wait()));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        group.store().set("given up", "")
    })
    .unwrap();
}
