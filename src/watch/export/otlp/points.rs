//! Figures as points of metrics, each with its time.

use std::collections::BTreeMap;
use std::mem;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum, metric::Data, number_data_point::Value,
};

use super::attributes::{of_rank, text};
use crate::profile::Activity;
use crate::runner::records::{EpochRecord, EvalRecord, RankRecord, StepRecord};
use crate::topology::Rank;
use crate::watch::export::clock::nanos;
use crate::watch::run::MOST_FIGURES;

pub struct Points {
    /// By rank.
    roles: Vec<String>,
    /// Since when sums are counted, in seconds since 1970, and how often the run had gone on then.
    begun: (f64, u64),
    /// By rank: seconds of processors, and of threads by what they went into.
    sums: BTreeMap<Rank, (f64, BTreeMap<Activity, f64>)>,
    metrics: BTreeMap<String, Kind>,
}

/// A metric with the points that wait.
struct Kind {
    unit: &'static str,
    is_sum: bool,
    points: Vec<NumberDataPoint>,
}

impl Points {
    pub fn new(roles: Vec<String>) -> Points {
        Points { roles, begun: (0.0, 0), sums: BTreeMap::new(), metrics: BTreeMap::new() }
    }

    /// Sums begin anew where a run goes on.
    pub fn begun(&mut self, begun: f64, gone_on: u64) {
        if self.begun.1 != gone_on {
            self.sums.clear();
        }
        self.begun = (begun, gone_on);
    }

    pub fn step(&mut self, record: &StepRecord, at: f64) {
        let attributes = of_rank(record.rank, &self.roles);
        for (name, value) in record.figures(MOST_FIGURES) {
            let unit = match name {
                "samples_per_s" => "{sample}/s",
                "data_wait_pct" => "%",
                _ => "1",
            };
            self.add(format!("pstrain.train.{name}"), unit, false, value, at, &attributes);
        }
        self.add("pstrain.train.steps".into(), "{step}", true, record.step as f64, at, &attributes);
    }

    pub fn epoch(&mut self, record: &EpochRecord, at: f64) {
        let attributes = of_rank(record.rank, &self.roles);
        self.add("pstrain.train.epoch_loss".into(), "1", false, record.loss, at, &attributes);
    }

    pub fn eval(&mut self, record: &EvalRecord, at: f64) {
        for (name, value) in record.result.numbers() {
            self.add(format!("pstrain.eval.{name}"), "1", false, value, at, &[]);
        }
    }

    /// Sums go on with what was told before, too.
    pub fn used(&mut self, record: &RankRecord, at: f64, is_new: bool) {
        let (cpu_s, seconds) = self.sums.entry(record.rank).or_default();
        *cpu_s += record.cpu_s();
        for (activity, spent) in &record.seconds {
            *seconds.entry(*activity).or_default() += spent;
        }
        if !is_new {
            return;
        }
        let (cpu_s, seconds) = (*cpu_s, seconds.clone());
        let attributes = of_rank(record.rank, &self.roles);
        let mut gauge = |name: &str, unit, value| self.add(name.into(), unit, false, value, at, &attributes);
        gauge("pstrain.memory.usage", "By", record.resident_bytes as f64);
        gauge("pstrain.cpu.utilization", "1", record.cpu_pct / 100.0);
        if let Some(gpu) = record.gpu {
            gauge("pstrain.gpu.utilization", "1", gpu.busy_pct / 100.0);
            if let Some(bytes) = gpu.bytes {
                gauge("pstrain.gpu.memory.usage", "By", bytes as f64);
            }
        }
        self.add("pstrain.cpu.time".into(), "s", true, cpu_s, at, &attributes);
        for (activity, seconds) in seconds {
            let activity = text("pstrain.activity", activity.name());
            let attributes: Vec<_> = attributes.iter().cloned().chain([activity]).collect();
            self.add("pstrain.activity.time".into(), "s", true, seconds, at, &attributes);
        }
    }

    fn add(
        &mut self,
        name: String,
        unit: &'static str,
        is_sum: bool,
        value: f64,
        at: f64,
        attributes: &[KeyValue],
    ) {
        let point = NumberDataPoint {
            attributes: attributes.into(),
            start_time_unix_nano: if is_sum { nanos(self.begun.0) } else { 0 },
            time_unix_nano: nanos(at),
            value: Some(Value::AsDouble(value)),
            ..NumberDataPoint::default()
        };
        self.metrics
            .entry(name)
            .or_insert_with(|| Kind { unit, is_sum, points: Vec::new() })
            .points
            .push(point);
    }

    /// What waits, in parts of about `most` points.
    pub fn take(&mut self, most: usize) -> Vec<Vec<Metric>> {
        let (mut parts, mut part, mut room) = (Vec::new(), Vec::new(), most);
        for (name, Kind { unit, is_sum, mut points }) in mem::take(&mut self.metrics) {
            while !points.is_empty() {
                let rest = points.split_off(points.len().min(room));
                let data_points = mem::replace(&mut points, rest);
                room -= data_points.len();
                part.push(metric(&name, unit, is_sum, data_points));
                if room == 0 {
                    parts.push(mem::take(&mut part));
                    room = most;
                }
            }
        }
        if !part.is_empty() {
            parts.push(part);
        }
        parts
    }
}

fn metric(name: &str, unit: &str, is_sum: bool, data_points: Vec<NumberDataPoint>) -> Metric {
    let data = if is_sum {
        let aggregation_temporality = AggregationTemporality::Cumulative as i32;
        Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
    } else {
        Data::Gauge(Gauge { data_points })
    };
    Metric { name: name.into(), unit: unit.into(), data: Some(data), ..Metric::default() }
}
