//! `[precision]`: what does not fit is told.

use super::{SOUND, load, said, set};

#[test]
fn mistakes_in_precisions_are_told() {
    insta::assert_snapshot!(set(&["precision.autocast=bfloat"]), @r#"
    error: job `x.toml`: `precision.autocast` = "bfloat" is not one of bf16 or fp16
      from: option --set precision.autocast=bfloat
      hint: for example "bf16"
    "#);
    insta::assert_snapshot!(set(&["precision.autocast=16"]), @r#"
    error: job `x.toml`: `precision.autocast`: expected a string, found 16
      from: option --set precision.autocast=16
      hint: for example "text"
    "#);
    insta::assert_snapshot!(set(&["precision.autocats=bf16"]), @r"
    error: job `x.toml`: unknown key `precision.autocats`
      from: option --set precision.autocats=bf16
      hint: did you mean `autocast`?
    ");
    insta::assert_snapshot!(set(&["precision.autocast=bf16", "precision.init_scale=1024"]), @r#"
    error: job `x.toml`: `precision.init_scale` = 1024 is for losses that are scaled, and only those of autocast = "fp16" are
      from: option --set precision.init_scale=1024
      hint: leave it out
    "#);
    insta::assert_snapshot!(set(&["precision.autocast=fp16", "precision.growth_factor=1.0", "precision.backoff_factor=1.0"]), @r"
    error: job `x.toml`: `precision.growth_factor` = 1.0 is not above 1 and at most 65536
      from: option --set precision.growth_factor=1.0
      hint: use a number above 1 and at most 65536
    error: job `x.toml`: `precision.backoff_factor` = 1.0 is not above 0 and below 1
      from: option --set precision.backoff_factor=1.0
      hint: use a number above 0 and below 1
    ");
    let hybrid = SOUND.replace("[data]", "[modules.head]\nplace = \"trainer\"\nlayers = [\"relu\"]\n[data]");
    let hybrid = hybrid.replace("epochs = 2", "epochs = 2\nforward = [\"net\", \"head\"]");
    let fp16 = |more: &[&str]| said(load(&hybrid, &[], &[&["precision.autocast=fp16"], more].concat()));
    insta::assert_snapshot!(fp16(&[]), @r#"
    error: job `x.toml`: `precision.autocast` = "fp16" leaves out the steps in which a trainer's own gradients overflow, and replicas, which are to stay equal, would differ
      from: option --set precision.autocast=fp16
      hint: write consistency = "bsp" in [train]: then a step is left out by all trainers
    "#);
    insta::assert_snapshot!(fp16(&["train.consistency=bsp", "replicas.hook=powersgd"]), @r#"
    error: job `x.toml`: `precision.autocast` = "fp16" scales gradients until they overflow, and the hook powersgd would remember those for ever
      from: option --set precision.autocast=fp16
      hint: use another replicas.hook, or "bf16"
    "#);
    let pulled =
        |more: &[&str]| set(&[&["precision.autocast=fp16", "modules.net.run=caller"], more].concat());
    insta::assert_snapshot!(pulled(&["train.local_steps=4"]), @r#"
    error: job `x.toml`: `precision.autocast` = "fp16" leaves out steps whose gradients overflow anywhere, and local steps are taken without asking elsewhere
      from: option --set precision.autocast=fp16
      hint: leave train.local_steps out
    "#);
    insta::assert_snapshot!(pulled(&["pull_push.filter=fp16"]), @r#"
    error: job `x.toml`: `precision.autocast` = "fp16" scales gradients until they overflow, and those pass no pull_push.filter
      from: option --set precision.autocast=fp16
      hint: leave the filter out, or use "bf16"
    "#);
    insta::assert_snapshot!(set(&["precision=\"bf16\""]), @r#"
    error: job `x.toml`: `precision`: expected a table, found "bf16"
      from: option --set precision="bf16"
      hint: for example { key = "value" }
    "#);
}
