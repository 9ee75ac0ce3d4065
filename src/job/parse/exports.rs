//! `[log]`: where a run is told beside its folder.

use std::path::PathBuf;

use super::super::validated::{Address, Exports, Mlflow, NoAddress};
use crate::config::{Item, JobError, Key, Optional, Str, Table, key, string};

pub(super) const TENSORBOARD: Key<Optional<Str>> = key("tensorboard", string()).optional().doc(
    "A folder for TensorBoard's event files, with a run in it for each rank: a path from the run folder, as \"tensorboard\", or \
     an absolute one, which several runs may share.",
);
pub(super) const OTLP: Key<Optional<Str>> = key("otlp", string()).optional().doc(
    "Where an OpenTelemetry collector takes metrics and traces as protobuf over HTTP, as \"http://localhost:4318\". \
     OTEL_EXPORTER_OTLP_HEADERS in the environment of rank 0 has what is sent with them, as a token.",
);
pub(super) const MLFLOW: Key<Optional<Str>> = key("mlflow", string()).optional().doc(
    "The address of an MLflow tracking server, as \"http://localhost:5000\". MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and \
     MLFLOW_TRACKING_PASSWORD, in the environment of rank 0 are what it asks for.",
);
pub(super) const MLFLOW_EXPERIMENT: Key<Optional<Str>> = key("mlflow_experiment", string())
    .optional()
    .doc("With `mlflow`: the experiment that the run is one of. Without it: the job's name.");

/// What MLflow's stores take of a name.
const LONGEST_NAME: usize = 250;

pub(super) fn read(t: &Table<'_>) -> Option<Exports> {
    let (tensorboard, otlp) = (t.read(&TENSORBOARD), t.read(&OTLP));
    let (server, experiment) = (t.read(&MLFLOW), t.read(&MLFLOW_EXPERIMENT));
    let tensorboard = tensorboard?.map_or(Some(None), |text| folder(&t.item(&TENSORBOARD)?, &text).map(Some));
    let otlp = otlp?.map_or(Some(None), |text| address(&t.item(&OTLP)?, &text).map(Some));
    let server = server?.map_or(Some(None), |text| address(&t.item(&MLFLOW)?, &text).map(Some));
    let experiment = experiment?.map_or(Some(None), |name| named(t, name).map(Some));
    let (server, experiment) = (server?, experiment?);
    let mlflow = server.map(|server| Mlflow { server, experiment });
    Some(Exports { tensorboard: tensorboard?, otlp: otlp?, mlflow })
}

fn folder(item: &Item<'_>, text: &str) -> Option<PathBuf> {
    let problem = match text {
        _ if text.is_empty() => "is not a folder",
        _ if text.contains("://") => "is an address, and events go into a folder",
        _ => return Some(text.into()),
    };
    item.wrong(problem, "name a folder, for example tensorboard = \"tensorboard\"");
    None
}

fn address(item: &Item<'_>, text: &str) -> Option<Address> {
    let refused = |no: NoAddress| match text.contains('@') {
        // What may be a password is not shown, nor where it was typed.
        true => item.reader().report(JobError::new(format!("`{}` {}", item.path, no.problem)).hint(no.hint)),
        false => item.wrong(no.problem, no.hint),
    };
    Address::parse(text).map_err(refused).ok()
}

fn named(t: &Table<'_>, name: String) -> Option<String> {
    let item = t.item(&MLFLOW_EXPERIMENT)?;
    if t.item(&MLFLOW).is_none() {
        item.wrong(
            "names an experiment of no server",
            "leave it out, or write mlflow = \"http://HOST:5000\"",
        );
        return None;
    }
    if name.trim().is_empty() || name.len() > LONGEST_NAME {
        let error = item.error_without_value(format!("is not a name of 1 to {LONGEST_NAME} bytes"));
        t.reader().report(error.hint("name an experiment, or leave it out: then it is the job's name"));
        return None;
    }
    Some(name)
}
