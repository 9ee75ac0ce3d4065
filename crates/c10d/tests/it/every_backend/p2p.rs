//! From rank to rank, and operations in flight.

use std::sync::mpsc;
use std::time::Duration;

use super::threads;
use c10d::ReduceOp;
use tch::Tensor;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn messages_go_to_the_receive_with_their_tag() {
    threads(2, |group| {
        let number = |n: i64| Tensor::from_slice(&[n, n]);
        if group.rank() == 0 {
            let first = group.isend(number(1), 1, 10)?;
            group.send(&number(2), 1, 20)?;
            drop(first.wait()?);
        } else {
            let mut tensor = number(0);
            group.recv(&mut tensor, 0, 20)?;
            assert_eq!(tensor.int64_value(&[1]), 2);
            let tensor = group.irecv(tensor, 0, 10)?.wait()?;
            assert_eq!(tensor.int64_value(&[1]), 1);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_receive_from_anyone_tells_from_whom() {
    threads(3, |group| {
        if group.rank() == 0 {
            let mut tensor = Tensor::from(0i64);
            let first = group.recv_any(&mut tensor, 0)?;
            assert_eq!(tensor.int64_value(&[]), i64::from(first));
            let (tensor, second) = group.irecv_any(tensor, 0)?.wait()?;
            assert_eq!(tensor.int64_value(&[]), i64::from(second));
            assert_eq!(first + second, 3);
        } else {
            group.send(&Tensor::from(i64::from(group.rank())), 0, 0)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_timed_wait_that_ends_early_leaves_a_receive_in_flight() {
    threads(2, |group| {
        if group.rank() == 0 {
            let work = group.irecv(Tensor::from(0i64), 1, 0)?;
            assert!(!work.is_completed());
            assert!(!work.wait_timeout(Duration::from_millis(30))?);
            // Only now the other rank may send.
            group.barrier()?;
            assert!(work.wait_timeout(SOON)?);
            assert!(work.is_completed());
            assert_eq!(work.wait()?.int64_value(&[]), 5);
        } else {
            group.barrier()?;
            group.send(&Tensor::from(5i64), 0, 0)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_timed_wait_that_ends_early_leaves_a_collective_in_flight() {
    let (come, came) = mpsc::channel();
    let came = std::sync::Mutex::new(came);
    // Threads in any case: they share the channel.
    c10d::threads(2, |group| {
        let tensor = Tensor::from_slice(&[1.0]);
        if group.rank() == 0 {
            let work = group.all_reduce_async(tensor, ReduceOp::Sum)?;
            assert!(!work.wait_timeout(Duration::from_millis(30))?);
            assert!(!work.is_completed());
            come.send(()).unwrap();
            assert!(work.wait_timeout(SOON)?);
            assert_eq!(work.wait()?.double_value(&[0]), 2.0);
        } else {
            came.lock().unwrap().recv_timeout(SOON).unwrap();
            drop(group.all_reduce_async(tensor, ReduceOp::Sum)?.wait()?);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn eight_all_reduces_are_in_flight_at_once() {
    threads(2, |group| {
        let works: Vec<_> = (0..8)
            .map(|i| group.all_reduce_async(Tensor::from_slice(&[f64::from(i)]), ReduceOp::Sum))
            .collect::<c10d::Result<_>>()?;
        for (i, work) in works.into_iter().enumerate() {
            assert_eq!(work.wait()?.double_value(&[0]), 2.0 * i as f64);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn callbacks_are_called_for_collectives_and_for_messages() {
    threads(2, |group| {
        let (done, end) = mpsc::channel();
        let other = 1 - group.rank();
        let sum = group.all_reduce_async(Tensor::from(1.0), ReduceOp::Sum)?;
        let (sent, received) =
            (group.isend(Tensor::from(1.0), other, 0)?, group.irecv(Tensor::from(0.0), other, 0)?);
        for (i, work) in [&sum, &sent, &received].into_iter().enumerate() {
            let done = done.clone();
            work.on_done(move |result| done.send((i, result.is_ok())).unwrap())?;
        }
        let mut ended: Vec<_> = (0..3).map(|_| end.recv_timeout(SOON).unwrap()).collect();
        ended.sort();
        assert_eq!(ended, [(0, true), (1, true), (2, true)]);
        // Too late to be in time, and called all the same; what it panics with stays with it.
        sum.on_done(|_| panic!("the panic of a callback, which is expected here"))?;
        received.on_done(move |_| done.send((3, true)).unwrap())?;
        assert_eq!(end.recv_timeout(SOON).unwrap(), (3, true));
        assert_eq!(sum.wait()?.double_value(&[]), 2.0);
        drop(sent.wait()?);
        drop(received.wait()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn works_that_nobody_waits_for_still_do_their_part() {
    threads(2, |group| {
        let other = 1 - group.rank();
        let big = || Tensor::ones([1 << 20], (tch::Kind::Float, tch::Device::Cpu));
        drop(group.isend(big(), other, 1)?);
        drop(group.all_reduce_async(big(), ReduceOp::Sum)?);
        drop(group.irecv(big(), other, 2)?);
        let mut tensor = big().zeros_like();
        group.recv(&mut tensor, other, 1)?;
        assert_eq!(tensor.sum(tch::Kind::Double).double_value(&[]), f64::from(1 << 20));
        // For the receive that was dropped. What comes next must not be taken for a part of it.
        group.send(&tensor, other, 2)?;
        let mut small = Tensor::from(1i64);
        group.all_reduce(&mut small, ReduceOp::Sum)?;
        assert_eq!(small.int64_value(&[]), 2);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_work_can_be_waited_for_on_another_thread() {
    threads(2, |group| {
        let work = group.all_reduce_async(Tensor::from(1.0), ReduceOp::Sum)?;
        let sum = std::thread::spawn(move || work.wait()).join().unwrap()?;
        assert_eq!(sum.double_value(&[]), 2.0);
        Ok(())
    })
    .unwrap();
}
