//! OpenTelemetry: metrics by rank, and a trace of the run with its epochs and validations, as protobuf over HTTP to a collector.
//! Source: <https://opentelemetry.io/docs/specs/otlp/>.
//!
//! The messages are OpenTelemetry's own (`opentelemetry-proto`). The instruments of its SDK are not used: these take a value when it
//! is asked for, and what stands in the files of a run has times of its own.

mod attributes;
mod longest;
mod points;
mod spans;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::{env, mem};

use anyhow::{Context as _, Result, bail};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

use super::clock::Clock;
use super::http::{Failure, Server};
use super::outbox::{Ended, Peer};
use super::sparse::Sparse;
use super::told::Told;
use crate::job::{Address, Job};
use crate::runner::records::MetricsLine;
use crate::runner::run_folder;
use attributes::text;
use points::Points;
use spans::{Ids, Spans};

/// Points and spans of one request: some hundred bytes each.
const MOST_AT_ONCE: usize = 5000;

pub struct Otlp {
    server: Server,
    folder: PathBuf,
    world_size: usize,
    resource: Resource,
    clock: Clock,
    sparse: Sparse,
    told: Told<Ids>,
    points: Points,
    spans: Spans,
    /// Encoded requests that wait, with the paths that they go to.
    requests: Vec<(&'static str, Vec<u8>)>,
    /// A line was taken that had not been told before.
    has_news: bool,
    /// The collector has said that it did not take all.
    has_warned: bool,
}

impl Otlp {
    /// # Errors
    /// What an earlier one has left in the run folder cannot be read; the variable with headers is none.
    pub fn new(to: &Address, job: &Job, folder: &Path, clock: Clock) -> Result<Otlp> {
        let mut told: Told<Ids> = Told::load(folder, run_folder::TOLD_OTLP, &to.to_string())?;
        told.own.make()?;
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.into());
        let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let attributes = vec![
            text("service.name", "pstrain"),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", &name),
            text("pstrain.job", &job.name),
            text("pstrain.run", &name),
        ];
        let roles: Vec<String> = (0..job.cluster.world_size.0)
            .map(|rank| job.role_of(crate::topology::Rank(rank)).name.clone())
            .collect();
        Ok(Otlp {
            server: Server::new("the OpenTelemetry collector", to, headers()?, CERTIFICATE)?,
            folder: folder.into(),
            world_size: roles.len(),
            resource: Resource { attributes, ..Resource::default() },
            points: Points::new(roles.clone()),
            spans: Spans::new(&told.own, &job.name, roles)?,
            clock,
            sparse: Sparse::default(),
            told,
            requests: Vec::new(),
            has_news: false,
            has_warned: false,
        })
    }

    fn scope() -> InstrumentationScope {
        InstrumentationScope {
            name: "pstrain".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        }
    }

    /// Has what was taken wait as requests.
    fn encode(&mut self) {
        let resource = || Some(self.resource.clone());
        for metrics in self.points.take(MOST_AT_ONCE) {
            let of_scope = ScopeMetrics { scope: Some(Otlp::scope()), metrics, ..ScopeMetrics::default() };
            let of_resource = ResourceMetrics {
                resource: resource(),
                scope_metrics: vec![of_scope],
                ..ResourceMetrics::default()
            };
            let request = ExportMetricsServiceRequest { resource_metrics: vec![of_resource] };
            self.requests.push(("v1/metrics", request.encode_to_vec()));
        }
        let mut spans: Vec<Span> = self.spans.take();
        while !spans.is_empty() {
            let rest = spans.split_off(spans.len().min(MOST_AT_ONCE));
            let spans = mem::replace(&mut spans, rest);
            let of_scope = ScopeSpans { scope: Some(Otlp::scope()), spans, ..ScopeSpans::default() };
            let of_resource = ResourceSpans {
                resource: resource(),
                scope_spans: vec![of_scope],
                ..ResourceSpans::default()
            };
            let request = ExportTraceServiceRequest { resource_spans: vec![of_resource] };
            self.requests.push(("v1/traces", request.encode_to_vec()));
        }
    }

    /// A collector that takes a part has said what is wrong with the rest: it is not to be sent again.
    fn answered(&mut self, path: &str, answer: &[u8]) {
        let rejected = match path {
            "v1/metrics" => ExportMetricsServiceResponse::decode(answer)
                .ok()
                .and_then(|answer| answer.partial_success)
                .map(|part| (part.rejected_data_points, part.error_message)),
            _ => ExportTraceServiceResponse::decode(answer)
                .ok()
                .and_then(|answer| answer.partial_success)
                .map(|part| (part.rejected_spans, part.error_message)),
        };
        let Some((rejected, why)) = rejected.filter(|(rejected, _)| *rejected > 0) else { return };
        if !mem::replace(&mut self.has_warned, true) {
            let why = crate::human::cut(&crate::human::one_line(&why), 300);
            tracing::warn!("the OpenTelemetry collector has not taken {rejected} of what it was told: {why}");
        }
    }
}

impl Peer for Otlp {
    fn name(&self) -> &'static str {
        "log.otlp"
    }

    fn told(&self) -> u64 {
        self.told.lines
    }

    fn take(&mut self, line: &MetricsLine, is_new: bool) {
        let Some(when) = self.clock.at(line) else { return };
        self.has_news |= is_new;
        self.points.begun(self.clock.begun, self.clock.gone_on);
        self.spans.line(line, when, self.clock.begun, is_new);
        match line {
            MetricsLine::Step(record) => {
                if is_new && self.sparse.takes(record, when.to) {
                    self.points.step(record, when.to);
                }
            }
            MetricsLine::Epoch(record) if is_new => self.points.epoch(record, when.to),
            MetricsLine::Eval(record) if is_new => self.points.eval(record, when.to),
            MetricsLine::Rank(record) => self.points.used(record, when.to, is_new),
            MetricsLine::Epoch(_) | MetricsLine::Eval(_) | MetricsLine::Message(_) => {}
        }
    }

    fn end(&mut self, ended: &Ended) {
        for (record, at) in self.sparse.rest() {
            self.points.step(&record, at);
        }
        // All of it was told before, the end, too.
        if !self.has_news {
            return;
        }
        let trace = self.folder.join(run_folder::TRACE);
        longest::add(&trace, &mut self.spans, self.clock.begun, self.world_size);
        self.spans.end(ended, self.clock.begun);
    }

    fn send(&mut self) -> Result<(), Failure> {
        self.encode();
        while let Some((path, body)) = self.requests.first() {
            let path = *path;
            let answer = self.server.post(path, "application/x-protobuf", body)?;
            self.answered(path, &answer);
            self.requests.remove(0);
        }
        Ok(())
    }

    fn save(&mut self, lines: u64) -> Result<()> {
        self.told.lines = lines;
        self.told.save()
    }
}

const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Those of the environment, as OpenTelemetry's SDKs have them: `name=value,name=value`, with values as in an address.
fn headers() -> Result<Vec<(String, String)>> {
    parse_headers(&env::var(HEADERS).unwrap_or_default())
}

fn parse_headers(text: &str) -> Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        // Its value may be a secret.
        let Some((name, value)) = part.split_once('=') else {
            bail!("{HEADERS} has a part without a `=`\n  hint: write name=value,name=value");
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), decoded(value.trim())?);
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        {
            bail!("{HEADERS} has a name that no header has\n  hint: write name=value,name=value");
        }
        headers.push((name, value));
    }
    Ok(headers)
}

fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        let code = (first == b'%').then(|| behind.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        if code.is_some() {
            rest = &behind[2..];
        }
        bytes.push(code.unwrap_or(first));
    }
    let value = String::from_utf8(bytes).ok().filter(|value| !value.contains(char::is_control));
    value.with_context(|| format!("{HEADERS} has a value that no header has"))
}
