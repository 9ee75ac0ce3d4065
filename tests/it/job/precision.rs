//! `[precision]`: what does not fit is told.

use super::set;

#[test]
fn mistakes_in_precisions_are_told() {
    insta::assert_snapshot!(set(&["precision.autocast=fp16"]), @r#"
    error: job `x.toml`: `precision.autocast` = "fp16" needs losses that are scaled, as torch's GradScaler does, and there are none here
      from: option --set precision.autocast=fp16
      hint: use "bf16", which has the range of float32
    "#);
    insta::assert_snapshot!(set(&["precision.autocast=bfloat"]), @r#"
    error: job `x.toml`: `precision.autocast` = "bfloat" is no dtype to compute in
      from: option --set precision.autocast=bfloat
      hint: use "bf16"
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
    insta::assert_snapshot!(set(&["precision=\"bf16\""]), @r#"
    error: job `x.toml`: `precision`: expected a table, found "bf16"
      from: option --set precision="bf16"
      hint: for example { key = "value" }
    "#);
}
