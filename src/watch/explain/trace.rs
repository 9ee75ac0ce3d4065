//! What a profile adds: the same by step.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::profile::Activity;
use crate::watch::trace_file::{self, Event};

/// Steps of all ranks together; what comes behind them is left out.
const MOST_STEPS: usize = 200_000;

/// Spans of all these.
const MOST_SPANS: u64 = 4_000_000;

/// The steps of a run, from its trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Traced {
    /// By trainer.
    pub trainers: Vec<StepTimes>,
    /// Spans that say for which step they are.
    pub spans: u64,
    /// The trace has more steps than are looked at.
    pub is_cut: bool,
}

/// The steps of one trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepTimes {
    pub rank: u32,
    pub steps: usize,
    /// Milliseconds from the first span of a step on the trainer's main thread to the end of the last.
    pub median_ms: f64,
    pub p95_ms: f64,
    /// Mean milliseconds of a step, of the main thread.
    pub ms: BTreeMap<Activity, f64>,
    pub longest: Longest,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Longest {
    pub step: u64,
    pub ms: f64,
    pub by: BTreeMap<Activity, f64>,
}

#[derive(Default)]
struct Step {
    begins_us: f64,
    ends_us: f64,
    /// Of the spans on the main thread, nested ones beside those around them.
    spans: Vec<(Activity, f64, f64)>,
}

/// Reads the trace of a run, whose trainers' ranks are `trainers`. None: there is none, or it is too long to be read here.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path, trainers: &[u32]) -> io::Result<Option<Traced>> {
    let mut reader = Reader::new(trainers);
    let is_there = trace_file::each(path, |event| reader.take(event))?;
    Ok(is_there.then(|| reader.end()))
}

struct Reader<'a> {
    trainers: &'a [u32],
    /// The main thread of each rank.
    main: BTreeMap<u32, u32>,
    steps: BTreeMap<(u32, u64), Step>,
    traced: Traced,
    kept: u64,
}

impl<'a> Reader<'a> {
    fn new(trainers: &'a [u32]) -> Reader<'a> {
        Reader { trainers, main: BTreeMap::new(), steps: BTreeMap::new(), traced: Traced::default(), kept: 0 }
    }

    fn take(&mut self, event: Event) {
        let is_trainer = self.trainers.contains(&event.pid);
        if is_trainer && event.name == "thread_name" && event.args.name.as_deref() == Some("main") {
            self.main.insert(event.pid, event.tid);
        }
        let Some(step) = event.args.step.filter(|_| event.is_span()) else { return };
        self.traced.spans += 1;
        if !is_trainer || self.main.get(&event.pid) != Some(&event.tid) {
            return;
        }
        let Ok(activity) = serde_json::from_value(serde_json::Value::String(event.name)) else { return };
        let is_new = !self.steps.contains_key(&(event.pid, step));
        if is_new && self.steps.len() >= MOST_STEPS || self.kept == MOST_SPANS {
            self.traced.is_cut = true;
            return;
        }
        self.kept += 1;
        let of =
            self.steps.entry((event.pid, step)).or_insert(Step { begins_us: event.ts, ..Step::default() });
        of.begins_us = of.begins_us.min(event.ts);
        of.ends_us = of.ends_us.max(event.ts + event.dur);
        of.spans.push((activity, event.ts, event.dur));
    }

    fn end(mut self) -> Traced {
        let trainers = self.trainers.iter();
        self.traced.trainers = trainers.filter_map(|rank| times(*rank, &self.steps)).collect();
        self.traced
    }
}

fn times(rank: u32, steps: &BTreeMap<(u32, u64), Step>) -> Option<StepTimes> {
    let own: Vec<(u64, &Step)> =
        steps.range((rank, 0)..=(rank, u64::MAX)).map(|((_, step), of)| (*step, of)).collect();
    let mut took: Vec<f64> = own.iter().map(|(_, of)| (of.ends_us - of.begins_us) / 1e3).collect();
    took.sort_by(f64::total_cmp);
    let at = |share: usize| took.get((took.len() * share / 100).min(took.len() - 1)).copied();
    let mut ms = BTreeMap::<Activity, f64>::new();
    for (_, of) in &own {
        for (activity, spent) in of.by_activity() {
            *ms.entry(activity).or_default() += spent / own.len() as f64;
        }
    }
    let (step, longest) = own.iter().max_by(|(_, one), (_, other)| one.took().total_cmp(&other.took()))?;
    let longest = Longest { step: *step, ms: longest.took() / 1e3, by: longest.by_activity() };
    Some(StepTimes { rank, steps: own.len(), median_ms: at(50)?, p95_ms: at(95)?, ms, longest })
}

impl Step {
    fn took(&self) -> f64 {
        self.ends_us - self.begins_us
    }

    /// Milliseconds. What is inside of another span is not the outer one's.
    fn by_activity(&self) -> BTreeMap<Activity, f64> {
        let mut spans = self.spans.clone();
        // An outer one begins before those in it, or as they do and is longer.
        spans.sort_by(|one, other| one.1.total_cmp(&other.1).then(other.2.total_cmp(&one.2)));
        let (mut all, mut around) = (BTreeMap::<Activity, f64>::new(), Vec::<(Activity, f64)>::new());
        for (activity, begins, took) in spans {
            around.retain(|(_, ends)| *ends > begins);
            if let Some((outer, _)) = around.last() {
                *all.entry(*outer).or_default() -= took / 1e3;
            }
            *all.entry(activity).or_default() += took / 1e3;
            around.push((activity, begins + took));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"traceEvents":[
{"args":{"name":"rank 1: trainer"},"name":"process_name","ph":"M","pid":1,"tid":0},
{"args":{"name":"data0"},"name":"thread_name","ph":"M","pid":1,"tid":0},
{"args":{"name":"main"},"name":"thread_name","ph":"M","pid":1,"tid":1},
{"args":{"step":1},"cat":"data","dur":900.0,"name":"data","ph":"X","pid":1,"tid":0,"ts":0.0},
{"args":{"step":1},"cat":"forward","dur":100.0,"name":"forward","ph":"X","pid":1,"tid":1,"ts":1000.0},
{"args":{"step":1},"cat":"exchange","dur":400.0,"name":"exchange","ph":"X","pid":1,"tid":1,"ts":1300.0},
{"args":{"step":1},"cat":"backward","dur":600.0,"name":"backward","ph":"X","pid":1,"tid":1,"ts":1100.0},
{"cat":"wait","dur":5000.0,"name":"wait","ph":"X","pid":1,"tid":1,"ts":2000.0},
{"args":{"step":2},"cat":"forward","dur":2500.0,"name":"forward","ph":"X","pid":1,"tid":1,"ts":8000.0},
{"args":{"step":2},"cat":"step","dur":50.0,"name":"step","ph":"X","pid":0,"tid":0,"ts":9000.0}
],"displayTimeUnit":"ms"}
"#;

    fn events(trace: &[u8], trainers: &[u32]) -> Traced {
        let mut reader = Reader::new(trainers);
        trace_file::events(trace, |event| reader.take(event)).unwrap();
        reader.end()
    }

    #[test]
    fn steps_are_told_apart_and_what_is_inside_of_a_span_is_not_the_outer_ones() {
        let traced = events(TRACE.as_bytes(), &[1]);
        let [times] = &traced.trainers[..] else { panic!("{traced:?}") };
        assert_eq!((traced.spans, times.steps), (6, 2));
        assert_eq!((times.longest.step, times.longest.ms), (2, 2.5));
        let ms = |of| (times.ms[&of] * 1e6_f64).round() / 1e6;
        // Of two steps: (0.1 + 2.5) / 2, and what of the backward was not the exchange.
        assert_eq!([Activity::Forward, Activity::Backward, Activity::Exchange].map(ms), [1.3, 0.1, 0.2]);
        assert!(!times.ms.contains_key(&Activity::Data), "another thread's");
    }

    #[test]
    fn what_is_no_trace_has_no_steps() {
        assert_eq!(events(b"hello\n{}\n", &[0]), Traced::default());
    }
}
