//! A group that is given up: nothing of it goes on waiting.

mod reducer_support;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use c10d::{Error, ProcessGroup, ReduceOp, Work, threads};
use reducer_support::*;
use tch::{Device, Kind, Tensor};

const SOON: Duration = Duration::from_secs(1);

fn ones() -> Tensor {
    Tensor::ones([4], (Kind::Float, Device::Cpu))
}

/// Holds Gloo's two threads on this rank for as long as this lives, in callbacks: what is started meanwhile has nobody
/// to run it, and never ends by itself.
struct Standstill {
    _release: Vec<mpsc::Sender<()>>,
    _done: Vec<Work<Tensor>>,
}

impl Standstill {
    fn of(group: &ProcessGroup) -> Self {
        let (mut release, mut done) = (Vec::new(), Vec::new());
        let (held, is_held) = mpsc::channel();
        for _ in 0..2 {
            let work = group.all_reduce_async(ones(), ReduceOp::Sum).unwrap();
            let ((sender, receiver), held) = (mpsc::channel::<()>(), held.clone());
            let hold = move |_| {
                held.send(()).unwrap();
                // Until the other end is dropped.
                let _ = receiver.recv();
            };
            work.on_done(hold).unwrap();
            release.push(sender);
            done.push(work);
        }
        (0..2).for_each(|_| is_held.recv_timeout(SOON * 10).unwrap());
        Self { _release: release, _done: done }
    }
}

/// On rank 0 `given_up`; the others take part in the standstill's operations and stay until it has come back.
fn on_rank_0(given_up: impl Fn(&ProcessGroup) + Sync) {
    let (ended, end) = mpsc::channel::<()>();
    let (ended, end) = (std::sync::Mutex::new(Some(ended)), std::sync::Mutex::new(end));
    threads(2, |group| {
        if group.rank() == 0 {
            // Dropped also where the test fails.
            let _ended = ended.lock().unwrap().take();
            given_up(group);
        } else {
            (0..2).for_each(|_| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap());
            let _ = end.lock().unwrap().recv();
        }
        Ok(())
    })
    .unwrap();
}

fn soon<T>(what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = what();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    result
}

#[test]
fn an_operation_whose_peer_never_comes_ends_with_the_group() {
    on_rank_0(|group| {
        (0..2).for_each(|_| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap());
        let work = group.all_reduce_async(ones(), ReduceOp::Sum).unwrap();
        let message = group.irecv(ones(), 1, 7).unwrap();
        assert!(!work.wait_timeout(Duration::from_millis(20)).unwrap());
        soon(|| {
            group.abort();
            assert!(work.is_completed());
            assert!(matches!(work.wait().unwrap_err(), Error::Aborted { .. }));
            assert!(matches!(message.wait().unwrap_err(), Error::Aborted { .. }));
        });
    });
}

#[test]
fn an_operation_that_would_never_end_by_itself_is_broken_off() {
    on_rank_0(|group| {
        let standstill = Standstill::of(group);
        let work = group.all_reduce_async(ones(), ReduceOp::Sum).unwrap();
        assert!(!work.wait_timeout(Duration::from_millis(20)).unwrap());
        let error = soon(|| {
            group.abort();
            work.wait().unwrap_err()
        });
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        drop(standstill);
    });
}

#[test]
fn a_wait_and_a_callback_under_way_are_ended_too() {
    on_rank_0(|group| {
        let standstill = Standstill::of(group);
        let told = group.all_reduce_async(ones(), ReduceOp::Sum).unwrap();
        let (tell, hears) = mpsc::channel();
        told.on_done(move |outcome| tell.send(outcome).unwrap()).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap_err());
            let receives = scope.spawn(|| group.recv(&mut ones(), 1, 3).unwrap_err());
            let message = scope.spawn(|| group.recv_any(&mut ones(), 4).unwrap_err());
            thread::sleep(Duration::from_millis(50));
            soon(|| {
                group.abort();
                for ended in [waits, receives, message] {
                    let error = ended.join().unwrap();
                    assert!(matches!(error, Error::Aborted { .. }), "{error}");
                }
            });
        });
        assert!(matches!(hears.recv_timeout(SOON).unwrap(), Err(Error::Aborted { .. })));
        drop(standstill);
    });
}

#[test]
fn what_is_started_in_a_group_that_was_given_up_fails_at_once() {
    on_rank_0(|group| {
        (0..2).for_each(|_| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap());
        group.abort();
        let error = soon(|| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap_err());
        assert_eq!(
            error.to_string(),
            "all_reduce on rank 0 of 2 (group `0`): this rank has given the group up\n  \
             hint: see why `abort` was called; a new group can be made of the ranks that are left"
        );
        let error = soon(|| group.send(&ones(), 1, 0).unwrap_err());
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        // Again, and nobody minds.
        group.abort();
    });
}

#[test]
fn a_message_that_has_come_is_received_after_the_end() {
    threads(2, |group| {
        if group.rank() == 1 {
            group.send(&ones(), 0, 7)?;
            return group.barrier();
        }
        let message = group.irecv(Tensor::zeros([4], (Kind::Float, Device::Cpu)), 1, 7)?;
        group.barrier()?;
        group.abort();
        assert_eq!(message.wait()?, ones());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_backward_that_would_never_end_is_broken_off() {
    ranks(2, |group| {
        let model = Mlp::new(1);
        let mut reducer = reducer(&model, &group, small_buckets());
        reducer.before_forward().unwrap();
        let loss = model.loss(&Batch::whole(0, 8));
        if group.rank() == 1 {
            (0..2).for_each(|_| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap());
            // Its peer goes.
            reducer.backward(&loss).unwrap_err();
            return;
        }
        let standstill = Standstill::of(&group);
        let aborts = thread::spawn({
            let group = group.clone();
            move || {
                thread::sleep(Duration::from_millis(100));
                group.abort();
            }
        });
        let error = soon(|| reducer.backward(&loss).unwrap_err());
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        aborts.join().unwrap();
        drop(standstill);
    });
}
