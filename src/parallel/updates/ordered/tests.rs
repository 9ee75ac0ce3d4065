use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::asynchronous::Async;
use super::*;

struct Count(u64);

/// Where a test has the averaging wait.
#[derive(Default)]
struct Gate(Option<(mpsc::SyncSender<()>, Mutex<mpsc::Receiver<()>>)>);

impl Updated for Count {
    type Contribution = u64;
    type Mean = u64;
    type Averager = Gate;

    fn average(gate: &Gate, given: Vec<u64>) -> Result<Option<u64>> {
        if let Gate(Some((waiting, opened))) = gate {
            waiting.send(()).unwrap();
            opened.lock().unwrap().recv_timeout(LIMIT).unwrap();
        }
        ensure!(!given.contains(&0), "nothing was given");
        Ok(Some(given.iter().sum()))
    }

    fn version(&self) -> u64 {
        self.0
    }

    fn apply(&mut self, mean: u64) -> Result<()> {
        self.0 += mean;
        Ok(())
    }

    fn squares(&self, mean: &u64) -> Result<f64> {
        Ok((mean * mean) as f64)
    }

    fn scaled(mean: u64, factor: f64) -> Result<u64> {
        Ok((mean as f64 * factor) as u64)
    }

    fn share(&self) -> Result<Count> {
        bail!("nothing is shared")
    }
}

const LIMIT: Duration = Duration::from_secs(60);

fn poll<T>(work: impl Future<Output = T>) -> Poll<T> {
    pin!(work).poll(&mut Context::from_waker(Waker::noop()))
}

fn ordered(trainers: &[Rank]) -> Ordered<Count> {
    Ordered::new(Count(0), Pace::new(trainers))
}

#[test]
fn a_forward_waits_for_the_steps_before_it_and_no_longer_when_one_of_them_fails() {
    let (ordered, gate) = (ordered(&[Rank(1)]), Gate::default());
    assert!(poll(ordered.turn(&Async, Rank(1), 1)).is_pending());
    ordered.step(&gate, Rank(1), 0, Some(7)).unwrap();
    assert!(matches!(poll(ordered.turn(&Async, Rank(1), 1)), Poll::Ready(Ok(()))));
    let mut ahead = pin!(ordered.turn(&Async, Rank(1), 2));
    assert!(ahead.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let error = ordered.step(&gate, Rank(1), 1, Some(0)).unwrap_err();
    ordered.fail(Rank(1), &error.to_string());
    let Poll::Ready(Err(error)) = ahead.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it goes on waiting")
    };
    assert_eq!(error.to_string(), "an earlier step of rank 1 failed: nothing was given");
}

#[test]
fn a_rank_that_does_not_train_gives_nothing_to_a_round() {
    let ordered = ordered(&[Rank(1)]);
    let Poll::Ready(Err(error)) = poll(ordered.step_in_round(&Gate::default(), Rank(2), Some(7))) else {
        panic!("refused")
    };
    assert_eq!(error.to_string(), "rank 2 takes no part in the rounds of the trainers");
}

/// O-4
#[test]
fn others_look_at_the_numbers_while_a_round_is_stuck_in_its_average() {
    let (waiting, is_waiting) = mpsc::sync_channel(1);
    let (open, opened) = mpsc::sync_channel(1);
    let (ordered, gate) = (ordered(&[Rank(1)]), Gate(Some((waiting, Mutex::new(opened)))));
    std::thread::scope(|scope| {
        let round = scope.spawn(|| match poll(ordered.step_in_round(&gate, Rank(1), Some(7))) {
            Poll::Ready(applied) => applied.map(drop),
            Poll::Pending => panic!("the only trainer has given its part"),
        });
        is_waiting.recv_timeout(LIMIT).unwrap();
        assert_eq!(ordered.with(|count| count.0), 0);
        assert!(matches!(poll(ordered.turn(&Async, Rank(1), 0)), Poll::Ready(Ok(()))));
        open.send(()).unwrap();
        round.join().unwrap().unwrap();
    });
    assert_eq!(ordered.with(|count| count.0), 7);
}

/// Polls a measure, which is to wait for the other trainers.
fn begun<'a>(
    ordered: &'a Ordered<Count>,
    gate: &'a Gate,
    (trainer, step): (u32, u64),
    given: u64,
) -> impl Future<Output = Result<f64>> + 'a {
    ordered.measure_round(gate, Rank(trainer), step, Some(given))
}

fn error<T>(result: Result<T>) -> String {
    result.err().expect("refused").to_string()
}

/// UO-2
#[test]
fn a_measured_round_is_applied_once_with_one_factor() {
    let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
    let mut first = pin!(begun(&ordered, &gate, (1, 1), 10));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(error(ordered.step_measured(Rank(1), 1, 0.5)).contains("has not measured step 1"), "too early");
    let Poll::Ready(Ok(squares)) = poll(begun(&ordered, &gate, (2, 1), 20)) else { panic!("complete") };
    assert_eq!(squares, 900.0);
    assert!(matches!(first.poll(&mut context), Poll::Ready(Ok(900.0))));
    assert!(error(ordered.step_measured(Rank(3), 1, 0.5)).contains("rank 3 has not measured"));
    assert!(error(ordered.step_measured(Rank(1), 2, 0.5)).contains("has not measured step 2"));
    assert_eq!(ordered.with(|count| count.0), 0, "nothing is applied yet");
    ordered.step_measured(Rank(2), 1, 0.5).unwrap();
    assert_eq!(ordered.with(|count| count.0), 15);
    assert!(error(ordered.step_measured(Rank(2), 1, 0.5)).contains("or has applied it"), "twice");
    assert!(error(ordered.step_measured(Rank(1), 1, 0.25)).contains("by 0.25, and another rank by 0.5"));
    assert_eq!(ordered.with(|count| count.0), 15);
}

#[test]
fn a_trainer_that_leaves_completes_the_measure_of_the_others() {
    let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
    let mut waiting = pin!(begun(&ordered, &gate, (1, 7), 10));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    ordered.leave(&gate, Rank(2)).unwrap();
    assert!(matches!(waiting.poll(&mut context), Poll::Ready(Ok(100.0))));
    ordered.step_measured(Rank(1), 7, 1.0).unwrap();
    assert_eq!(ordered.with(|count| count.0), 10);
    let Poll::Ready(Ok(_)) = poll(begun(&ordered, &gate, (1, 8), 10)) else { panic!("the next one") };
}

/// UO-1
#[test]
fn a_round_is_measured_by_all_or_by_none() {
    for first_measures in [true, false] {
        let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
        let mut measures = pin!(begun(&ordered, &gate, (1, 1), 10));
        let mut applies = pin!(ordered.step_in_round(&gate, Rank(2), Some(7)));
        let mut context = Context::from_waker(Waker::noop());
        let refused = match first_measures {
            true => {
                assert!(measures.as_mut().poll(&mut context).is_pending());
                applies.poll(&mut context).map(error)
            }
            false => {
                assert!(applies.as_mut().poll(&mut context).is_pending());
                measures.poll(&mut context).map(error)
            }
        };
        let Poll::Ready(refused) = refused else { panic!("refused at once") };
        assert!(refused.contains("clips its gradients otherwise"), "{refused}");
    }
}

#[test]
fn a_round_that_cannot_be_averaged_ends_the_measure_of_all() {
    let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
    let mut waiting = pin!(begun(&ordered, &gate, (1, 1), 0));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    for measured in [poll(begun(&ordered, &gate, (2, 1), 5)), waiting.poll(&mut context)] {
        let Poll::Ready(measured) = measured else { panic!("it goes on waiting") };
        assert!(error(measured).contains("nothing was given"));
    }
}

#[test]
fn a_trainer_that_leaves_completes_the_round_of_the_others() {
    let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
    let mut step = pin!(ordered.step_in_round(&gate, Rank(1), Some(7)));
    assert!(step.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    ordered.leave(&gate, Rank(2)).unwrap();
    assert!(matches!(step.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_))));
    assert_eq!(ordered.with(|count| count.0), 7);
}
