//! What this process spends its time on: by activity, always; each span of it, by thread, for `--profile`; and that it does
//! anything, for whoever watches over it. Where nobody records, a span costs two looks at the clock.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::mem;
use std::num::NonZeroU64;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use serde::{Deserialize, Serialize};
use thread_local::ThreadLocal;

/// What a span of time went into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Samples made by a dataset plug-in.
    Data,
    /// Bytes of tensors moved between ranks.
    Payload,
    Forward,
    Loss,
    Backward,
    /// Gradients or parameters go to other ranks and come back, with all the waiting in it: averages of replicas, pushes and pulls.
    Exchange,
    /// Parameters updated.
    Step,
    /// For another rank, or for data.
    Wait,
}

impl Activity {
    pub const ALL: [Activity; 8] = [
        Activity::Data,
        Activity::Payload,
        Activity::Forward,
        Activity::Loss,
        Activity::Backward,
        Activity::Exchange,
        Activity::Step,
        Activity::Wait,
    ];

    /// As it is written in files.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Data => "data",
            Activity::Payload => "payload",
            Activity::Forward => "forward",
            Activity::Loss => "loss",
            Activity::Backward => "backward",
            Activity::Exchange => "exchange",
            Activity::Step => "step",
            Activity::Wait => "wait",
        }
    }
}

/// One span of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    pub activity: Activity,
    /// An index into [`Recording::threads`].
    pub thread: u32,
    /// Microseconds of this process's own clock, see [`now_us`].
    pub start_us: f64,
    pub took_us: f64,
    /// The trainer's step that it is for, counted from 1, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<NonZeroU64>,
}

/// What was recorded since [`start`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    pub threads: Vec<String>,
    pub spans: Vec<Recorded>,
    /// Spans that there was no room for.
    pub left_out: u64,
}

/// The most spans of one process: some 40 MB.
const MOST_SPANS: usize = 1 << 20;

static RECORDING: AtomicBool = AtomicBool::new(false);
/// By thread, so that none waits for another's counts. A thread that ends leaves its own to one that begins later.
static COUNTS: ThreadLocal<CachePadded<Counts>> = ThreadLocal::new();
static BEGUN: OnceLock<Instant> = OnceLock::new();
static RECORDED: Mutex<Recording> =
    Mutex::new(Recording { threads: Vec::new(), spans: Vec::new(), left_out: 0 });

/// What one thread has counted: it alone writes, everybody may read.
#[derive(Default)]
struct Counts {
    beats: AtomicU64,
    /// Nanoseconds by activity, without what is inside of another.
    spent: [AtomicU64; Activity::ALL.len()],
}

impl Counts {
    fn beat(&self) {
        add(&self.beats, 1);
    }

    fn spend(&self, activity: Activity, nanos: u64) {
        add(&self.spent[activity as usize], nanos);
    }
}

/// To a number that this thread alone writes.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

thread_local! {
    /// This thread's index, once it has recorded anything.
    static THREAD: Cell<Option<u32>> = const { Cell::new(None) };
    /// Nanoseconds of the spans that have ended inside of this thread's innermost one.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
    /// The step that this thread works for.
    static STEP: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
    /// Whether this thread is inside of an exchange.
    static EXCHANGES: Cell<bool> = const { Cell::new(false) };
}

/// Records from now on.
pub fn start() {
    let _ = BEGUN.set(Instant::now());
    RECORDING.store(true, Ordering::Relaxed);
}

/// This process has moved on: a piece of work is done that others like it follow.
pub fn beat() {
    COUNTS.get_or_default().beat();
}

/// How often it has. Each span counts, but for those of waiting.
pub fn beats() -> u64 {
    COUNTS.iter().fold(0, |sum, of_thread| sum.wrapping_add(of_thread.beats.load(Ordering::Relaxed)))
}

/// Microseconds since [`start`]; 0 before.
pub fn now_us() -> f64 {
    BEGUN.get().map_or(0.0, |begun| micros(begun.elapsed()))
}

/// Ends the recording, and gives it.
pub fn stop() -> Recording {
    RECORDING.store(false, Ordering::Relaxed);
    mem::take(&mut *recorded())
}

/// Seconds that the threads of this process have spent, by activity. What is inside of another span is not the outer one's.
pub fn spent() -> BTreeMap<Activity, f64> {
    let nanos = |of: Activity| -> u64 {
        COUNTS.iter().map(|of_thread| of_thread.spent[of as usize].load(Ordering::Relaxed)).sum()
    };
    Activity::ALL.into_iter().map(|of| (of, nanos(of) as f64 / 1e9)).collect()
}

/// From now on this thread works for a trainer's step, counted from 1; 0 says that it is for none.
pub fn at_step(step: u64) {
    STEP.set(NonZeroU64::new(step));
}

/// A span of waiting. Inside of an exchange that is a part of it.
pub fn waiting() -> Option<Span> {
    (!EXCHANGES.get()).then(|| span(Activity::Wait))
}

/// A span of [`Activity::Exchange`].
pub fn exchange() -> Exchanging {
    Exchanging { before: EXCHANGES.replace(true), _span: span(Activity::Exchange) }
}

/// The last `took` of the innermost span, which ends now, was an exchange, as has turned out.
pub fn exchanged(took: Duration) {
    let nanos = took.as_nanos() as u64;
    INSIDE.set(INSIDE.get().saturating_add(nanos));
    COUNTS.get_or_default().spend(Activity::Exchange, nanos);
    if RECORDING.load(Ordering::Relaxed)
        && let Some(begun) = Instant::now().checked_sub(took)
    {
        record(Activity::Exchange, begun, took);
    }
}

/// A span whenever `work`, which is for a step, runs, and none while it waits.
pub async fn running<T>(activity: Activity, step: u64, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        at_step(step);
        let _span = span(activity);
        work.as_mut().poll(context)
    })
    .await
}

#[must_use = "the span ends when this is dropped"]
pub struct Exchanging {
    /// Another is around it.
    before: bool,
    _span: Span,
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        EXCHANGES.set(self.before);
    }
}

/// A span of this thread, until it is dropped. Spans of a thread end in the opposite order of their beginnings.
#[must_use = "the span ends when this is dropped"]
pub struct Span {
    activity: Activity,
    begun: Instant,
    /// What had ended inside of the span around this one.
    beside: u64,
}

pub fn span(activity: Activity) -> Span {
    if activity != Activity::Wait {
        beat();
    }
    Span { activity, begun: Instant::now(), beside: INSIDE.replace(0) }
}

impl Drop for Span {
    fn drop(&mut self) {
        let &mut Span { activity, begun, beside } = self;
        let took = begun.elapsed();
        let nanos = took.as_nanos() as u64;
        let inside = INSIDE.replace(beside.saturating_add(nanos));
        COUNTS.get_or_default().spend(activity, nanos.saturating_sub(inside));
        if RECORDING.load(Ordering::Relaxed) {
            record(activity, begun, took);
        }
    }
}

fn record(activity: Activity, begun: Instant, took: Duration) {
    let Some(start) = BEGUN.get() else { return };
    // A span may have begun before the recording.
    let (start_us, took_us) = (micros(begun.saturating_duration_since(*start)), micros(took));
    let mut recorded = recorded();
    let thread = THREAD.get().unwrap_or_else(|| {
        let index = recorded.threads.len() as u32;
        recorded.threads.push(thread::current().name().unwrap_or("thread").to_owned());
        THREAD.set(Some(index));
        index
    });
    match recorded.spans.len() < MOST_SPANS {
        true => recorded.spans.push(Recorded { activity, thread, start_us, took_us, step: STEP.get() }),
        false => recorded.left_out += 1,
    }
}

fn recorded() -> MutexGuard<'static, Recording> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_of_a_span_is_not_the_outer_ones() {
        let before = spent();
        let outer = span(Activity::Loss);
        let begun = Instant::now();
        let inner = span(Activity::Payload);
        while begun.elapsed() < Duration::from_millis(20) {}
        drop(inner);
        let inside = begun.elapsed().as_secs_f64();
        drop(outer);
        let after = spent();
        let of = |activity| after[&activity] - before[&activity];
        assert!(of(Activity::Payload) >= 0.02, "{}", of(Activity::Payload));
        assert!(of(Activity::Loss) < inside / 2.0, "{} of {inside}", of(Activity::Loss));
    }

    #[test]
    fn what_a_thread_has_counted_stays_when_it_has_ended() {
        let before = beats();
        for _ in 0..3 {
            let counts = || (0..1000).for_each(|_| beat());
            thread::spawn(counts).join().unwrap();
        }
        assert!(beats() - before >= 3000, "{} since {before}", beats());
    }

    #[test]
    fn waiting_inside_of_an_exchange_is_the_exchange() {
        let exchange = exchange();
        assert!(waiting().is_none());
        drop(exchange);
        assert!(waiting().is_some());
    }
}
