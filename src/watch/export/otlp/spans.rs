//! A run as a trace: a span for it, and in it those of its epochs and validations.

use std::collections::BTreeMap;
use std::mem;

use anyhow::{Context as _, Result};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::{Span, Status, span::SpanKind, status::StatusCode};
use rand::TryRng;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};

use super::attributes::{integer, number, of_rank, text};
use crate::human::hex;
use crate::runner::records::MetricsLine;
use crate::topology::Rank;
use crate::watch::export::clock::{self, When, nanos};
use crate::watch::export::outbox::Ended;

/// The trace that a run is; one that goes on adds to it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ids {
    /// In hexadecimal.
    trace_id: String,
}

impl Ids {
    /// Chooses what is not there yet.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn make(&mut self) -> Result<()> {
        if bytes_of(&self.trace_id).is_none() {
            self.trace_id = hex(random::<16>()?);
        }
        Ok(())
    }
}

pub struct Spans {
    trace_id: Vec<u8>,
    /// Of the span that all others are in.
    run_id: Vec<u8>,
    job: String,
    /// By rank.
    roles: Vec<String>,
    /// When the epoch of each trainer has begun.
    epochs: BTreeMap<Rank, f64>,
    begun: f64,
    /// The last line's time.
    latest: f64,
    waiting: Vec<Span>,
}

impl Spans {
    /// # Errors
    /// The system has no random numbers.
    pub fn new(ids: &Ids, job: &str, roles: Vec<String>) -> Result<Spans> {
        Ok(Spans {
            trace_id: bytes_of(&ids.trace_id).context("a trace has 16 bytes as its number")?,
            run_id: random::<8>()?.into(),
            job: job.into(),
            roles,
            epochs: BTreeMap::new(),
            begun: 0.0,
            latest: 0.0,
            waiting: Vec::new(),
        })
    }

    /// `begun`: when the run was started, or has gone on.
    pub fn line(&mut self, line: &MetricsLine, when: When, begun: f64, is_new: bool) {
        if self.begun != begun {
            (self.begun, self.latest) = (begun, begun);
            self.epochs.clear();
        }
        self.latest = self.latest.max(when.to);
        match line {
            MetricsLine::Step(record) => {
                self.epochs.entry(record.rank).or_insert(begun);
            }
            MetricsLine::Epoch(record) => {
                let from = self.epochs.insert(record.rank, when.to).unwrap_or(begun);
                let mut attributes = of_rank(record.rank, &self.roles);
                attributes.extend([
                    integer("pstrain.epoch", record.epoch.into()),
                    integer("pstrain.step", record.step),
                    number("pstrain.loss", record.loss),
                ]);
                if is_new {
                    self.add(format!("epoch {}", record.epoch), from, when.to, attributes);
                }
            }
            MetricsLine::Eval(record) if is_new => {
                let mut attributes = of_rank(record.rank, &self.roles);
                attributes.push(integer("pstrain.step", record.step));
                let figures = record.result.numbers();
                attributes
                    .extend(figures.map(|(name, value)| number(&format!("pstrain.eval.{name}"), value)));
                self.add("validation".into(), when.from, when.to, attributes);
            }
            MetricsLine::Eval(_) | MetricsLine::Rank(_) | MetricsLine::Message(_) => {}
        }
    }

    /// Of a rank, as the run's trace file has it.
    pub fn activity(&mut self, activity: &str, rank: Rank, thread: u64, from: f64, to: f64) {
        let mut attributes = of_rank(rank, &self.roles);
        attributes.push(integer("thread.id", thread));
        self.add(activity.into(), from, to, attributes);
    }

    /// The span of the run, or of this part of it.
    pub fn end(&mut self, ended: &Ended, begun: f64) {
        let mut attributes = vec![text("pstrain.job", &self.job)];
        let (code, message) = match &ended.summary {
            Some(summary) => {
                attributes.extend([
                    integer("pstrain.steps", summary.steps),
                    integer("pstrain.samples", summary.samples),
                    number("pstrain.loss", summary.loss_final),
                ]);
                (StatusCode::Ok, String::new())
            }
            None => (StatusCode::Error, "it ended before its last step".into()),
        };
        // One whose files are told later has ended with them.
        let to = if self.latest > begun { self.latest } else { clock::now() };
        let mut span = self.span(self.run_id.clone(), format!("train {}", self.job), begun, to, attributes);
        span.parent_span_id.clear();
        span.status = Some(Status { message, code: code as i32 });
        self.waiting.push(span);
    }

    pub fn take(&mut self) -> Vec<Span> {
        mem::take(&mut self.waiting)
    }

    fn add(&mut self, name: String, from: f64, to: f64, attributes: Vec<KeyValue>) {
        // Without random numbers there is no span; that there were some when this was made is known.
        if let Ok(id) = random::<8>() {
            let span = self.span(id.into(), name, from, to, attributes);
            self.waiting.push(span);
        }
    }

    fn span(&self, span_id: Vec<u8>, name: String, from: f64, to: f64, attributes: Vec<KeyValue>) -> Span {
        Span {
            trace_id: self.trace_id.clone(),
            span_id,
            parent_span_id: self.run_id.clone(),
            name,
            kind: SpanKind::Internal as i32,
            start_time_unix_nano: nanos(from),
            end_time_unix_nano: nanos(to.max(from)),
            attributes,
            ..Span::default()
        }
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).context("the system has no random numbers")?;
    Ok(bytes)
}

/// Of 16 bytes in hexadecimal.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let is_hex = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok();
    is_hex.then(|| (0..16).map(byte).collect()).flatten()
}
