//! What goes wrong is an error that says what, on every rank that can know.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::every_backend::ranks;
use crate::small_model::*;
use c10d::reducer::{Bucket, CommHook, Hook, Reducer, ReducerOptions};
use c10d::{Error, ProcessGroup, Result, Store, TcpOptions};
use tch::{Kind, Tensor};

fn refused(parameters: &[Tensor], group: &ProcessGroup, options: ReducerOptions) -> String {
    Reducer::new(parameters, &[], group, options).map(drop).unwrap_err().to_string()
}

#[test]
fn a_parameter_of_another_shape_is_named_on_all_ranks() {
    let messages = ranks(3, |group| {
        let odd: &[i64] = if group.rank() == 1 { &[5, 2, 1] } else { &[5, 2] };
        let names = vec!["encoder.weight".into(), "head.weight".into()];
        refused(&leaves(&[&[4], odd], 0), &group, ReducerOptions { names, ..ReducerOptions::default() })
    });
    for message in messages {
        assert!(message.contains("parameter 1 (`head.weight`) is Float [5, 2, 1]"), "{message}");
        assert!(message.contains("on rank 1 and Float [5, 2]"), "{message}");
    }
}

/// The port of a way to the store at `port`, on which, once it is `slow`, what is said takes a while, and at most until the
/// other end of `over` is dropped.
fn slow_way_to(port: u16, slow: Arc<AtomicBool>, over: mpsc::Receiver<()>) -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let way = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut near, _) = socket.accept().unwrap();
        let mut far = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut back, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut back, &mut to));
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = near.read(&mut buffer) {
            if slow.load(Ordering::SeqCst) {
                // The time is the way's: nobody sends, and the end of the test ends it.
                let _ = over.recv_timeout(Duration::from_millis(300));
            }
            far.write_all(&buffer[..read]).unwrap();
        }
    });
    way
}

#[test]
fn ranks_take_the_same_way_though_the_store_hears_one_of_them_late() {
    let slow = Arc::new(AtomicBool::new(false));
    let to = |port, is_server| TcpOptions {
        is_server,
        workers: None,
        wait_workers: false,
        multi_tenant: false,
        ..TcpOptions::new("127.0.0.1", port, 0, 2)
    };
    let near = Store::tcp(&to(0, true)).unwrap();
    let (_over, is_over) = mpsc::channel();
    let way = slow_way_to(near.port().unwrap(), slow.clone(), is_over);
    let far = Store::tcp(&to(way, false)).unwrap();
    let rank = |rank, store: Store| {
        let group = ProcessGroup::new(&store, rank, 2, options()).unwrap();
        group.barrier().unwrap();
        slow.store(true, Ordering::SeqCst);
        Reducer::new(&leaves(&SHAPES, rank.into()), &[], &group, ReducerOptions::default()).map(drop)
    };
    thread::scope(|scope| {
        let late = scope.spawn(|| rank(0, far));
        rank(1, near).unwrap();
        late.join().unwrap().unwrap();
    });
}

#[test]
fn another_number_of_parameters_is_told_on_all_ranks() {
    let messages = ranks(2, |group| {
        let shapes: &[&[i64]] = if group.rank() == 1 { &[&[4], &[2]] } else { &[&[4]] };
        refused(&leaves(shapes, 0), &group, ReducerOptions::default())
    });
    for message in messages {
        assert!(message.contains("rank 1 has 2 parameters, rank 0 has 1"), "{message}");
    }
}

#[test]
fn parameters_must_be_leaves_that_require_grad_each_once() {
    ranks(1, |group| {
        let leaf = leaves(&[&[4]], 0).remove(0);
        let of = |parameters: &[&Tensor]| {
            let parameters: Vec<_> = parameters.iter().map(|parameter| parameter.shallow_clone()).collect();
            refused(&parameters, &group, ReducerOptions::default())
        };
        assert_eq!(of(&[]), "there is no parameter to average the gradient of");
        assert_eq!(of(&[&leaf, &(&leaf * 2)]), "parameter 1 (`#1`) is not a leaf");
        assert_eq!(of(&[&leaf.detach()]), "parameter 0 (`#0`) does not require grad");
        assert_eq!(of(&[&leaf, &leaf]), "parameters 0 and 1 (`#1`) are the same tensor");
        let options = ReducerOptions { bucket_cap_mb: f64::NAN, ..ReducerOptions::default() };
        assert_eq!(refused(&[leaf], &group, options), "bucket_cap_mb must be above 0, it is NaN");
    });
}

#[test]
fn a_parameter_without_a_gradient_is_named_and_the_reducer_says_so_ever_after() {
    ranks(2, |group| {
        let parameters = leaves(&[&[4], &[4], &[4]], 0);
        let names = ["a", "b", "c"].map(String::from).to_vec();
        let options = ReducerOptions { names, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(&parameters, &[], &group, options).unwrap();
        reducer.before_forward().unwrap();
        let loss = (&parameters[0] * &parameters[2]).sum(Kind::Float);
        let message = reducer.backward(&loss).unwrap_err().to_string();
        assert!(message.contains("no gradient to 1 of 3 parameters: 1 (`b`)"), "{message}");
        let message = reducer.before_forward().unwrap_err().to_string();
        assert!(message.contains("an earlier backward of this reducer failed"), "{message}");
    });
}

#[test]
fn a_wrong_seed_is_an_error_that_the_reducer_survives() {
    ranks(2, |group| {
        let model = Mlp::new(1);
        let mut reducer = reducer(&model, &group, small_buckets());
        reducer.before_forward().unwrap();
        let loss = || model.loss(&Batch::whole(0, 8));
        let output = model.forward(&numbers(&[8, 6], 3));
        assert!(reducer.grad(&[output], &model.parameters, &[numbers(&[5], 0)], false).is_err());
        assert!(reducer.grad(&[loss()], &model.parameters, &[], false).is_err());
        reducer.backward(&loss()).unwrap();
        reducer.before_forward().unwrap();
        reducer.backward(&loss()).unwrap();
    });
}

#[test]
fn a_peer_that_leaves_makes_the_backward_fail() {
    ranks(2, |group| {
        let model = Mlp::new(1);
        let mut reducer = reducer(&model, &group, small_buckets());
        reducer.before_forward().unwrap();
        if group.rank() == 1 {
            return;
        }
        let loss = model.loss(&Batch::whole(0, 8));
        let error = reducer.backward(&loss).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    });
}

struct Panics;

impl CommHook for Panics {
    fn reduce(&mut self, _: &Bucket, _: &ProcessGroup) -> Result<Tensor> {
        panic!("out of ideas")
    }
}

struct TooShort;

impl CommHook for TooShort {
    fn reduce(&mut self, bucket: &Bucket, _: &ProcessGroup) -> Result<Tensor> {
        Ok(bucket.buffer.narrow(0, 0, 1).copy())
    }
}

#[test]
fn a_hook_that_panics_or_answers_wrongly_makes_the_backward_fail() {
    ranks(2, |group| {
        let model = Mlp::new(1);
        let failed_with = |hook: Box<dyn CommHook>| {
            let options = ReducerOptions { hook: Hook::Custom(hook), ..small_buckets() };
            let mut reducer = reducer(&model, &group, options);
            reducer.before_forward().unwrap();
            reducer.backward(&model.loss(&Batch::whole(0, 8))).unwrap_err().to_string()
        };
        assert_eq!(failed_with(Box::new(Panics)), "the communication hook panicked: out of ideas");
        let message = failed_with(Box::new(TooShort));
        assert_eq!(message, "the communication hook gave [1] Float for a bucket of [843] Float");
    });
}
