//! `[ema]`: what does not fit is told.

use super::set;

#[test]
fn mistakes_in_averages_of_weights_are_told() {
    insta::assert_snapshot!(set(&["ema.decay=1.0"]), @r"
    error: job `x.toml`: `ema.decay` = 1.0 is not at least 0 and below 1
      from: option --set ema.decay=1.0
      hint: use a number at least 0 and below 1
    ");
    insta::assert_snapshot!(set(&["ema.decya=0.9"]), @r"
    error: job `x.toml`: unknown key `ema.decya`
      from: option --set ema.decya=0.9
      hint: did you mean `decay`?
    ");
    insta::assert_snapshot!(set(&["ema.decay=0.9", "train.consistency=hogwild"]), @r"
    error: job `x.toml`: `ema` is of the weights after each step, and under hogwild no step has weights of its own
      from: option --set ema.decay=0.9
      hint: use another consistency, or leave [ema] out
    ");
    insta::assert_snapshot!(
        set(&["ema.decay=0.9", "modules.net.run=caller", "train.local_steps=4"]), @r"
    error: job `x.toml`: `ema` is of the weights after each step, and servers do not see local steps
      from: option --set ema.decay=0.9
      hint: leave train.local_steps or [ema] out
    ");
    insta::assert_snapshot!(
        set(&["eval.best=ema.loss", "eval.every_epochs=1", "data.test={images=\"i\"}"]), @r"
    error: job `x.toml`: `eval.best` goes by `ema.loss`, and this job averages no weights
      from: option --set eval.best=ema.loss
      hint: write [ema]
    ");
    insta::assert_snapshot!(
        set(&["eval.best=ema.best", "eval.every_epochs=1", "data.test={images=\"i\"}", "ema.decay=0.9"]), @r#"
    error: job `x.toml`: `eval.best` goes by `ema.best`, and whether less or more of it is better is not known
      from: option --set eval.best=ema.best
      hint: write mode = "min" or "max" beside metric
    "#);
}
