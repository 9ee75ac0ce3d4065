//! Pipelines as a user runs them: what a stage keeps, what `check` draws, a stage that dies.

use std::fs;

use crate::program::*;

const PIPELINE: &str = include_str!("../../../jobs/pipeline.toml");

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), PIPELINE).unwrap();
    folder
}

fn measured(settings: &[&str]) -> serde_json::Value {
    let folder = folder();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), settings)), 0);
    summary(folder.path())["measured"].clone()
}

#[test]
fn one_forward_one_backward_keeps_as_many_activations_as_stages_and_gpipe_as_many_as_micro_batches() {
    let steps = ["train.steps=6", "pipeline.micro_batches=8"];
    let kept = |schedule: &'static str| {
        measured(&[steps[0], steps[1], schedule])["pipeline"]["peak_activations"].clone()
    };
    assert_eq!(kept("pipeline.schedule=1f1b"), serde_json::json!([2, 1]));
    assert_eq!(kept("pipeline.schedule=gpipe"), serde_json::json!([8, 8]));
}

#[test]
fn what_travels_between_the_stages_is_what_the_plan_says() {
    let measured = measured(&["train.steps=6"]);
    let links = measured["links"].as_array().unwrap();
    assert_eq!(links.len(), 2, "there and back");
    for link in links {
        let (bytes, planned) = (link["bytes"].as_u64().unwrap(), link["planned_bytes"].as_u64().unwrap());
        // Beside the tensors of the plan travel labels of calls and numbers.
        assert!(bytes >= planned && bytes <= planned + planned / 20 + 4096, "{link}");
    }
    let bubble = measured["pipeline"]["bubble"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&bubble), "{bubble}");
    assert_eq!(measured["pipeline"]["planned_peak_activations"], 2);
}

#[test]
fn the_check_draws_the_schedule_and_its_bubble() {
    let folder = folder();
    let drawn = |schedule: &str| {
        let output = finish(pstrain(folder.path()).args(["check", "job.toml", "--set", schedule]));
        assert_code(&output, 0);
        let said = stdout(&output);
        let (_, drawing) = said.split_once("\npipeline, ").expect("a pipeline");
        drawing.to_owned()
    };
    insta::assert_snapshot!(drawn("pipeline.schedule=1f1b"), @r"
    1f1b: 2 stages, 4 micro-batches in a step
      front  F0 F1 .  .  B0=== F2 B1=== F3 B2=== .  B3===
      back   .  F0 B0=== F1 B1=== F2 B2=== F3 B3=== .  .
      a stage waits 20 % of the time and holds activations of at most 2 micro-batches
    ");
    insta::assert_snapshot!(drawn("pipeline.schedule=gpipe"), @r"
    gpipe: 2 stages, 4 micro-batches in a step
      front  F0 F1 F2 F3 .  .  .  B0=== B1=== B2=== B3===
      back   .  F0 F1 F2 F3 B0=== B1=== B2=== B3=== .  .
      a stage waits 20 % of the time and holds activations of at most 4 micro-batches
    ");
}
