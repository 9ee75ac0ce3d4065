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
    let to = |to: &str| set(&["checkpoint.every_seconds=10", &format!("checkpoint.to={to}")]);
    insta::assert_snapshot!(to("gs://bucket/prefix"), @r#"
    error: job `x.toml`: `checkpoint.to` = "gs://bucket/prefix" is neither a folder nor s3://BUCKET/PREFIX
      from: option --set checkpoint.to=gs://bucket/prefix
      hint: stores that speak S3 are known, others are not: write s3://BUCKET/PREFIX, with AWS_ENDPOINT_URL in the environment where it is not Amazon's
    "#);
    insta::assert_snapshot!(to("s3:///prefix"), @r#"
    error: job `x.toml`: `checkpoint.to` = "s3:///prefix" names no bucket
      from: option --set checkpoint.to=s3:///prefix
      hint: write s3://BUCKET/PREFIX
    "#);
    insta::assert_snapshot!(to("s3://b_/prefix"), @r#"
    error: job `x.toml`: `checkpoint.to` = "s3://b_/prefix" names no bucket that there can be
      from: option --set checkpoint.to=s3://b_/prefix
      hint: a bucket has 3 to 63 letters, digits, dots and hyphens, and begins and ends with a letter or a digit
    "#);
    insta::assert_snapshot!(to("s3://bucket/../other"), @r#"
    error: job `x.toml`: `checkpoint.to` = "s3://bucket/../other" has `.` or `..` in it, which lead nowhere in a bucket
      from: option --set checkpoint.to=s3://bucket/../other
      hint: write the whole prefix
    "#);
    insta::assert_snapshot!(to("s3://bucket/a b"), @r#"
    error: job `x.toml`: `checkpoint.to` = "s3://bucket/a b" has characters that not every store takes
      from: option --set checkpoint.to=s3://bucket/a b
      hint: use letters, digits and - _ . = + @ , ! in the prefix
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
