//! `--profile`: what all ranks recorded goes to the coordinator, on the coordinator's clock, and into the run folder as a Chrome
//! trace (the "Trace Event Format": open it in chrome://tracing or ui.perfetto.dev).

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::calls::trace::{Clock, Shown, Take};
use super::run_folder::{RunFolder, TRACE};
use super::run_recorder::COORDINATOR;
use crate::profile::{self, Recording};
use crate::rpc::{CallError, Incoming, Mesh, Methods};
use crate::topology::Rank;

/// How often the coordinator is asked for its time: the quickest answer tells it best.
const LOOKS_AT_CLOCK: usize = 9;

/// Spans of one message: some 5 MB.
const SPANS_OF_MESSAGE: usize = 50_000;

/// Ranks whose messages the coordinator waits for hold a bounded recording; so do those that it does not know.
const MOST_MESSAGES: usize = 64;

/// TracePart of what a rank has recorded.
#[derive(Serialize, Deserialize)]
pub(super) struct TracePart {
    rank: Rank,
    name: String,
    /// What the rank's clock shows less than the coordinator's, in microseconds.
    behind_us: f64,
    recording: Recording,
}

/// The coordinator's side.
#[derive(Default)]
pub struct Traces {
    parts: Mutex<Vec<TracePart>>,
}

impl Traces {
    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        methods
            .serve(|_, Clock {}| std::future::ready(Ok::<_, CallError>(Shown { micros: profile::now_us() })));
        let traces = self.clone();
        methods.serve(move |incoming, take| std::future::ready(traces.take(&incoming, take)));
    }

    fn take(&self, incoming: &Incoming, Take { part }: Take) -> Result<(), CallError> {
        let most = MOST_MESSAGES * incoming.mesh.world_size().0 as usize;
        let mut parts = self.parts.lock().expect("nobody panics adding a part");
        if parts.len() >= most {
            return Err(CallError::failed("there are too many parts of a trace"));
        }
        parts.push(part);
        Ok(())
    }

    /// Writes what the ranks have sent, if they have.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, folder: &RunFolder) -> Result<()> {
        let parts = self.parts.lock().expect("nobody panics adding a part");
        if parts.is_empty() {
            return Ok(());
        }
        folder.write_with(TRACE, |file, _| {
            let mut file = io::BufWriter::new(file);
            events(&mut file, &parts)?;
            file.flush()
        })?;
        Ok(())
    }
}

fn events(to: &mut impl Write, parts: &[TracePart]) -> io::Result<()> {
    let mut first = true;
    let mut write = |event: serde_json::Value| {
        let before = if std::mem::take(&mut first) { "{\"traceEvents\":[\n" } else { ",\n" };
        write!(to, "{before}{event}")
    };
    for TracePart { rank, name, behind_us, recording } in parts {
        let meta = |what: &str, tid: usize, name: &str| json!({"ph": "M", "name": what, "pid": rank.0, "tid": tid, "args": {"name": name}});
        write(meta("process_name", 0, &format!("rank {rank}: {name}")))?;
        for (tid, thread) in recording.threads.iter().enumerate() {
            write(meta("thread_name", tid, thread))?;
        }
        for span in &recording.spans {
            let at = span.start_us + behind_us;
            let mut event = json!({
                "ph": "X", "name": span.activity, "cat": span.activity, "pid": rank.0, "tid": span.thread,
                "ts": round(at), "dur": round(span.took_us),
            });
            if let Some(step) = span.step {
                event["args"] = json!({"step": step});
            }
            write(event)?;
        }
    }
    writeln!(to, "\n],\"displayTimeUnit\":\"ms\"}}")
}

/// To a hundredth of a microsecond.
fn round(micros: f64) -> f64 {
    (micros * 100.0).round() / 100.0
}

/// Sends what this rank has recorded to the coordinator.
///
/// # Errors
/// When the coordinator cannot take it.
pub fn send(mesh: &Mesh, name: &str) -> Result<()> {
    let behind_us = behind_coordinator(mesh)?;
    let Recording { threads, spans, left_out } = profile::stop();
    if left_out > 0 {
        tracing::warn!(
            "the trace of rank {} is not whole: there was no room for {left_out} spans",
            mesh.rank()
        );
    }
    for spans in spans.chunks(SPANS_OF_MESSAGE) {
        let recording = Recording { threads: threads.clone(), spans: spans.to_vec(), left_out };
        let part = TracePart { rank: mesh.rank(), name: name.to_owned(), behind_us, recording };
        mesh.request(COORDINATOR, Take { part }).wait().context("the trace")?;
    }
    Ok(())
}

/// As Cristian's algorithm: the coordinator's clock is taken to have been read in the middle of the quickest call.
fn behind_coordinator(mesh: &Mesh) -> Result<f64> {
    if mesh.rank() == COORDINATOR {
        return Ok(0.0);
    }
    let mut best = (f64::INFINITY, 0.0);
    for _ in 0..LOOKS_AT_CLOCK {
        let before = profile::now_us();
        let Shown { micros } = mesh.request(COORDINATOR, Clock {}).wait()?;
        let after = profile::now_us();
        if after - before < best.0 {
            best = (after - before, micros - (before + after) / 2.0);
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::profile::{Activity, Recorded};

    #[test]
    fn spans_stand_on_the_coordinators_clock() {
        let span = |start_us| Recorded {
            activity: Activity::Forward,
            thread: 0,
            start_us,
            took_us: 2.5,
            step: NonZeroU64::new(7),
        };
        let part = |rank, behind_us| TracePart {
            rank: Rank(rank),
            name: "trainer".into(),
            behind_us,
            recording: Recording { threads: vec!["main".into()], spans: vec![span(10.0)], left_out: 0 },
        };
        let mut text = Vec::new();
        events(&mut text, &[part(0, 0.0), part(1, -4.125)]).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let spans: Vec<_> = trace["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| {
                (
                    event["pid"].as_u64().unwrap(),
                    event["name"].as_str().unwrap(),
                    event["ts"].as_f64().unwrap(),
                    event["args"]["step"].as_u64(),
                )
            })
            .collect();
        assert_eq!(spans, [(0, "forward", 10.0, Some(7)), (1, "forward", 5.88, Some(7))]);
    }
}
