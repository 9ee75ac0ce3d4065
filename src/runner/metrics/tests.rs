use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::metrics::{RESERVED, Value};
use crate::runner::records::{EpochRecord, MetricsLine, StepRecord};

const STEP: Duration = Duration::from_millis(100);

/// A loop of `steps` steps of 0.1 s after `slow` steps of 1 s, 32 samples each.
fn train(slow: u64, steps: u64) -> (Throughput, Instant) {
    let mut now = Instant::now();
    let mut throughput = Throughput::start(now);
    for step in 0..slow + steps {
        now += if step < slow { Duration::from_secs(1) } else { STEP };
        throughput.step(now, 32, Duration::ZERO);
    }
    (throughput, now)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6 * b.abs().max(1.0)
}

#[test]
fn rates_leave_out_the_first_twenty_steps_and_totals_do_not() {
    let (throughput, now) = train(20, 50);
    let report = throughput.report(now, Rank(1), 0.5);
    assert_eq!((report.steps, report.samples), (70, 70 * 32));
    assert!(close(report.train_seconds, 5.0), "{report:?}");
    assert!(close(report.steps_per_s, 10.0), "{report:?}");
    assert!(close(report.samples_per_s, 320.0), "{report:?}");
}

#[test]
fn a_loop_of_twenty_steps_or_fewer_is_measured_whole() {
    for steps in [1, 20] {
        let (throughput, now) = train(0, steps);
        assert!(close(throughput.report(now, Rank(1), 0.5).steps_per_s, 10.0));
    }
    let (throughput, now) = train(0, 0);
    assert_eq!(throughput.report(now, Rank(1), 0.5).steps_per_s, 0.0);
}

#[test]
fn an_evaluation_between_epochs_is_not_training_time() {
    let (mut throughput, mut now) = train(0, 30);
    throughput.pause(now);
    now += Duration::from_secs(60);
    throughput.resume(now);
    for _ in 0..10 {
        now += STEP;
        throughput.step(now, 32, Duration::ZERO);
    }
    throughput.pause(now);
    now += Duration::from_secs(60);
    let report = throughput.report(now, Rank(1), 0.5);
    assert!(close(report.train_seconds, 2.0), "{report:?}");
    assert!(close(report.steps_per_s, 10.0), "{report:?}");
}

#[test]
fn a_record_covers_the_time_since_the_previous_one() {
    let mut now = Instant::now();
    let mut throughput = Throughput::start(now);
    for _ in 0..5 {
        now += STEP;
        throughput.step(now, 32, Duration::from_millis(25));
    }
    let first = throughput.record(now);
    assert!(close(first.samples_per_s, 320.0) && close(first.data_wait_pct, 25.0), "{first:?}");
    now += STEP;
    throughput.step(now, 64, Duration::ZERO);
    let second = throughput.record(now);
    assert!(close(second.samples_per_s, 640.0) && second.data_wait_pct == 0.0, "{second:?}");
    assert_eq!(throughput.record(now), Interval { samples_per_s: 0.0, data_wait_pct: 0.0 });
}

fn report(rank: u32, train_seconds: f64, loss_final: f64) -> TrainerReport {
    TrainerReport {
        rank: Rank(rank),
        steps: 625,
        samples: 20_000,
        train_seconds,
        steps_per_s: 50.5,
        samples_per_s: 1_616.0,
        loss_final,
        skipped_steps: 0,
        pulled: Vec::new(),
    }
}

fn summary() -> Summary {
    let metrics = BTreeMap::from([("accuracy".into(), Value::Number(0.9783))]);
    let eval = EvalResult { samples: 10_000, targets: 10_000, loss: 0.0712, metrics };
    Summary::combine(
        "mnist_ps",
        4,
        1.234,
        &[report(1, 12.0, 0.125), report(2, 13.5, 0.25), report(3, 12.0, 0.375)],
        Some(eval),
    )
}

#[test]
fn a_summary_sums_rates_and_takes_the_longest_time() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&summary()).unwrap(), @r#"
    {
      "job": "mnist_ps",
      "world_size": 4,
      "trainers": 3,
      "steps": 1875,
      "samples": 60000,
      "skipped_steps": 0,
      "train_seconds": 13.5,
      "steps_per_s": 151.5,
      "samples_per_s": 4848.0,
      "loss_final": 0.25,
      "eval": {
        "samples": 10000,
        "targets": 10000,
        "loss": 0.0712,
        "accuracy": 0.9783
      },
      "startup_seconds": 1.234,
      "measured": {
        "links": [],
        "pipeline": null
      }
    }
    "#);
}

#[test]
fn a_record_is_one_line_and_a_loss_that_is_no_number_survives_it() {
    let record = MetricsLine::Step(StepRecord {
        step: 5,
        epoch: 1,
        rank: Rank(2),
        loss: f64::NAN,
        lr: 0.05,
        samples_per_s: 1_600.5,
        data_wait_pct: 0.25,
        staleness: Some(1.5),
        time_s: 0.75,
        grad_norm: None,
        loss_scale: None,
        metrics: BTreeMap::from([("accuracy".into(), 0.5), ("perplexity".into(), f64::INFINITY)]),
    });
    let line = serde_json::to_string(&record).unwrap();
    insta::assert_snapshot!(line, @r#"{"kind":"step","step":5,"epoch":1,"rank":2,"loss":null,"lr":0.05,"samples_per_s":1600.5,"data_wait_pct":0.25,"staleness":1.5,"time_s":0.75,"metrics":{"accuracy":0.5,"perplexity":null}}"#);
    let back: MetricsLine = serde_json::from_str(&line).unwrap();
    // NaN equals nothing, so compare what is written.
    assert_eq!(serde_json::to_string(&back).unwrap(), line);
    let MetricsLine::Step(back) = back else { panic!("{back:?}") };
    assert!(back.loss.is_nan() && back.metrics["perplexity"].is_nan());
}

#[test]
fn epochs_and_evaluations_have_lines_of_their_own() {
    let epoch = EpochRecord { step: 10, epoch: 2, rank: Rank(1), loss: 0.5, samples: 320, time_s: 1.5 };
    let EvalResult { samples, targets, loss, .. } = summary().eval.unwrap();
    // A task without classes has no accuracy, and no key of it.
    let result =
        EvalResult { samples, targets, loss, metrics: BTreeMap::from([("mae".into(), Value::Number(0.25))]) };
    let eval = EvalRecord { step: 10, epoch: 2, rank: Rank(1), result, best: false, time_s: 1.5 };
    let records = [MetricsLine::Epoch(epoch), MetricsLine::Eval(eval)];
    let lines = records.each_ref().map(|record| serde_json::to_string(record).unwrap());
    insta::assert_snapshot!(lines.join("\n"), @r#"
    {"kind":"epoch","step":10,"epoch":2,"rank":1,"loss":0.5,"samples":320,"time_s":1.5}
    {"kind":"eval","step":10,"epoch":2,"rank":1,"samples":10000,"targets":10000,"loss":0.0712,"mae":0.25,"time_s":1.5}
    "#);
    let back = lines.map(|line| serde_json::from_str::<MetricsLine>(&line).unwrap());
    assert_eq!(back, records);
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        (-8000..8000i32).prop_map(|n| f64::from(n) / 8.0),
        prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX])
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What a plug-in reports travels between ranks as it is written, whatever it calls it.
    #[test]
    fn numbers_that_are_not_finite_are_null_and_end_no_job(
        loss in any_number(),
        metrics in prop::collection::btree_map("[a-z_]{1,8}|time_s|loss|step|epoch|rank|kind|samples|accuracy", any_number(), 0..5),
    ) {
        let step = StepRecord {
            step: 1, epoch: 1, rank: Rank(1), loss, lr: 0.1, samples_per_s: 1.0, data_wait_pct: 0.0, staleness: None, time_s: 1.0,
            grad_norm: None,
            loss_scale: None,
            metrics: metrics.clone(),
        };
        let metrics = metrics.into_iter().filter(|(name, _)| !RESERVED.contains(&name.as_str()));
        let metrics = metrics.map(|(name, number)| (name, Value::Number(number))).collect();
        let result = EvalResult { samples: 1, targets: 1, loss, metrics };
        let eval = EvalRecord { step: 1, epoch: 1, rank: Rank(1), result, best: loss > 0.0, time_s: 1.0 };
        let epoch = EpochRecord { step: 1, epoch: 1, rank: Rank(1), loss, samples: 1, time_s: 1.0 };
        for line in [MetricsLine::Step(step), MetricsLine::Eval(eval), MetricsLine::Epoch(epoch)] {
            let text = serde_json::to_string(&line).unwrap();
            let back: MetricsLine = serde_json::from_str(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
            prop_assert_eq!(serde_json::to_string(&back).unwrap(), text);
        }
    }
}

#[test]
fn the_end_table_tells_accuracy_loss_time_and_folder() {
    let folder = Path::new("runs/mnist_ps-20261120-213305");
    insta::assert_snapshot!(EndTable { summary: &summary(), folder }.to_string(), @r"
    accuracy  97.83 %  (9,783 of 10,000 test samples)
    loss      0.0712 test, 0.2500 at the last step
    time      13.5 s training, 1.2 s start-up
    speed     151.5 steps/s, 4,848 samples/s, 3 trainers together
    run       runs/mnist_ps-20261120-213305
    ");
    let metrics = BTreeMap::from([("accuracy".into(), Value::Number(0.4866))]);
    let eval = EvalResult { samples: 233, targets: 233 * 64, loss: 2.0, metrics };
    let sequences = Summary { eval: Some(eval), skipped_steps: 3, ..summary() };
    insta::assert_snapshot!(EndTable { summary: &sequences, folder }.to_string(), @r"
    accuracy  48.66 %  (7,256 of the 14,912 targets of 233 test samples)
    loss      2.0000 test, 0.2500 at the last step
    time      13.5 s training, 1.2 s start-up
    speed     151.5 steps/s, 4,848 samples/s, 3 trainers together
    skipped   3 of 1,875 steps, whose loss or gradients were not finite
    run       runs/mnist_ps-20261120-213305
    ");
    let metrics = [("accuracy", 0.5), ("auc", 0.75), ("f1", f64::NAN)];
    let metrics = metrics.map(|(name, number)| (name.into(), Value::Number(number))).into();
    let result = EvalResult { samples: 4, targets: 4, loss: 2.0, metrics };
    let record =
        EvalRecord { step: 20, epoch: 3, rank: Rank(1), result: result.clone(), best: true, time_s: 1.0 };
    let judged = Summary { eval: Some(result), best: Some(record), ..summary() };
    insta::assert_snapshot!(EndTable { summary: &judged, folder }.to_string(), @r"
    accuracy  50.00 %  (2 of 4 test samples)
    loss      2.0000 test, 0.2500 at the last step
    metrics   auc 0.7500, f1 NaN
    best      loss 2.0000, accuracy 50.00 %, auc 0.7500, f1 NaN, after step 20 of epoch 3
    time      13.5 s training, 1.2 s start-up
    speed     151.5 steps/s, 4,848 samples/s, 3 trainers together
    run       runs/mnist_ps-20261120-213305
    ");
    let untested = Summary { eval: None, trainers: 1, train_seconds: 125.2, ..summary() };
    insta::assert_snapshot!(EndTable { summary: &untested, folder }.to_string(), @r"
    loss      0.2500 at the last step
    time      2 min 05 s training, 1.2 s start-up
    speed     151.5 steps/s, 4,848 samples/s, 1 trainer
    run       runs/mnist_ps-20261120-213305
    ");
    let resumed_at_the_end = Summary { steps: 0, loss_final: f64::NAN, ..summary() };
    let told = EndTable { summary: &resumed_at_the_end, folder }.to_string();
    assert_eq!(told.lines().nth(1), Some("loss      0.0712 test, no step was left to take"));
}

#[test]
fn numbers_are_written_for_people() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!(
        [0.04, 59.4, 60.0, 125.2, 3_725.0].map(seconds),
        ["0.0 s", "59.4 s", "1 min 00 s", "2 min 05 s", "1 h 02 min"]
    );
}
