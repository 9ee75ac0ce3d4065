//! `[eval]`: when the model is judged, and what the figures decide; what does not fit is told.

use super::{SOUND, load, said, set};

const TEST: &str = "data.test={ images = \"images\" }";

#[test]
fn mistakes_in_what_validations_decide_are_told() {
    let with = |settings: &[&str]| {
        let settings: Vec<&str> = [TEST].iter().chain(settings).copied().collect();
        said(load(SOUND, &[], &settings))
    };
    insta::assert_snapshot!(with(&["eval.every_epochs=1", "eval.every_steps=10"]), @r"
    error: job `x.toml`: `eval.every_steps` = 10 and eval.every_epochs both say when the model is tested
      from: option --set eval.every_steps=10
      hint: leave one of them out
    ");
    insta::assert_snapshot!(with(&["eval.best=accuracy"]), @r"
    error: job `x.toml`: `eval.best` goes by validations, and this job tests at its end only
      from: option --set eval.best=accuracy
      hint: write eval.every_epochs = 1, or every_steps
    ");
    insta::assert_snapshot!(with(&["eval.every_steps=10", "eval.best=my_score"]), @r#"
    error: job `x.toml`: `eval.best` goes by `my_score`, and whether less or more of it is better is not known
      from: option --set eval.best=my_score
      hint: write mode = "min" or "max" beside metric
    "#);
    insta::assert_snapshot!(with(&["eval.every_steps=10", "eval.best=f1_macro"]), @r#"
    error: job `x.toml`: `eval.best` goes by `f1_macro`, and whether less or more of it is better is not known
      from: option --set eval.best=f1_macro
      hint: validations do not measure it: write metrics = [{ type = "f1", average = "macro" }] in [eval]
    "#);
    insta::assert_snapshot!(with(&["eval.every_steps=10", "eval.best=top_5"]), @r#"
    error: job `x.toml`: `eval.best` goes by `top_5`, and whether less or more of it is better is not known
      from: option --set eval.best=top_5
      hint: validations do not measure it: write metrics = [{ type = "top_k", k = 5 }] in [eval]
    "#);
    insta::assert_snapshot!(with(&["eval.every_steps=10", "eval.best=acuracy"]), @r#"
    error: job `x.toml`: `eval.best` goes by `acuracy`, and whether less or more of it is better is not known
      from: option --set eval.best=acuracy
      hint: did you mean "accuracy"?
    "#);
    insta::assert_snapshot!(with(&["eval.every_steps=10", "eval.stop={patience=0}"]), @r"
    error: job `x.toml`: `eval.stop.patience` = 0 is below 1
      from: option --set eval.stop={patience=0}
      hint: use an integer from 1 to 1000000
    ");
    insta::assert_snapshot!(with(&["eval.every_steps=10", "eval.stop={metric=\"loss\", patient=2}"]), @r#"
    error: job `x.toml`: unknown key `eval.stop.patient`
      from: option --set eval.stop={metric="loss", patient=2}
      hint: did you mean `patience`?
    "#);
    insta::assert_snapshot!(with(&["eval.every_steps=10", "eval.best={metric=\"loss\", mode=\"less\"}"]), @r#"
    error: job `x.toml`: `eval.best.mode` = "less" is not one of min or max
      from: option --set eval.best={metric="loss", mode="less"}
      hint: for example "min"
    "#);
    insta::assert_snapshot!(with(&["optimizer.schedule={type=\"plateau\"}"]), @r#"
    error: job `x.toml`: `optimizer.schedule` goes by validations, and this job tests at its end only
      from: option --set optimizer.schedule={type="plateau"}
      hint: write eval.every_epochs = 1, or every_steps
    "#);
    insta::assert_snapshot!(with(&["eval.every_steps=10", "optimizer.schedule={type=\"plateau\", metric=\"x\"}"]), @r#"
    error: job `x.toml`: `optimizer.schedule` goes by `x`, and whether less or more of it is better is not known
      from: option --set optimizer.schedule={type="plateau", metric="x"}
      hint: write mode = "min" or "max" beside metric
    "#);
}

#[test]
fn validations_come_where_trainers_are_synchronised_anyway() {
    let job = include_str!("../../../jobs/mnist_pull_push.toml");
    let with = |settings: &[&str]| load(job, &[], settings);
    insta::assert_snapshot!(said(with(&["train.local_steps=4", "eval.every_steps=10"])), @r"
    error: job `x.toml`: `eval.every_steps` = 10 is not a multiple of train.local_steps = 4: validations between would synchronise the trainers, and change what they train
      from: option --set eval.every_steps=10
      hint: use 8 or 12
    ");
    insta::assert_snapshot!(said(with(&["train.local_steps=4", "eval.every_steps=3"])), @r"
    error: job `x.toml`: `eval.every_steps` = 3 is not a multiple of train.local_steps = 4: validations between would synchronise the trainers, and change what they train
      from: option --set eval.every_steps=3
      hint: use 4
    ");
    assert!(with(&["train.local_steps=4", "eval.every_steps=12"]).is_ok());
    assert!(with(&["train.local_steps=4", "eval.every_epochs=1"]).is_ok());
}

#[test]
fn what_goes_by_test_data_needs_some() {
    insta::assert_snapshot!(set(&["eval.every_epochs=1", "eval.best=loss", "eval.stop={}", "eval.metrics=[\"accuracy\"]"]), @r#"
    error: job `x.toml`: `eval.metrics[0]` = "accuracy" is measured on test data, and this job has none
      from: option --set eval.metrics=["accuracy"]
      hint: write [data.test]
    error: job `x.toml`: `eval.best` goes by figures of test data, and this job has none
      from: option --set eval.best=loss
      hint: write [data.test]
    error: job `x.toml`: `eval.stop` goes by figures of test data, and this job has none
      from: option --set eval.stop={}
      hint: write [data.test]
    "#);
}
