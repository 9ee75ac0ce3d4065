//! What one rank can see is wrong is refused before anything is sent, and what all can see by the check of a checked
//! group; the group goes on working after both.

use std::time::{Duration, Instant};

use c10d::{Error, Options, ProcessGroup, ReduceOp, Result, Store, threads, threads_with};
use tch::{Device, Kind, Tensor};

fn zeros(size: &[i64]) -> Tensor {
    Tensor::zeros(size, (Kind::Float, Device::Cpu))
}

fn alone(body: impl Fn(&ProcessGroup) -> String + Sync) -> String {
    threads(1, |group| Ok(body(group))).unwrap().remove(0)
}

fn refused<T>(result: Result<T>) -> String {
    match result {
        Err(error @ (Error::Misuse { .. } | Error::OutOfGroup { .. })) => error.to_string(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("no error"),
    }
}

#[test]
fn a_rank_outside_the_group_is_refused() {
    let message = alone(|group| refused(group.broadcast(&mut zeros(&[2]), 5)));
    assert_eq!(
        message,
        "broadcast on rank 0 of 1 (group `0`): there is no rank 5 in a group of 1\n  hint: its ranks are 0 to 0"
    );
    let store = Store::hash().unwrap();
    let message = refused(ProcessGroup::new(&store, 2, 2, Options::default()));
    assert!(message.contains("there is no rank 2 in a group of 2"), "{message}");
}

#[test]
fn lists_of_the_wrong_length_shape_or_dtype_are_refused() {
    let message = alone(|group| refused(group.all_gather(&mut [], &zeros(&[2]))));
    assert_eq!(
        message,
        "all_gather on rank 0 of 1 (group `0`): 0 outputs for 1 ranks\n  \
         hint: the list holds one tensor for each rank of the group"
    );
    let message = alone(|group| refused(group.all_gather(&mut [zeros(&[3])], &zeros(&[2]))));
    assert!(message.contains("the input is f32 [2], but output 0 is f32 [3]"), "{message}");
    let message = alone(|group| refused(group.all_gather_into(&mut zeros(&[3]), &zeros(&[2]))));
    assert!(message.contains("the output is f32 [3], which does not hold the input f32 [2]"), "{message}");
    let message = alone(|group| {
        let mixed = &mut [zeros(&[1]), zeros(&[1]).to_kind(Kind::Int)];
        refused(group.all_reduce_coalesced(mixed, ReduceOp::Sum))
    });
    assert!(message.contains("tensor 0 is f32 [1], but tensor 1 is i32 [1]"), "{message}");
    let message = alone(|group| refused(group.all_reduce_coalesced(&mut [], ReduceOp::Sum)));
    assert!(message.contains("no tensors"), "{message}");
    let message = alone(|group| refused(group.all_to_all_single(&mut zeros(&[3]), &zeros(&[3]), &[3], &[2])));
    assert!(message.contains("the input's splits [2] do not add up to its 3 rows"), "{message}");
}

#[test]
fn tensors_that_cannot_be_sent_as_they_are_are_refused() {
    let sum =
        |group: &ProcessGroup, mut tensor: Tensor| refused(group.all_reduce(&mut tensor, ReduceOp::Sum));
    let message = alone(|group| sum(group, zeros(&[2, 3]).transpose(0, 1)));
    assert_eq!(
        message,
        "all_reduce on rank 0 of 1 (group `0`): the tensor is not contiguous\n  hint: pass `tensor.contiguous()`"
    );
    let message = alone(|group| sum(group, zeros(&[2]).set_requires_grad(true)));
    assert!(message.contains("requires grad"), "{message}");
    let message = alone(|group| sum(group, zeros(&[2]).to_kind(Kind::Int16)));
    assert!(message.contains("has dtype i16, which Gloo does not send"), "{message}");
    let message = alone(|group| sum(group, zeros(&[2, 2]).to_sparse_sparse_dim(2)));
    assert!(message.contains("is sparse"), "{message}");
    let message = alone(|group| sum(group, Tensor::new()));
    assert!(message.contains("is undefined"), "{message}");
    let message = alone(|group| refused(group.all_reduce(&mut zeros(&[2]), ReduceOp::BitXor)));
    assert!(message.contains("BXOR of f32"), "{message}");
    let message =
        alone(|group| refused(group.all_reduce(&mut zeros(&[2]).to_kind(Kind::Int64), ReduceOp::Avg)));
    assert!(message.contains("AVG of i64"), "{message}");
    let message = alone(|group| refused(group.all_reduce(&mut zeros(&[2]), ReduceOp::PremulSum(0.5))));
    assert!(message.contains("the backend gloo has no PREMUL_SUM(0.5)"), "{message}");
}

#[test]
fn a_leaf_may_be_written_where_autograd_does_not_look() {
    threads(2, |group| {
        let mut leaf = zeros(&[2]).set_requires_grad(true);
        tch::no_grad(|| group.all_reduce(&mut leaf, ReduceOp::Sum))?;
        // The root only reads.
        let root = group.rank() == 0;
        let mut tensor = if root { leaf } else { zeros(&[2]) };
        group.broadcast(&mut tensor, 0)
    })
    .unwrap();
}

#[test]
fn a_message_to_oneself_is_refused() {
    let message = alone(|group| refused(group.send(&zeros(&[1]), 0, 0)));
    assert!(message.contains("rank 0 is this rank"), "{message}");
}

#[test]
fn a_subgroup_of_nobody_or_of_one_rank_twice_is_refused() {
    assert!(alone(|group| refused(group.subgroup(&[]))).contains("name one rank or more"));
    assert!(alone(|group| refused(group.subgroup(&[0, 0]))).contains("each once"));
    assert!(alone(|group| refused(group.subgroup(&[1]))).contains("there is no rank 1"));
}

fn checked(seconds: u64) -> Options {
    Options { checked: true, timeout: Duration::from_secs(seconds), ..Options::default() }
}

///
#[test]
fn different_shapes_are_found_by_all_ranks_and_the_group_goes_on() {
    let messages = threads_with(3, &checked(20), |group| {
        let mut tensor = zeros(&[2 + i64::from(group.rank() == 1)]);
        let error = group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        group.barrier()?;
        Ok(error.to_string())
    })
    .unwrap();
    assert_eq!(
        messages[2],
        "all_reduce on rank 2 of 3 (group `0`): the ranks do not agree: ranks 0 and 2 called all_reduce(f32 [2], SUM), \
         rank 1 called all_reduce(f32 [3], SUM)\n  hint: what ranks do together has one shape and dtype, and the same order on all of them"
    );
}

#[test]
fn different_operations_roots_and_reductions_are_found() {
    threads_with(2, &checked(20), |group| {
        let first = group.rank() == 0;
        let mut tensor = zeros(&[2]);
        let differ = |result: Result<()>, words: &str| {
            let message = result.unwrap_err().to_string();
            assert!(message.contains("do not agree") && message.contains(words), "{message}");
        };
        let result = if first { group.barrier() } else { group.broadcast(&mut tensor, 0) };
        differ(result, "rank 0 called barrier(), rank 1 called broadcast(f32 [2], from rank 0)");
        differ(group.broadcast(&mut tensor, group.rank()), "rank 1 called broadcast(f32 [2], from rank 1)");
        let op = if first { ReduceOp::Sum } else { ReduceOp::Max };
        differ(group.all_reduce(&mut tensor, op), "rank 1 called all_reduce(f32 [2], MAX)");
        differ(group.subgroup(&[group.rank()]).map(drop), "rank 1 called subgroup([1])");
        group.barrier()
    })
    .unwrap();
}

///
#[test]
fn a_message_that_does_not_fit_is_found_by_whoever_comes_second() {
    for second in [0, 1] {
        let (come, came) = std::sync::mpsc::channel();
        let came = std::sync::Mutex::new(came);
        let messages = threads_with(2, &checked(20), |group| {
            let impatient = group.with_timeout(Duration::from_millis(300));
            let tensor = zeros(&[2 + i64::from(group.rank())]);
            let start = || match group.rank() {
                0 => impatient.isend(tensor, 1, 5),
                _ => impatient.irecv(tensor, 0, 5),
            };
            // Those of one size pass, whatever the shape.
            match group.rank() {
                0 => group.send(&zeros(&[4]), 1, 5)?,
                _ => group.recv(&mut zeros(&[2, 2]), 0, 5)?,
            }
            if group.rank() != second {
                let work = start()?;
                come.send(()).unwrap();
                assert!(matches!(work.wait(), Err(Error::Timeout { .. } | Error::PeerLost { .. })));
                return Ok(String::new());
            }
            came.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            let Err(error @ Error::Mismatch { .. }) = start() else { panic!("no mismatch") };
            Ok(error.to_string())
        })
        .unwrap();
        let message = &messages[second as usize];
        for part in ["rank 0 called send(f32, 2 elements)", "rank 1 called recv(f32, 3 elements)"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn messages_from_anyone_pass_a_checked_group() {
    threads_with(2, &checked(20), |group| {
        if group.rank() == 0 {
            for n in [1, 2, 3] {
                group.send(&zeros(&[n]), 1, 0)?;
            }
        } else {
            group.recv(&mut zeros(&[1]), 0, 0)?;
            assert_eq!(group.recv_any(&mut zeros(&[2]), 0)?, 0);
            group.recv(&mut zeros(&[3]), 0, 0)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_group_that_ends_with_an_operation_in_flight_does_not_wait_for_it() {
    let start = Instant::now();
    let kept = threads(2, |group| {
        if group.rank() == 0 {
            let own = group.subgroup(&[0, 1])?.expect("rank 0 is in it");
            drop(own.all_reduce_async(zeros(&[4]), ReduceOp::Sum)?);
            drop(own.irecv(zeros(&[4]), 1, 0)?);
            return Ok(None);
        }
        group.subgroup(&[0, 1])
    });
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(kept);
}

#[test]
fn a_rank_that_does_not_come_is_named_by_a_checked_group() {
    let start = Instant::now();
    let errors =
        threads_with(3, &checked(1), |group| Ok((group.rank() != 2).then(|| group.barrier().unwrap_err())))
            .unwrap();
    assert!(start.elapsed() < Duration::from_secs(8));
    match &errors[0] {
        Some(error @ Error::Timeout { missing, .. }) => {
            assert_eq!(missing, &[2]);
            let message = error.to_string();
            assert!(
                message.starts_with(
                    "barrier on rank 0 of 3 (group `0`): not done after 1s, rank 2 did not take part"
                ),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_does_not_come_to_the_meeting_is_named() {
    let store = Store::hash().unwrap();
    let options = Options { timeout: Duration::from_millis(500), ..Options::default() };
    let start = Instant::now();
    let error = ProcessGroup::new(&store, 0, 2, options).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert!(matches!(&error, Error::Timeout { missing, .. } if missing == &[1]), "{error}");
}

#[test]
fn an_operation_that_times_out_says_where_and_after_how_long() {
    let messages = threads(2, |group| {
        let impatient = group.with_timeout(Duration::from_millis(200));
        let result =
            if group.rank() == 0 { impatient.all_reduce(&mut zeros(&[1]), ReduceOp::Sum) } else { Ok(()) };
        Ok(result.err().map(|error| error.to_string()))
    })
    .unwrap();
    let message = messages[0].as_deref().unwrap_or("no error");
    assert!(
        message.starts_with("all_reduce on rank 0 of 2 (group `0`): not done after 200ms: "),
        "{message}"
    );
    assert!(!message.contains(".cc:") && !message.contains("frame #"), "{message}");
}
