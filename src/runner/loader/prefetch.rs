//! Fetches batches on threads, ahead of the training step.
//!
//! - P-1 Batches come in the schedule's order, whatever the number of threads: thread k of K fetches the
//!   batches k, k + K, k + 2K ... and the consumer takes from the threads in turn.
//! - P-2 At most `depth` batches (rounded up to a multiple of the threads) are fetched and not yet taken.
//! - P-3 A failed fetch is reported at its place in the order, and ends the sequence.
//! - P-4 Dropping the prefetcher ends its threads; it waits for the fetches that are under way.
//! - P-5 A fetch that does not come back is an error and no endless wait. Its thread is left behind.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::epoch_order::EpochOrder;
use super::schedule::{Planned, Schedule};
use crate::profile::{Activity, at_step, span};
use crate::recorder::{Begins, Kind, RECORDER};

/// Iterates over the batches of a schedule. `T` is what a fetch gives, `E` how it fails.
pub struct Prefetcher<T, E> {
    schedule: Arc<Schedule>,
    /// One for each thread, in turn (P-1). Emptied to end the threads.
    lanes: Vec<Lane<T, E>>,
    threads: Vec<JoinHandle<()>>,
    /// What fetches, for messages.
    fetcher: String,
    /// Limit of one fetch.
    limit: Duration,
    next_step: u64,
    ended: bool,
}

struct Lane<T, E> {
    batches: Receiver<Result<T, E>>,
    under_way: UnderWay,
}

/// When the fetch began that a thread is at. Written by that thread.
type UnderWay = Arc<Mutex<Option<Instant>>>;

/// One fetched batch.
#[derive(Debug)]
pub struct Batch<T> {
    /// Counted from 0 over the whole run.
    pub step: u64,
    /// Counted from 0.
    pub epoch: u32,
    pub data: T,
    /// How long the consumer stood still for it.
    pub waited: Duration,
}

/// Epochs and steps are counted from 1 in messages.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    #[error("epoch {}, step {}: {cause}", .epoch + 1, .step + 1)]
    Fetch { step: u64, epoch: u32, cause: E },
    #[error("epoch {}, step {}: the thread that reads the data panicked", .epoch + 1, .step + 1)]
    Died { step: u64, epoch: u32 },
    #[error(
        "epoch {}, step {}: {fetcher} has not come back with the batch within {limit:?}\n  \
         hint: is there a pipe or a dead network drive in the data folder? `plugins.time_ms` is for slow ones",
        .epoch + 1, .step + 1
    )]
    Stuck { step: u64, epoch: u32, fetcher: String, limit: Duration },
}

impl<T: Send + 'static, E: Send + 'static> Prefetcher<T, E> {
    /// Starts one thread for each of `fetchers`. Each gets what batches are planned.
    ///
    /// `depth`: batches fetched ahead, at least one for each thread. `fetcher`: what they are, for messages. `limit`: how
    /// long one fetch may take.
    ///
    /// # Errors
    /// When the system gives no more threads.
    ///
    /// # Panics
    /// Without a fetcher.
    pub fn start<F>(
        schedule: Schedule,
        fetchers: Vec<F>,
        depth: usize,
        fetcher: String,
        limit: Duration,
    ) -> std::io::Result<Prefetcher<T, E>>
    where
        F: FnMut(&Planned) -> Result<T, E> + Send + 'static,
    {
        assert!(!fetchers.is_empty(), "a prefetcher needs a fetcher");
        let schedule = Arc::new(schedule);
        let orders = Arc::new(EpochOrders::default());
        let lanes = fetchers.len();
        // A thread holds one batch in its hand while the channel is full.
        let queued = depth.div_ceil(lanes).max(1) - 1;
        let first_step = schedule.first_step();
        let mut started = Prefetcher {
            schedule,
            lanes: vec![],
            threads: vec![],
            fetcher,
            limit,
            next_step: first_step,
            ended: false,
        };
        for (lane, mut fetch) in fetchers.into_iter().enumerate() {
            let (give, batches) = sync_channel(queued);
            let under_way = UnderWay::default();
            started.lanes.push(Lane { batches, under_way: under_way.clone() });
            let (schedule, orders) = (started.schedule.clone(), orders.clone());
            let steps = (first_step + lane as u64..schedule.total_steps()).step_by(lanes);
            let timed = move |planned: &Planned| {
                *lock(&under_way) = Some(Instant::now());
                at_step(planned.step + 1);
                let _span = span(Activity::Data);
                let fetched = fetch(planned);
                *lock(&under_way) = None;
                fetched
            };
            let run = move || {
                // Woken by whoever takes a batch, and in the middle of a step; the batches before this one are there.
                c10d::process::run_in_batch();
                c10d::process::compute_alone();
                fetch_all(steps, &schedule, &orders, timed, &give);
            };
            started.threads.push(std::thread::Builder::new().name(format!("data{lane}")).spawn(run)?);
        }
        Ok(started)
    }

    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }
}

impl<T, E> Lane<T, E> {
    /// The next batch, as soon as it is there. Timeout: its fetch has been under way for `limit`.
    fn take(&self, limit: Duration) -> Result<Result<T, E>, RecvTimeoutError> {
        let mut patience = limit;
        loop {
            match self.batches.recv_timeout(patience) {
                // The thread may have come to the fetch only now: it puts a whole epoch in order before.
                Err(RecvTimeoutError::Timeout) => {
                    let taken = lock(&self.under_way).map_or(Duration::ZERO, |began| began.elapsed());
                    patience = limit.saturating_sub(taken);
                    if patience.is_zero() {
                        return Err(RecvTimeoutError::Timeout);
                    }
                }
                taken => return taken,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T, E> Iterator for Prefetcher<T, E> {
    type Item = Result<Batch<T>, LoadError<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.next_step;
        if self.ended || step == self.schedule.total_steps() {
            return None;
        }
        let epoch = self.schedule.epoch_of(step);
        let lane = &self.lanes[((step - self.schedule.first_step()) % self.lanes.len() as u64) as usize];
        let asked = Instant::now();
        let fetched = {
            let _span = span(Activity::Wait);
            let begins = Begins {
                what: "batch".into(),
                with: Some(epoch + 1),
                number: Some(step + 1),
                ..Begins::default()
            };
            RECORDER.during(Kind::Batch, begins, || lane.take(self.limit))
        };
        let waited = asked.elapsed();
        self.next_step += 1;
        let batch = match fetched {
            Ok(Ok(data)) => Ok(Batch { step, epoch, data, waited }),
            Ok(Err(cause)) => Err(LoadError::Fetch { step, epoch, cause }),
            Err(RecvTimeoutError::Disconnected) => Err(LoadError::Died { step, epoch }),
            Err(RecvTimeoutError::Timeout) => {
                // Nobody waits for that thread any more (P-5), and the others end with it.
                self.threads.clear();
                Err(LoadError::Stuck { step, epoch, fetcher: self.fetcher.clone(), limit: self.limit })
            }
        };
        self.ended = batch.is_err();
        Some(batch)
    }
}

impl<T, E> Drop for Prefetcher<T, E> {
    fn drop(&mut self) {
        // Without receivers every send fails, and the threads end.
        self.lanes.clear();
        for thread in self.threads.drain(..) {
            // A panic was already reported as `Died`, or nobody wants its batch any more.
            let _ = thread.join();
        }
    }
}

/// One thread: fetch, hand over, until the steps or the consumer end or a fetch fails.
fn fetch_all<T, E>(
    steps: impl Iterator<Item = u64>,
    schedule: &Schedule,
    orders: &EpochOrders,
    mut fetch: impl FnMut(&Planned) -> Result<T, E>,
    give: &SyncSender<Result<T, E>>,
) {
    for step in steps {
        let fetched = fetch(&orders.plan(schedule, step));
        let failed = fetched.is_err();
        if give.send(fetched).is_err() || failed {
            return;
        }
    }
}

/// The permutations in use, shared by the threads: one may be an epoch ahead of another.
#[derive(Default)]
struct EpochOrders {
    recent: Mutex<VecDeque<(u32, Arc<EpochOrder>)>>,
}

impl EpochOrders {
    const KEPT: usize = 2;

    fn plan(&self, schedule: &Schedule, step: u64) -> Planned {
        let epoch = schedule.epoch_of(step);
        let order = self.order(schedule, epoch);
        Planned { step, epoch, indices: order.batch(schedule.batch_of(step)) }
    }

    /// Computed under the lock: the other threads want the same permutation.
    fn order(&self, schedule: &Schedule, epoch: u32) -> Arc<EpochOrder> {
        let mut recent = lock(&self.recent);
        if let Some((_, order)) = recent.iter().find(|(of, _)| *of == epoch) {
            return order.clone();
        }
        let order = Arc::new(schedule.epoch(epoch));
        recent.push_back((epoch, order.clone()));
        if recent.len() > Self::KEPT {
            recent.pop_front();
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;
    use crate::job::Partition;
    use crate::runner::loader::ScheduleSpec;

    fn schedule(samples: u64, batch_size: u64, epochs: u32) -> Schedule {
        Schedule::new(ScheduleSpec {
            samples,
            trainer: 0,
            trainers: 1,
            batch_size,
            partition: Partition::Split,
            shuffle: true,
            drop_last: false,
            even_steps: false,
            epochs,
            max_steps: 0,
            seed: 7,
        })
        .unwrap()
    }

    /// With a limit that no fetch here comes near.
    fn start<T: Send + 'static, E: Send + 'static, F>(
        schedule: Schedule,
        fetchers: Vec<F>,
        depth: usize,
    ) -> std::io::Result<Prefetcher<T, E>>
    where
        F: FnMut(&Planned) -> Result<T, E> + Send + 'static,
    {
        Prefetcher::start(schedule, fetchers, depth, "the test".into(), Duration::from_secs(60))
    }

    type Fetch = Box<dyn FnMut(&Planned) -> Result<Vec<u64>, String> + Send>;

    fn echo() -> Fetch {
        Box::new(|planned| Ok(planned.indices.clone()))
    }

    /// Fails, or panics, at the batch that holds sample 0.
    fn at_sample_zero(then: fn() -> Result<Vec<u64>, String>) -> Fetch {
        Box::new(
            move |planned| if planned.indices.contains(&0) { then() } else { Ok(planned.indices.clone()) },
        )
    }

    /// P-1
    #[test]
    fn several_threads_keep_the_order_of_the_schedule() {
        let schedule = schedule(103, 5, 3);
        let planned: Vec<Vec<u64>> = schedule.batches().map(|batch| batch.indices).collect();
        // The odd threads are slower than the even ones, without waiting for a clock.
        let slow: Fetch = Box::new(|planned| {
            (0..50).for_each(|_| std::thread::yield_now());
            Ok(planned.indices.clone())
        });
        let prefetcher = start(schedule.clone(), vec![echo(), slow, echo()], 4).unwrap();
        let fetched: Vec<Batch<Vec<u64>>> = prefetcher.map(Result::unwrap).collect();
        assert!(fetched.iter().map(|batch| &batch.data).eq(&planned));
        assert!(fetched.iter().map(|batch| batch.step).eq(0..schedule.total_steps()));
        assert!(fetched.iter().all(|batch| batch.epoch == schedule.epoch_of(batch.step)));
    }

    #[test]
    fn a_fetch_computes_on_its_thread_alone_and_others_as_before() {
        let before = tch::get_num_threads();
        let threads = |_: &Planned| Ok::<_, String>(tch::get_num_threads());
        let prefetcher = start(schedule(4, 2, 1), vec![threads], 1).unwrap();
        assert!(prefetcher.map(Result::unwrap).all(|batch| batch.data == 1));
        assert_eq!(tch::get_num_threads(), before);
        assert_eq!(std::thread::spawn(tch::get_num_threads).join().unwrap(), before);
    }

    /// P-2
    #[test]
    fn no_more_than_depth_batches_are_fetched_ahead() {
        let count = Arc::new(AtomicUsize::new(0));
        let (tell, told) = channel();
        let counting = |_lane| {
            let (count, tell) = (count.clone(), tell.clone());
            move |planned: &Planned| {
                count.fetch_add(1, Ordering::SeqCst);
                tell.send(()).unwrap();
                Ok::<_, String>(planned.indices.clone())
            }
        };
        let mut prefetcher = start(schedule(100, 1, 1), (0..2).map(counting).collect(), 6).unwrap();
        for _ in 0..6 {
            told.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "a seventh batch was fetched");
        prefetcher.next().unwrap().unwrap();
        told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 7);
    }

    /// P-3
    #[test]
    fn a_failed_fetch_is_reported_at_its_place_and_ends_the_sequence() {
        let schedule = schedule(20, 4, 1);
        let place = schedule.batches().position(|batch| batch.indices.contains(&0)).unwrap();
        let fail: fn() -> Result<Vec<u64>, String> = || Err("file is cut".into());
        let fetchers = (0..3).map(|_| at_sample_zero(fail)).collect();
        let results: Vec<_> = start(schedule, fetchers, 6).unwrap().collect();
        assert_eq!(results.len(), place + 1);
        assert!(results[..place].iter().all(Result::is_ok));
        let message = results[place].as_ref().unwrap_err().to_string();
        assert_eq!(message, format!("epoch 1, step {}: file is cut", place + 1));
    }

    #[test]
    fn a_panic_in_a_fetch_is_an_error_and_not_a_hang() {
        let schedule = schedule(20, 4, 1);
        let fetchers = (0..2).map(|_| at_sample_zero(|| panic!("boom"))).collect();
        let last = start(schedule, fetchers, 2).unwrap().last().unwrap();
        assert!(matches!(last, Err(LoadError::Died { .. })), "{last:?}");
    }

    /// P-4
    #[test]
    fn dropping_it_ends_threads_that_wait_for_room() {
        let alive = Arc::new(());
        let fetchers = (0..3)
            .map(|_| {
                let alive = alive.clone();
                move |planned: &Planned| {
                    let _holds = &alive;
                    Ok::<_, String>(planned.indices.clone())
                }
            })
            .collect();
        let mut prefetcher = start(schedule(1_000, 1, 1), fetchers, 3).unwrap();
        prefetcher.next().unwrap().unwrap();
        drop(prefetcher);
        assert_eq!(Arc::strong_count(&alive), 1, "a thread still holds its fetcher");
    }

    /// P-5
    #[test]
    fn a_fetch_that_does_not_come_back_is_an_error_and_not_a_hang() {
        let (_go, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let stuck: Fetch = Box::new(move |planned| {
            if planned.indices.contains(&2) {
                let _ = gate.lock().unwrap().recv();
            }
            Ok(planned.indices.clone())
        });
        let in_order = Schedule::for_evaluation(4, 1, 0, 1).unwrap();
        let limit = Duration::from_millis(50);
        let mut prefetcher =
            Prefetcher::start(in_order, vec![stuck], 1, "plug-in `x`".into(), limit).unwrap();
        assert!(prefetcher.next().unwrap().is_ok() && prefetcher.next().unwrap().is_ok());
        let error = prefetcher.next().unwrap().unwrap_err().to_string();
        insta::assert_snapshot!(error, @r"
        epoch 1, step 3: plug-in `x` has not come back with the batch within 50ms
          hint: is there a pipe or a dead network drive in the data folder? `plugins.time_ms` is for slow ones
        ");
        assert!(prefetcher.next().is_none());
    }

    #[test]
    fn waiting_for_data_is_measured() {
        let slow = |planned: &Planned| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(30) {
                std::thread::yield_now();
            }
            Ok::<_, String>(planned.indices.clone())
        };
        let mut prefetcher = start(schedule(2, 1, 1), vec![slow], 1).unwrap();
        let first = prefetcher.next().unwrap().unwrap();
        assert!(first.waited >= Duration::from_millis(20), "{:?}", first.waited);
    }
}
