//! MLflow's tracking server, by its REST interface: the job's keys are the run's params, figures its metrics, and it ends as the run
//! ends. Source: <https://mlflow.org/docs/latest/api_reference/rest-api.html>.

mod params;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::clock::{self, Clock, When};
use super::http::{Failure, Server};
use super::outbox::{Ended, Peer};
use super::sparse::Sparse;
use super::told::Told;
use crate::files;
use crate::job::{self, Job};
use crate::runner::records::{MetricsLine, RankRecord, StepRecord};
use crate::runner::run_folder::{self, MOST_OF_JOB};
use crate::watch::run::MOST_FIGURES;

/// What MLflow takes in one request.
const METRICS_AT_ONCE: usize = 1000;
const PARAMS_AT_ONCE: usize = 100;

const CERTIFICATE: &str = "MLFLOW_TRACKING_SERVER_CERT_PATH";

const API: &str = "api/2.0/mlflow";

pub struct Mlflow {
    server: Server,
    experiment: String,
    /// Of the run, on the server.
    name: String,
    folder: PathBuf,
    tags: Vec<Value>,
    clock: Clock,
    sparse: Sparse,
    told: Told<Ids>,
    /// The server knows that the run is under way.
    has_begun: bool,
    metrics: Vec<Value>,
    ended: Option<Status>,
}

/// As the server has them.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ids {
    run_id: Option<String>,
    /// Of its params so many have been told.
    params: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Status {
    Running,
    Finished,
    Failed,
}

#[derive(Deserialize)]
struct ExperimentFound {
    experiment: ExperimentId,
}

#[derive(Deserialize)]
struct ExperimentId {
    experiment_id: String,
}

#[derive(Deserialize)]
struct RunMade {
    run: RunFound,
}

#[derive(Deserialize)]
struct RunFound {
    info: RunInfo,
}

#[derive(Deserialize)]
struct RunInfo {
    run_id: String,
}

impl Mlflow {
    /// # Errors
    /// What an earlier one has left in the run folder cannot be read.
    pub fn new(to: &job::Mlflow, job: &Job, folder: &Path, clock: Clock) -> Result<Mlflow> {
        let experiment = to.experiment.clone().unwrap_or_else(|| job.name.clone());
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.into());
        let name =
            whole.file_name().map_or_else(|| job.name.clone(), |name| name.to_string_lossy().into_owned());
        let tags = [
            ("mlflow.source.name", "pstrain".to_owned()),
            ("mlflow.source.type", "JOB".to_owned()),
            ("mlflow.user", env::var("USER").unwrap_or_default()),
            ("pstrain.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("pstrain.job", job.name.clone()),
            ("pstrain.run_dir", whole.to_string_lossy().into_owned()),
            ("pstrain.world_size", job.cluster.world_size.0.to_string()),
        ];
        let tags = tags.into_iter().filter(|(_, value)| !value.is_empty());
        let destination = format!("{} {experiment}", to.server);
        Ok(Mlflow {
            server: Server::new("the MLflow server", &to.server, credentials(), CERTIFICATE)?,
            experiment,
            name,
            folder: folder.into(),
            tags: tags.map(|(key, value)| json!({"key": key, "value": params::cut(&value)})).collect(),
            clock,
            sparse: Sparse::default(),
            told: Told::load(folder, run_folder::TOLD_MLFLOW, &destination)?,
            has_begun: false,
            metrics: Vec::new(),
            ended: None,
        })
    }

    fn metric(&mut self, key: &str, value: f64, step: u64, at: f64) {
        let value = match value {
            value if value.is_finite() => json!(value),
            // As protobuf has them in JSON.
            value if value.is_nan() => json!("NaN"),
            value => json!(if value > 0.0 { "Infinity" } else { "-Infinity" }),
        };
        let timestamp = millis(at);
        self.metrics
            .push(json!({"key": params::key(key), "value": value, "timestamp": timestamp, "step": step}));
    }

    fn step(&mut self, record: &StepRecord, at: f64) {
        for (name, value) in record.figures(MOST_FIGURES) {
            self.metric(&format!("train/{name}/rank{}", record.rank), value, record.step, at);
        }
    }

    /// Where MLflow's own client has such figures: those below `system` are on a page of their own.
    fn used(&mut self, record: &RankRecord, at: f64) {
        let gpu = record.gpu;
        let figures = [
            ("resident_memory_megabytes", Some(record.resident_bytes as f64 / 1e6)),
            ("cpu_utilization_percentage", Some(record.cpu_pct)),
            ("gpu_utilization_percentage", gpu.map(|gpu| gpu.busy_pct)),
            ("gpu_memory_usage_megabytes", gpu.and_then(|gpu| gpu.bytes).map(|bytes| bytes as f64 / 1e6)),
        ];
        let seconds = (at - self.clock.begun).max(0.0) as u64;
        for (name, value) in figures {
            if let Some(value) = value {
                self.metric(&format!("system/rank{}/{name}", record.rank), value, seconds, at);
            }
        }
    }

    fn call<T: DeserializeOwned>(&self, what: &str, body: &Value) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::Away(error.into()))?;
        understood(&self.server.post(&format!("{API}/{what}"), "application/json", &body)?)
    }

    /// Has the server know of the run.
    fn begin(&mut self) -> Result<(), Failure> {
        if self.told.own.run_id.is_some() {
            self.update(Status::Running, None).map_err(|failure| match failure {
                Failure::Refused { status: 404, why } => {
                    let at = self.told.at().display();
                    let hint =
                        format!("{why}\n  hint: was the run removed there? Without `{at}` it is told anew");
                    Failure::Refused { status: 404, why: anyhow!(hint) }
                }
                failure => failure,
            })?;
        } else {
            let experiment_id = self.experiment()?;
            let made: RunMade = self.call(
                "runs/create",
                &json!({
                    "experiment_id": experiment_id,
                    "run_name": params::cut(&self.name),
                    "start_time": millis(self.clock.begun),
                    "tags": self.tags,
                }),
            )?;
            self.told.own.run_id = Some(made.run.info.run_id);
            // Whoever goes on after this process has been killed makes no second one.
            self.told.save().map_err(Failure::Away)?;
        }
        self.params()
    }

    /// The number of the experiment, which is made if it is not there.
    fn experiment(&self) -> Result<String, Failure> {
        let find = || {
            let query = [("experiment_name", self.experiment.as_str())];
            let found = self.server.get(&format!("{API}/experiments/get-by-name"), &query)?;
            understood(&found).map(|found: ExperimentFound| found.experiment.experiment_id)
        };
        match find() {
            Err(Failure::Refused { status: 404, .. }) => {}
            found => return found,
        }
        match self.call("experiments/create", &json!({"name": self.experiment})) {
            Ok(ExperimentId { experiment_id }) => Ok(experiment_id),
            // Another run may have been faster.
            Err(refused @ Failure::Refused { .. }) => find().map_err(|_| refused),
            Err(away) => Err(away),
        }
    }

    fn params(&mut self) -> Result<(), Failure> {
        let job = self.folder.join(run_folder::JOB);
        let text = files::text_at_most(&job, MOST_OF_JOB)
            .with_context(|| format!("cannot read `{}`", job.display()));
        let all = text.and_then(|text| params::of_job(&text)).map_err(Failure::Away)?;
        while let Some(rest) = all.get(self.told.own.params..).filter(|rest| !rest.is_empty()) {
            let some = &rest[..rest.len().min(PARAMS_AT_ONCE)];
            let some: Vec<_> = some.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
            self.log("params", &some)?;
            self.told.own.params += some.len();
        }
        Ok(())
    }

    fn log(&self, what: &str, some: &[Value]) -> Result<(), Failure> {
        let body = BTreeMap::from([("run_id", json!(self.told.own.run_id)), (what, json!(some))]);
        self.call::<Value>("runs/log-batch", &json!(body)).map(drop)
    }

    fn update(&self, status: Status, end_time: Option<u64>) -> Result<(), Failure> {
        let mut body = json!({"run_id": self.told.own.run_id, "status": status});
        if let Some(end_time) = end_time {
            body["end_time"] = json!(end_time);
        }
        self.call::<Value>("runs/update", &body).map(drop)
    }
}

impl Peer for Mlflow {
    fn name(&self) -> &'static str {
        "log.mlflow"
    }

    fn told(&self) -> u64 {
        self.told.lines
    }

    fn take(&mut self, line: &MetricsLine, is_new: bool) {
        let Some(When { to: at, .. }) = self.clock.at(line).filter(|_| is_new) else { return };
        match line {
            MetricsLine::Step(record) if self.sparse.takes(record, at) => self.step(record, at),
            MetricsLine::Epoch(record) => {
                self.metric(&format!("train/epoch_loss/rank{}", record.rank), record.loss, record.step, at);
            }
            MetricsLine::Eval(record) => {
                for (name, value) in record.result.numbers() {
                    self.metric(&format!("eval/{name}"), value, record.step, at);
                }
            }
            MetricsLine::Rank(record) => self.used(record, at),
            MetricsLine::Step(_) | MetricsLine::Message(_) => {}
        }
    }

    fn end(&mut self, ended: &Ended) {
        for (record, at) in self.sparse.rest() {
            self.step(&record, at);
        }
        if let Some(summary) = &ended.summary {
            let figures = [
                ("summary/loss_final", summary.loss_final),
                ("summary/steps_per_s", summary.steps_per_s),
                ("summary/samples_per_s", summary.samples_per_s),
                ("summary/train_seconds", summary.train_seconds),
                ("summary/startup_seconds", summary.startup_seconds),
            ];
            let now = clock::now();
            figures.into_iter().for_each(|(key, value)| self.metric(key, value, 0, now));
        }
        self.ended = Some(if ended.summary.is_some() { Status::Finished } else { Status::Failed });
    }

    fn send(&mut self) -> Result<(), Failure> {
        if !self.has_begun {
            self.begin()?;
            self.has_begun = true;
        }
        while !self.metrics.is_empty() {
            let count = self.metrics.len().min(METRICS_AT_ONCE);
            self.log("metrics", &self.metrics[..count])?;
            self.metrics.drain(..count);
        }
        if let Some(status) = self.ended {
            self.update(status, Some(millis(clock::now())))?;
        }
        Ok(())
    }

    fn save(&mut self, lines: u64) -> Result<()> {
        self.told.lines = lines;
        self.told.save()
    }
}

/// What is sent with each request, as MLflow's own client finds it in the environment.
fn credentials() -> Vec<(String, String)> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let (user, password) = (variable("MLFLOW_TRACKING_USERNAME"), variable("MLFLOW_TRACKING_PASSWORD"));
    authorization(user.zip(password), variable("MLFLOW_TRACKING_TOKEN"))
        .map(|value| ("authorization".into(), value))
        .into_iter()
        .collect()
}

fn authorization(user: Option<(String, String)>, token: Option<String>) -> Option<String> {
    match user {
        Some((user, password)) => {
            Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
        }
        None => token.map(|token| format!("Bearer {token}")),
    }
}

fn understood<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Failure> {
    let text = if answer.is_empty() { b"{}" } else { answer };
    let parsed = serde_json::from_slice(text).context("the MLflow server answers something else");
    parsed.map_err(|why| Failure::Refused { status: 200, why })
}

fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}
