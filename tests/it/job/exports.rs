//! `[log]`: where a run is told beside its folder.

use super::{SOUND, load, set, sound};

#[test]
fn mistakes_in_where_a_run_is_told_are_told() {
    insta::assert_snapshot!(set(&["log.tensorboard=\"\""]), @r#"
    error: job `x.toml`: `log.tensorboard` = "" is not a folder
      from: option --set log.tensorboard=""
      hint: name a folder, for example tensorboard = "tensorboard"
    "#);
    insta::assert_snapshot!(set(&["log.tensorboard=s3://bucket/logs"]), @r#"
    error: job `x.toml`: `log.tensorboard` = "s3://bucket/logs" is an address, and events go into a folder
      from: option --set log.tensorboard=s3://bucket/logs
      hint: name a folder, for example tensorboard = "tensorboard"
    "#);
    insta::assert_snapshot!(set(&["log.otlp=localhost:4318", "log.mlflow=sqlite:///mlflow.db"]), @r#"
    error: job `x.toml`: `log.otlp` = "localhost:4318" is not the address of a server
      from: option --set log.otlp=localhost:4318
      hint: write http://HOST:PORT, or https://HOST
    error: job `x.toml`: `log.mlflow` = "sqlite:///mlflow.db" is not the address of a server
      from: option --set log.mlflow=sqlite:///mlflow.db
      hint: write http://HOST:PORT, or https://HOST
    "#);
    insta::assert_snapshot!(set(&["log.otlp=http://localhost:65536"]), @r#"
    error: job `x.toml`: `log.otlp` = "http://localhost:65536" has no port from 1 to 65535
      from: option --set log.otlp=http://localhost:65536
      hint: write http://HOST:PORT, for example http://localhost:4318
    "#);
    insta::assert_snapshot!(set(&["log.mlflow_experiment=first"]), @r#"
    error: job `x.toml`: `log.mlflow_experiment` = "first" names an experiment of no server
      from: option --set log.mlflow_experiment=first
      hint: leave it out, or write mlflow = "http://HOST:5000"
    "#);
    insta::assert_snapshot!(set(&["log.mlflow=http://host:5000", "log.mlflow_experiment=\" \""]), @r#"
    error: job `x.toml`: `log.mlflow_experiment` is not a name of 1 to 250 bytes
      from: option --set log.mlflow_experiment=" "
      hint: name an experiment, or leave it out: then it is the job's name
    "#);
    insta::assert_snapshot!(set(&["log.mlflow=https://me:secret@host"]), @r#"
    error: job `x.toml`: `log.mlflow` has a user or a password in it, which would stand in the run folder
      hint: leave them out, and set them in the environment: docs/watching.md has the names
    "#);
}

#[test]
fn where_a_run_is_told_stands_in_its_resolved_job() {
    let settings = ["log.tensorboard=tb", "log.otlp=http://host:4318/", "log.mlflow=http://host:5000"];
    let resolved = sound(SOUND, &[], &settings);
    let again = load(&resolved.toml, &[], &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let exports = again.job.training().unwrap().log.exports.clone();
    assert_eq!(exports, resolved.job.training().unwrap().log.exports);
    assert_eq!(exports.otlp.unwrap().to_string(), "http://host:4318");
    assert_eq!(exports.mlflow.unwrap().experiment, None);
}
