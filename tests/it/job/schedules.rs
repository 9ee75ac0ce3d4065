//! `optimizer.schedule`: the numbers are PyTorch's, and what does not fit is told.

use pstrain::optimizers::Falling;
use serde_json::Value as Json;

use super::{SOUND, load, replaced, said, set};

/// PyTorch's own, by tests/data/schedules.py.
const FIGURES: &str = include_str!("../../data/schedules.json");

#[test]
fn every_schedule_follows_pytorchs() {
    let cases: Vec<Json> = serde_json::from_str(FIGURES).unwrap();
    for case in &cases {
        let table: Vec<String> = case["schedule"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| format!("{key} = {value}"))
            .collect();
        let job = load(SOUND, &[], &[&format!("optimizer.schedule={{ {} }}", table.join(", "))]).unwrap().job;
        let job = job.training().unwrap();
        let (steps, factors) = (case["steps"].as_u64().unwrap(), case["factors"].as_array().unwrap());
        assert_eq!(factors.len() as u64, steps);
        for (step, theirs) in (0..).zip(factors) {
            let (ours, theirs) = (job.lr_factor(step, steps), theirs.as_f64().unwrap());
            assert!((ours - theirs).abs() < 1e-9, "{}, step {step}: {ours} and {theirs}", case["schedule"]);
        }
    }
    assert_eq!(load(SOUND, &[], &[]).unwrap().job.training().unwrap().lr_factor(17, 100), 1.0);
}

#[test]
fn a_schedule_is_read_again_as_it_was_resolved() {
    for schedule in [
        "type=\"cosine\"",
        "type=\"linear\", warmup=0.5",
        "type=\"step\", every=2, warmup_steps=3, warmup_from=0.5",
    ] {
        let resolved = load(SOUND, &[], &[&format!("optimizer.schedule={{ {schedule} }}")]).unwrap();
        let again = load(&resolved.toml, &[], &[]).unwrap_or_else(|errors| panic!("{schedule}: {errors}"));
        assert_eq!(again.job, resolved.job, "{schedule}");
    }
}

/// `ReduceLROnPlateau`'s, by the same script.
#[test]
fn a_plateau_follows_pytorchs() {
    let cases: Vec<Json> = serde_json::from_str(include_str!("../../data/plateau.json")).unwrap();
    for case in &cases {
        let options = case["options"].as_object().unwrap();
        let options = options.iter().map(|(key, value)| format!(", {key} = {value}"));
        let schedule = format!("optimizer.schedule={{ type = \"plateau\"{} }}", options.collect::<String>());
        let test = "data.test={ images = \"images\" }";
        let job = load(SOUND, &[], &[&schedule, test, "eval.every_epochs=1"]).unwrap().job;
        let schedule = job.training().unwrap().schedule.clone().unwrap();
        let mut falling = Falling::new(schedule.plateau().unwrap(), &[]).unwrap();
        let factors = case["factors"].as_array().unwrap();
        for (figure, theirs) in case["validations"].as_array().unwrap().iter().zip(factors) {
            let ours = falling.after(figure.as_f64().unwrap_or(f64::NAN));
            let theirs = theirs.as_f64().unwrap();
            assert!((ours - theirs).abs() < 1e-9, "{}: {ours} and {theirs} behind {figure}", case["options"]);
        }
        assert!(factors.iter().any(|factor| factor.as_f64() < Some(1.0)), "{case}");
    }
}

#[test]
fn mistakes_in_a_schedule_are_told() {
    let with = |schedule: &str| replaced("lr = 0.1", &format!("lr = 0.1\nschedule = {schedule}"));
    insta::assert_snapshot!(with("{ type = \"cosin\" }"), @r#"
    error: job `x.toml`: `optimizer.schedule.type` = "cosin" is not one of constant, linear, cosine, cosine_restarts, step, multi_step, exponential, polynomial, one_cycle, inverse_sqrt or plateau
      from: x.toml, line 26
      hint: did you mean "cosine"?
    "#);
    insta::assert_snapshot!(with("{ type = \"step\" }"), @r"
    error: job `x.toml`: `optimizer.schedule.every` is missing
      from: x.toml, line 26
      hint: for example every = 1000
    ");
    insta::assert_snapshot!(with("{ type = \"cosine\", gamma = 0.5 }"), @r"
    error: job `x.toml`: unknown key `optimizer.schedule.gamma`
      from: x.toml, line 26
      hint: known keys: type, warmup_steps, warmup, warmup_from, end_factor, steps
    ");
    insta::assert_snapshot!(with("{ type = \"cosine\", warmup = 0.1, warmup_steps = 10 }"), @r"
    error: job `x.toml`: `optimizer.schedule.warmup` = 0.1 and warmup_steps both say how long the warm-up is
      from: x.toml, line 26
      hint: leave one of them out
    ");
    insta::assert_snapshot!(with("{ type = \"one_cycle\", warmup = 0.1 }"), @r"
    error: job `x.toml`: `optimizer.schedule.warmup` = 0.1 comes with a curve that has its own: `rising` says how long it is
      from: x.toml, line 26
      hint: leave it out
    ");
    insta::assert_snapshot!(with("{ type = \"linear\", warmup_from = 0.1 }"), @r"
    error: job `x.toml`: `optimizer.schedule.warmup_from` = 0.1 is of a warm-up, and there is none
      from: x.toml, line 26
      hint: write warmup_steps too, or leave it out
    ");
    insta::assert_snapshot!(with("\"cosine\""), @r#"
    error: job `x.toml`: `optimizer.schedule`: expected a table, found "cosine"
      from: x.toml, line 26
      hint: for example { key = "value" }
    "#);
}

#[test]
fn a_schedule_that_is_longer_than_the_job_is_refused() {
    let with = |schedule: &str| {
        let schedule = format!("optimizer.schedule={schedule}");
        said(load(SOUND, &[], &["train.steps=100", &schedule]))
    };
    insta::assert_snapshot!(with("{ type = \"multi_step\", milestones = [50, 150] }"), @r#"
    error: job `x.toml`: `optimizer.schedule` needs at least 151 steps (`milestones`), and a trainer takes 100 steps
      from: option --set optimizer.schedule={ type = "multi_step", milestones = [50, 150] }
      hint: change `milestones` so that 100 steps are enough, or train for longer
    "#);
    insta::assert_snapshot!(with("{ type = \"cosine\", warmup_steps = 30, steps = 80 }"), @r#"
    error: job `x.toml`: `optimizer.schedule` needs at least 80 steps (`steps`) behind the 30 of its warm-up, and a trainer takes 100 steps
      from: option --set optimizer.schedule={ type = "cosine", warmup_steps = 30, steps = 80 }
      hint: change `steps` so that 70 steps are enough, or train for longer
    "#);
    insta::assert_snapshot!(with("{ type = \"constant\", warmup_steps = 100 }"), @r#"
    error: job `x.toml`: `optimizer.schedule` warms up for 100 steps, and a trainer takes 100
      from: option --set optimizer.schedule={ type = "constant", warmup_steps = 100 }
      hint: warm up for less than 100 steps
    "#);
    insta::assert_snapshot!(set(&["optimizer.type=rprop", "optimizer.schedule={ type = \"cosine\" }"]), @r#"
    error: job `x.toml`: `optimizer.schedule` has no part in `modules.net`: rprop reads `lr` before its first step only
      from: option --set optimizer.schedule={ type = "cosine" }
      hint: leave the schedule out, or use another optimizer
    "#);
}
