//! A group that is given up: nothing of it goes on waiting.

use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::every_backend::ranks;
use crate::small_model::*;
use c10d::reducer::Reducer;
use c10d::{Error, Options, ProcessGroup, ReduceOp, Store, Work, recomputed, threads, threads_with};
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
            // It does not end before rank 1 comes: a callback of what has ended would hold this thread.
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
        lets_rank_1_come(group);
        (0..2).for_each(|_| is_held.recv_timeout(SOON * 10).unwrap());
        Self { _release: release, _done: done }
    }
}

const COME: u32 = 9;

/// On rank 0: rank 1 takes part in two operations from now on.
fn lets_rank_1_come(group: &ProcessGroup) {
    group.send(&ones(), 1, COME).unwrap();
}

/// On rank 1, when rank 0 lets it.
fn takes_part_twice(group: &ProcessGroup) {
    group.recv(&mut ones(), 0, COME).unwrap();
    (0..2).for_each(|_| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap());
}

/// Two ranks; the second of `body`'s arguments is where rank 1 stays until rank 0 has ended.
fn on_rank(body: impl Fn(&ProcessGroup, &dyn Fn()) + Sync) {
    let (ended, end) = mpsc::channel::<()>();
    let (ended, end) = (Mutex::new(Some(ended)), Mutex::new(end));
    threads(2, |group| {
        // Dropped also where the test fails.
        let _ended = (group.rank() == 0).then(|| ended.lock().unwrap().take());
        body(group, &|| {
            let _ = end.lock().unwrap().recv();
        });
        Ok(())
    })
    .unwrap();
}

/// On rank 0 `given_up`; the other one takes part in the first two operations.
fn on_rank_0(given_up: impl Fn(&ProcessGroup) + Sync) {
    on_rank(|group, stay| {
        if group.rank() == 0 {
            return given_up(group);
        }
        takes_part_twice(group);
        stay();
    });
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
        lets_rank_1_come(group);
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
        let begun = Barrier::new(4);
        let begins = |operate: fn(&ProcessGroup) -> Error| {
            begun.wait();
            operate(group)
        };
        thread::scope(|scope| {
            let waits =
                scope.spawn(|| begins(|group| group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap_err()));
            let receives = scope.spawn(|| begins(|group| group.recv(&mut ones(), 1, 3).unwrap_err()));
            let message = scope.spawn(|| begins(|group| group.recv_any(&mut ones(), 4).unwrap_err()));
            begun.wait();
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
        lets_rank_1_come(group);
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
        let Batch { input, target } = Batch::whole(0, 8);
        let (tell, told) = mpsc::channel();
        let forward = move |inputs: &[Tensor]| {
            tell.send(()).unwrap();
            Ok(&inputs[0] * 1.0)
        };
        let input = recomputed(&[input.set_requires_grad(true)], forward).unwrap();
        let loss = model.loss(&Batch { input, target });
        told.recv().unwrap();
        if group.rank() == 1 {
            takes_part_twice(&group);
            // Its peer goes.
            reducer.backward(&loss).unwrap_err();
            return;
        }
        let standstill = Standstill::of(&group);
        let aborts = thread::spawn({
            let group = group.clone();
            move || {
                // The backward computes the input once more when it has come through all parameters.
                told.recv().unwrap();
                group.abort();
            }
        });
        let error = soon(|| reducer.backward(&loss).unwrap_err());
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        aborts.join().unwrap();
        drop(standstill);
    });
}

fn lonely(options: Options) -> Error {
    lonely_at(&Store::hash().unwrap(), options)
}

fn lonely_at(store: &Store, options: Options) -> Error {
    ProcessGroup::new(store, 0, 2, options).unwrap_err()
}

/// Waits until a rank that looks for others has written down where it is, and so waits for them: more than `keys` keys.
fn until_it_waits(store: &Store, keys: u64) {
    let start = Instant::now();
    while store.count_keys().unwrap() <= keys {
        assert!(start.elapsed() < 10 * SOON, "nobody came");
        thread::yield_now();
    }
}

#[test]
fn a_rank_that_does_not_come_to_the_meeting_is_named_within_its_limit() {
    let join_timeout = Some(Duration::from_millis(200));
    let error = soon(|| lonely(Options { join_timeout, ..Options::default() }));
    assert!(matches!(&error, Error::Timeout { missing, .. } if *missing == [1]), "{error}");
    assert!(error.to_string().contains("not done after 200ms, rank 1 did not take part"), "{error}");
}

#[test]
fn the_limit_of_the_meeting_is_not_that_of_the_operations() {
    let options =
        Options { join_timeout: Some(Duration::from_secs(20)), timeout: SOON / 5, ..Options::default() };
    let timed_out = Barrier::new(2);
    threads_with(2, &options, |group| {
        if group.rank() == 0 {
            let error = soon(|| group.recv(&mut ones(), 1, 0).unwrap_err());
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        // Rank 1 is there as long, and silent.
        timed_out.wait();
        Ok(())
    })
    .unwrap();
    let options = Options { join_timeout: Some(SOON / 2), timeout: SOON * 20, ..Options::default() };
    let (ended, ends) = mpsc::channel();
    let (ended, ends) = (Mutex::new(ended), Mutex::new(ends));
    threads_with(2, &options, |group| {
        if group.rank() == 0 {
            // So long has the other to wait, and longer than it may take to meet.
            assert!(ends.lock().unwrap().recv_timeout(SOON).is_err(), "rank 1 did not wait");
        }
        // As the Reducer starts them, too: without a limit of their own.
        let made = Reducer::new(&Mlp::new(1).parameters, &[], group, small_buckets()).map(drop);
        let _ = ended.lock().unwrap().send(());
        made
    })
    .unwrap();
}

#[test]
fn a_meeting_is_given_up_before_the_group_is_there() {
    let options = Options::default();
    let (store, abort) = (Store::hash().unwrap(), options.abort.clone());
    let gives_up = thread::spawn({
        let store = store.clone();
        move || {
            until_it_waits(&store, 0);
            abort.abort();
        }
    });
    let error = soon(|| lonely_at(&store, options.clone()));
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
    gives_up.join().unwrap();
    // And what would be made later.
    let error = soon(|| lonely(options));
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
}

#[test]
fn a_subgroup_ends_with_its_group_and_not_the_other_way_round() {
    on_rank_0_of_pairs(|group, first, second| {
        first.abort();
        let error = soon(|| first.all_reduce(&mut ones(), ReduceOp::Sum).unwrap_err());
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap();
        let work = second.all_reduce_async(ones(), ReduceOp::Sum).unwrap();
        soon(|| {
            group.abort();
            let error = work.wait().unwrap_err();
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
        });
    });
}

fn on_rank_0_of_pairs(body: impl Fn(&ProcessGroup, &ProcessGroup, &ProcessGroup) + Sync) {
    on_rank(|group, stay| {
        let pairs = [(); 2].map(|()| group.subgroup(&[0, 1]).unwrap().unwrap());
        if group.rank() == 0 {
            body(group, &pairs[0], &pairs[1]);
        } else {
            group.all_reduce(&mut ones(), ReduceOp::Sum).unwrap();
            stay();
        }
    });
}

#[test]
fn a_subgroup_that_is_being_made_ends_with_its_group() {
    on_rank(|group, stay| {
        if group.rank() == 1 {
            return stay();
        }
        thread::scope(|scope| {
            let keys = group.store().count_keys().unwrap();
            scope.spawn(move || {
                until_it_waits(group.store(), keys);
                group.abort();
            });
            // The other rank does not call this.
            let error = soon(|| group.subgroup(&[0, 1]).unwrap_err());
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
        });
    });
}
