//! What this process does when, for `--profile`: spans of time, by thread; and that it does anything, for whoever watches
//! over it. Where nobody records, a span costs one look at a flag and one count.

use std::cell::Cell;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use serde::{Deserialize, Serialize};

/// What a span of time went into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Samples made by a dataset plug-in.
    Data,
    /// Bytes of tensors moved between ranks.
    Payload,
    Forward,
    Loss,
    Backward,
    /// Parameters updated.
    Step,
    /// For another rank, or for data.
    Wait,
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
}

/// What was recorded since [`start`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    pub threads: Vec<String>,
    pub spans: Vec<Recorded>,
    /// Spans that there was no room for.
    pub left_out: u64,
}

/// Of one process: some 40 MB.
const MOST_SPANS: usize = 1 << 20;

static RECORDING: AtomicBool = AtomicBool::new(false);
/// Padded: every thread writes it, and reads what would be beside it.
static BEATS: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
static BEGUN: OnceLock<Instant> = OnceLock::new();
static RECORDED: Mutex<Recording> =
    Mutex::new(Recording { threads: Vec::new(), spans: Vec::new(), left_out: 0 });

thread_local! {
    /// This thread's index, once it has recorded anything.
    static THREAD: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Records from now on.
pub fn start() {
    let _ = BEGUN.set(Instant::now());
    RECORDING.store(true, Ordering::Relaxed);
}

/// This process has moved on: a piece of work is done that others like it follow.
pub fn beat() {
    BEATS.fetch_add(1, Ordering::Relaxed);
}

/// How often it has. Each span counts, but for those of waiting.
pub fn beats() -> u64 {
    BEATS.load(Ordering::Relaxed)
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

/// A span of this thread, until it is dropped.
#[must_use = "the span ends when this is dropped"]
pub struct Span(Option<(Activity, Instant)>);

pub fn span(activity: Activity) -> Span {
    if activity != Activity::Wait {
        beat();
    }
    Span(RECORDING.load(Ordering::Relaxed).then(|| (activity, Instant::now())))
}

impl Drop for Span {
    fn drop(&mut self) {
        let (Some((activity, start)), Some(begun)) = (self.0, BEGUN.get()) else { return };
        let (start_us, took_us) = (micros(start.duration_since(*begun)), micros(start.elapsed()));
        let mut recorded = recorded();
        let thread = THREAD.get().unwrap_or_else(|| {
            let index = recorded.threads.len() as u32;
            recorded.threads.push(thread::current().name().unwrap_or("thread").to_owned());
            THREAD.set(Some(index));
            index
        });
        match recorded.spans.len() < MOST_SPANS {
            true => recorded.spans.push(Recorded { activity, thread, start_us, took_us }),
            false => recorded.left_out += 1,
        }
    }
}

fn recorded() -> MutexGuard<'static, Recording> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
