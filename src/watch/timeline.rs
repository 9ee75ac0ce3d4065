//! A moment of a run that was profiled: what each thread of each rank did then, from `trace.json`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::trace_file::{Event, each};
use crate::profile::Activity;
use crate::runner::run_folder;

/// Threads that are known by their names.
const MOST_THREADS: usize = 10_000;

/// Spans that are shown: the moment is as long as it takes for so many.
const MOST_SPANS: usize = 3_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// `rank 2: trainer`, then the thread's name.
    pub rows: Vec<(String, String)>,
    pub spans: Vec<Span>,
    /// Milliseconds.
    pub long: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    pub row: usize,
    pub activity: Activity,
    /// Milliseconds since the moment began.
    pub at: f64,
    pub took: f64,
}

impl Timeline {
    /// Of the middle of the run in `folder`. None: it was not profiled, or there is too much of it.
    ///
    /// # Errors
    /// When the trace cannot be read.
    pub fn read(folder: &Path) -> io::Result<Option<Timeline>> {
        let path = folder.join(run_folder::TRACE);
        let mut names = Names::default();
        let (mut from, mut to, mut count) = (f64::INFINITY, f64::NEG_INFINITY, 0_usize);
        each(&path, |event| match event.is_span() {
            false => names.take(event),
            true => (from, to, count) = (from.min(event.ts), to.max(event.ts + event.dur), count + 1),
        })?;
        if count == 0 {
            return Ok(None);
        }
        let long = (to - from) * (MOST_SPANS as f64 / count as f64).min(1.0);
        let begin = from + (to - from - long) / 2.0;
        let mut timeline = Timeline { rows: names.rows(), spans: Vec::new(), long: long / 1e3 };
        let rows = names.places();
        each(&path, |event| {
            let activity = serde_json::from_value(event.name.clone().into());
            let (Ok(activity), Some(&row)) = (activity, rows.get(&(event.pid, event.tid))) else { return };
            let is_inside = event.ts < begin + long && event.ts + event.dur > begin;
            if event.is_span() && is_inside && timeline.spans.len() < 2 * MOST_SPANS {
                let (start, end) = (event.ts.max(begin), (event.ts + event.dur).min(begin + long));
                timeline.spans.push(Span {
                    row,
                    activity,
                    at: (start - begin) / 1e3,
                    took: (end - start) / 1e3,
                });
            }
        })?;
        // What is around others is drawn first.
        timeline.spans.sort_by(|one, other| {
            let by_place = one.row.cmp(&other.row).then(one.at.total_cmp(&other.at));
            by_place.then(other.took.total_cmp(&one.took))
        });
        timeline.keep_rows_with_spans();
        Ok(Some(timeline))
    }

    fn keep_rows_with_spans(&mut self) {
        let mut places = BTreeMap::new();
        for span in &mut self.spans {
            let next = places.len();
            span.row = *places.entry(span.row).or_insert(next);
        }
        self.rows = places.keys().map(|row| self.rows[*row].clone()).collect();
    }
}

#[derive(Default)]
struct Names {
    ranks: BTreeMap<u32, String>,
    threads: BTreeMap<(u32, u32), String>,
}

impl Names {
    fn take(&mut self, event: Event) {
        let Some(name) = event.args.name.filter(|_| self.threads.len() < MOST_THREADS) else { return };
        match event.name.as_str() {
            "process_name" => drop(self.ranks.insert(event.pid, name)),
            "thread_name" => drop(self.threads.insert((event.pid, event.tid), name)),
            _ => {}
        }
    }

    fn rows(&self) -> Vec<(String, String)> {
        let rank = |pid: &u32| self.ranks.get(pid).cloned().unwrap_or_else(|| format!("rank {pid}"));
        self.threads.iter().map(|((pid, _), thread)| (rank(pid), thread.clone())).collect()
    }

    fn places(&self) -> BTreeMap<(u32, u32), usize> {
        self.threads.keys().enumerate().map(|(row, thread)| (*thread, row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let trace = concat!(
            "{\"traceEvents\":[\n",
            r#"{"args":{"name":"rank 1: trainer"},"name":"process_name","ph":"M","pid":1,"tid":0}"#,
            ",\n",
            r#"{"args":{"name":"main"},"name":"thread_name","ph":"M","pid":1,"tid":0}"#,
            ",\n",
            r#"{"args":{"name":"idle"},"name":"thread_name","ph":"M","pid":1,"tid":1}"#,
            ",\n",
            r#"{"cat":"forward","dur":2000.0,"name":"forward","ph":"X","pid":1,"tid":0,"ts":1000.0}"#,
            ",\n",
            r#"{"cat":"wait","dur":500.0,"name":"wait","ph":"X","pid":1,"tid":0,"ts":3500.0}"#,
            "\n],\"displayTimeUnit\":\"ms\"}\n"
        );
        std::fs::write(folder.path().join(run_folder::TRACE), trace).unwrap();
        let timeline = Timeline::read(folder.path()).unwrap().unwrap();
        assert_eq!(timeline.rows, [("rank 1: trainer".into(), "main".into())]);
        assert_eq!(timeline.long, 3.0);
        let spans: Vec<_> = timeline.spans.iter().map(|span| (span.activity, span.at, span.took)).collect();
        assert_eq!(spans, [(Activity::Forward, 0.0, 2.0), (Activity::Wait, 2.5, 0.5)]);
    }

    #[test]
    fn a_run_that_was_not_profiled_has_none() {
        assert_eq!(Timeline::read(tempfile::tempdir().unwrap().path()).unwrap(), None);
    }
}
