use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::watch::export::fake_server::{Asked, FakeServer, job_in, lines, tell};
use crate::watch::export::outbox::Outbox;

/// What a server with no experiment answers.
fn server() -> FakeServer {
    let runs = AtomicU32::new(0);
    FakeServer::start(move |asked| {
        let path = asked.path.split('?').next().unwrap();
        match path.strip_prefix("/api/2.0/mlflow/").unwrap() {
            "experiments/get-by-name" => (404, br#"{"error_code":"RESOURCE_DOES_NOT_EXIST"}"#.into()),
            "experiments/create" => (200, br#"{"experiment_id":"7"}"#.into()),
            "runs/create" => {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                (200, format!(r#"{{"run":{{"info":{{"run_id":"run{run}"}}}}}}"#).into_bytes())
            }
            "runs/log-batch" | "runs/update" => (200, b"{}".into()),
            other => panic!("{other}"),
        }
    })
}

fn told(server: &FakeServer, folder: &Path, lines: &[MetricsLine]) -> Result<()> {
    let job = job_in(folder);
    let to = job::Mlflow { server: server.address.clone(), experiment: Some("a b".into()) };
    let exporter = Mlflow::new(&to, &job, folder, Clock::new(folder, 2))?;
    tell(Outbox::start(exporter)?, lines, folder)
}

fn paths(asked: &[Asked]) -> Vec<&str> {
    asked.iter().map(|asked| asked.path.strip_prefix("/api/2.0/mlflow/").unwrap()).collect()
}

/// Key, step and value.
fn metrics(asked: &[Asked]) -> BTreeSet<(String, u64, String)> {
    let batches = asked.iter().filter(|asked| asked.path.ends_with("log-batch")).map(Asked::json);
    let metrics = batches.flat_map(|body| body["metrics"].as_array().cloned().unwrap_or_default());
    metrics
        .map(|metric| {
            let key = metric["key"].as_str().unwrap().to_owned();
            (key, metric["step"].as_u64().unwrap(), metric["value"].to_string())
        })
        .collect()
}

#[test]
fn a_run_with_its_keys_and_figures_is_told_and_ends() {
    let (folder, server) = (tempfile::tempdir().unwrap(), server());
    told(&server, folder.path(), &lines()).unwrap();
    let asked = server.asked();
    assert_eq!(
        paths(&asked)[..4],
        [
            "experiments/get-by-name?experiment_name=a%20b",
            "experiments/create",
            "runs/create",
            "runs/log-batch"
        ]
    );
    assert_eq!(asked[1].json()["name"], "a b");
    assert_eq!(asked[2].json()["experiment_id"], "7");
    let params = asked[3].json()["params"].as_array().unwrap().clone();
    assert!(params.contains(&json!({"key": "train.batch_size", "value": "32"})), "{params:?}");
    let metrics = metrics(&asked);
    for (key, step, value) in [
        ("train/loss/rank1", 5, "0.5"),
        ("train/loss/rank1", 10, "\"NaN\""),
        ("train/lr/rank1", 10, "0.25"),
        ("train/epoch_loss/rank1", 10, "0.75"),
        ("eval/accuracy", 10, "0.5"),
        ("eval/loss", 10, "0.625"),
        ("system/rank0/resident_memory_megabytes", 0, "1.048576"),
    ] {
        let has = |(k, s, v): &(String, u64, String)| {
            k == key && v == value && (*s == step || k.starts_with("system"))
        };
        assert!(metrics.iter().any(has), "{key} of step {step} in {metrics:?}");
    }
    // There is no summary.
    let last = asked.last().unwrap();
    assert_eq!(
        (last.json()["status"].clone(), last.json()["run_id"].clone()),
        (json!("FAILED"), json!("run0"))
    );
    assert!(last.json()["end_time"].as_u64().unwrap() > 1_000_000_000_000);
}

#[test]
fn a_run_that_goes_on_stays_the_same_run_and_is_told_on() {
    let (folder, server) = (tempfile::tempdir().unwrap(), server());
    let lines = lines();
    told(&server, folder.path(), &lines[..3]).unwrap();
    let first = metrics(&server.asked());
    assert!(first.iter().any(|(key, step, _)| key == "train/loss/rank1" && *step == 10));
    told(&server, folder.path(), &lines).unwrap();
    let asked = server.asked();
    assert_eq!(paths(&asked)[0], "runs/update");
    assert_eq!(asked[0].json(), json!({"run_id": "run0", "status": "RUNNING"}));
    assert!(!paths(&asked).contains(&"runs/create"));
    let second = metrics(&asked);
    assert!(second.iter().any(|(key, ..)| key == "eval/accuracy"), "{second:?}");
    assert!(!second.iter().any(|(key, ..)| key.starts_with("train/loss")), "{second:?}");
}

#[test]
fn a_server_that_asks_for_a_password_is_said_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let server = FakeServer::start(|_| (401, b"You are not authenticated.\x1b[2J".into()));
    let failed = format!("{:#}", told(&server, folder.path(), &lines()).unwrap_err());
    let address = server.address.to_string();
    insta::assert_snapshot!(failed.replace(&address, "http://HOST"));
}

#[test]
fn credentials_are_those_of_mlflows_own_client() {
    let user = Some(("me".to_owned(), "s:1".to_owned()));
    // base64.b64encode(b"me:s:1")
    assert_eq!(authorization(user.clone(), Some("t".into())), Some("Basic bWU6czox".into()));
    assert_eq!(authorization(None, Some("t".into())), Some("Bearer t".into()));
    assert_eq!(authorization(None, None), None);
}
