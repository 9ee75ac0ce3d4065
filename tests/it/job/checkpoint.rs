//! `[checkpoint]`: what does not fit is told.

use super::{SOUND, load, said, set};

#[test]
fn mistakes_in_checkpoints_are_told() {
    insta::assert_snapshot!(set(&["checkpoint.keep=3"]), @r"
    error: job `x.toml`: `checkpoint` does not say when
      from: option --set checkpoint.keep=3
      hint: write every_seconds = 600, or every_steps or every_epochs
    ");
    insta::assert_snapshot!(set(&["checkpoint.every_steps=0", "checkpoint.keep=0"]), @r"
    error: job `x.toml`: `checkpoint.every_steps` = 0 is below 1
      from: option --set checkpoint.every_steps=0
      hint: use at least 1
    error: job `x.toml`: `checkpoint.keep` = 0 is below 1
      from: option --set checkpoint.keep=0
      hint: use an integer from 1 to 1000
    ");
    insta::assert_snapshot!(set(&["checkpoint.every_second=10"]), @r"
    error: job `x.toml`: unknown key `checkpoint.every_second`
      from: option --set checkpoint.every_second=10
      hint: did you mean `every_seconds`?
    error: job `x.toml`: `checkpoint` does not say when
      from: option --set checkpoint.every_second=10
      hint: write every_seconds = 600, or every_steps or every_epochs
    ");
    insta::assert_snapshot!(set(&["checkpoint.every_seconds=10", "checkpoint.to=s3://bucket/prefix"]), @r#"
    error: job `x.toml`: `checkpoint.to` = "s3://bucket/prefix" is no folder
      from: option --set checkpoint.to=s3://bucket/prefix
      hint: name a folder that all ranks see at the same path
    "#);
    insta::assert_snapshot!(set(&["checkpoint.every_seconds=10", "checkpoint.keep_best=3"]), @r#"
    error: job `x.toml`: `checkpoint.keep_best` = 3 goes by the figure that eval.best names, and this job has none
      from: option --set checkpoint.keep_best=3
      hint: write eval.best = "loss", or leave keep_best out
    "#);
    let pulled =
        |more: &[&str]| set(&[&["checkpoint.every_epochs=1", "modules.net.run=caller"], more].concat());
    insta::assert_snapshot!(pulled(&["train.local_steps=4"]), @r"
    error: job `x.toml`: `checkpoint` does not have what trainers keep of local steps
      from: option --set checkpoint.every_epochs=1
      hint: leave out train.local_steps or [checkpoint]
    ");
    insta::assert_snapshot!(pulled(&["pull_push.filter=int8"]), @r"
    error: job `x.toml`: `checkpoint` does not have what servers know of each trainer with a filter
      from: option --set checkpoint.every_epochs=1
      hint: leave out pull_push.filter or [checkpoint]
    ");
    let replicas = SOUND.replace("place = \"server\"", "place = \"trainer\"").replace("server = 1\n", "");
    let settings = ["checkpoint.every_steps=9", "replicas.hook=powersgd"];
    insta::assert_snapshot!(said(load(&replicas, &[], &settings)), @r"
    error: job `x.toml`: `checkpoint` does not have what the hook powersgd remembers
      from: option --set checkpoint.every_steps=9
      hint: use another replicas.hook, or leave out [checkpoint]
    ");
}
