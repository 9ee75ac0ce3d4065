//! `eval.metrics`: the figures are those of scikit-learn and torchmetrics however samples are cut, and what does not fit is
//! told.

use pstrain::layers::{InputDtype, Signal};
use pstrain::metrics::{BuiltIn, Metric, MetricSpec, Value};
use serde_json::Value as Json;
use tch::{Kind, Tensor};

use super::{SOUND, load, set};

/// Theirs, by tests/data/metrics.py.
const FIGURES: &str = include_str!("../../data/metrics.json");

/// A metric as a job reads it, from TOML.
fn spec(toml: &str) -> BuiltIn {
    let test = "data.test={ images = \"images\" }";
    let job = load(SOUND, &[], &[&format!("eval.metrics=[{toml}]"), test]).unwrap().job;
    match job.training().unwrap().eval.metrics[0].clone() {
        MetricSpec::BuiltIn(metric) => metric,
        MetricSpec::Plugin(metric) => panic!("{metric:?} is a plug-in"),
    }
}

fn toml(metric: &Json) -> String {
    let options = metric.as_object().unwrap().iter().map(|(key, value)| format!("{key} = {value}"));
    format!("{{ {} }}", options.collect::<Vec<_>>().join(", "))
}

fn tensor(written: &Json) -> Tensor {
    let shape: Vec<i64> =
        written["shape"].as_array().unwrap().iter().map(|size| size.as_i64().unwrap()).collect();
    let data: Vec<f64> =
        written["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
    let kind = if written["whole"] == true { Kind::Int64 } else { Kind::Float };
    Tensor::from_slice(&data).to_kind(kind).reshape(shape)
}

/// A metric for each of three trainers, batches given to them by chance, the last one smaller; merged into another.
fn in_pieces(spec: &BuiltIn, output: &Tensor, target: &Tensor, seed: u64) -> Value {
    let mut state = seed;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut trainers: Vec<Metric> = (0..3).map(|_| spec.start()).collect();
    let (mut begin, samples) = (0, output.size()[0]);
    while begin < samples {
        let size = (below(11) as i64 + 1).min(samples - begin);
        let (outputs, targets) = (output.narrow(0, begin, size), target.narrow(0, begin, size));
        trainers[below(3) as usize].update(&outputs, &targets).unwrap();
        begin += size;
    }
    let mut whole = spec.start();
    for trainer in &trainers {
        whole.merge(trainer.state().unwrap()).unwrap();
    }
    whole.value().unwrap()
}

fn assert_close(ours: &Json, theirs: &Json, of: &str) {
    match (ours, theirs) {
        (Json::Array(ours), Json::Array(theirs)) => {
            assert_eq!(ours.len(), theirs.len(), "{of}");
            ours.iter().zip(theirs).for_each(|(ours, theirs)| assert_close(ours, theirs, of));
        }
        (Json::Null, Json::Null) => {}
        _ => {
            let (ours, theirs) = (ours.as_f64(), theirs.as_f64());
            let close = ours
                .zip(theirs)
                .is_some_and(|(ours, theirs)| (ours - theirs).abs() <= 1e-6 * theirs.abs().max(1.0));
            assert!(close, "{of}: {ours:?} and {theirs:?}");
        }
    }
}

#[test]
fn metrics_are_those_of_scikit_learn_however_samples_are_cut() {
    let cases: Vec<Json> = serde_json::from_str(FIGURES).unwrap();
    assert!(cases.len() >= 15);
    for case in &cases {
        let (output, target) = (tensor(&case["output"]), tensor(&case["target"]));
        for figure in case["figures"].as_array().unwrap() {
            let (metric, theirs) = (toml(&figure["metric"]), &figure["figure"]);
            let spec = spec(&metric);
            let of = format!("{}: {metric}", case["name"]);
            let mut whole = spec.start();
            whole.update(&output, &target).unwrap();
            assert_close(&serde_json::to_value(whole.value().unwrap()).unwrap(), theirs, &of);
            for seed in 1..6 {
                let ours = in_pieces(&spec, &output, &target, seed);
                assert_close(&serde_json::to_value(ours).unwrap(), theirs, &format!("{of}, cut {seed}"));
            }
        }
    }
}

#[test]
fn outputs_of_half_precision_and_of_double_are_measured_as_those_of_float32() {
    let (output, target) = (
        Tensor::from_slice2(&[[0.5_f32, -1.0], [2.0, 3.0], [0.25, 0.0]]),
        Tensor::from_slice(&[0_i64, 1, 1]),
    );
    for metric in ["accuracy", "perplexity", "auc", "f1"] {
        let values = [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16].map(|kind| {
            let mut metric = spec(&format!("\"{metric}\"")).start();
            metric.update(&output.to_kind(kind), &target).unwrap();
            metric.value().unwrap().number().unwrap()
        });
        assert!(values.iter().all(|value| (value - values[0]).abs() < 1e-6), "{metric}: {values:?}");
    }
}

#[test]
fn targets_of_0_and_1_may_be_of_any_dtype() {
    let output = Tensor::from_slice(&[0.5_f32, -1.0, 0.25]);
    for kind in
        [Kind::Uint8, Kind::Int8, Kind::Int, Kind::Int64, Kind::Bool, Kind::Half, Kind::Float, Kind::Double]
    {
        let target = Tensor::from_slice(&[0_i64, 1, 1]).to_kind(kind);
        for toml in ["\"auc\"", "{ type = \"accuracy\", ignore_index = -9000000000000000000 }"] {
            let mut metric = spec(toml).start();
            metric.update(&output, &target).unwrap();
            assert!(metric.value().unwrap().number().is_some_and(f64::is_finite), "{kind:?}");
        }
    }
}

#[test]
fn of_equal_scores_that_of_the_lower_class_is_the_larger() {
    let (output, target) =
        (Tensor::zeros([4, 4], (Kind::Float, tch::Device::Cpu)), Tensor::from_slice(&[0_i64, 1, 2, 3]));
    let figure = |toml: &str| {
        let mut metric = spec(toml).start();
        metric.update(&output, &target).unwrap();
        metric.value().unwrap()
    };
    assert_eq!(figure("\"accuracy\""), Value::Number(0.25));
    assert_eq!(figure("{ type = \"top_k\", k = 1 }"), Value::Number(0.25));
    assert_eq!(figure("{ type = \"top_k\", k = 3 }"), Value::Number(0.75));
}

/// One of each, with an output and a target that it takes.
fn each() -> Vec<(BuiltIn, Tensor, Tensor)> {
    let classes =
        || (Tensor::from_slice2(&[[0.5_f32, -1.0, 0.0], [2.0, 3.0, 1.0]]), Tensor::from_slice(&[0_i64, 2]));
    let binary = || (Tensor::from_slice(&[0.5_f32, -1.0, 0.25]), Tensor::from_slice(&[0_i64, 1, 1]));
    let numbers = || {
        (
            Tensor::from_slice2(&[[0.5_f32, -1.0], [0.25, 0.0]]),
            Tensor::from_slice2(&[[0.0_f32, 1.0], [1.0, 1.0]]),
        )
    };
    let of = |toml: &str, (output, target): (Tensor, Tensor)| (spec(toml), output, target);
    vec![
        of("\"accuracy\"", classes()),
        of("\"accuracy\"", binary()),
        of("{ type = \"top_k\", k = 2 }", classes()),
        of("\"auc\"", binary()),
        of("\"average_precision\"", binary()),
        of("\"f1\"", binary()),
        of("{ type = \"precision\", average = \"micro\" }", classes()),
        of("{ type = \"recall\", average = \"macro\" }", classes()),
        of("\"confusion_matrix\"", classes()),
        of("\"confusion_matrix\"", binary()),
        of("\"perplexity\"", classes()),
        of("\"mae\"", numbers()),
        of("\"mse\"", numbers()),
        of("\"rmse\"", numbers()),
        of("\"r2\"", numbers()),
    ]
}

/// As JSON, in which NaN is null.
fn told(metric: &Metric) -> Json {
    serde_json::to_value(metric.value().unwrap()).unwrap()
}

#[test]
fn a_nan_among_the_outputs_makes_every_figure_null() {
    for (spec, output, target) in each() {
        let mut metric = spec.start();
        assert_eq!(told(&metric), Json::Null, "{} of nothing", spec.name());
        metric.update(&output, &target).unwrap();
        let before = told(&metric);
        assert_ne!(before, Json::Null, "{}", spec.name());
        let (none, no_target) = (output.narrow(0, 0, 0), target.narrow(0, 0, 0));
        metric.update(&none, &no_target).unwrap();
        metric.merge(spec.start().state().unwrap()).unwrap();
        assert_eq!(told(&metric), before, "{} after nothing", spec.name());

        let broken = output.copy();
        let _ = broken.reshape([-1]).get(0).fill_(f64::NAN);
        metric.update(&broken, &target).unwrap();
        assert_eq!(told(&metric), Json::Null, "{}", spec.name());
        let mut whole = spec.start();
        whole.update(&output, &target).unwrap();
        whole.merge(metric.state().unwrap()).unwrap();
        assert_eq!(told(&whole), Json::Null, "{} merged", spec.name());
    }
}

#[test]
fn a_nan_among_scores_whose_target_does_not_count_does_not_count() {
    let output = Tensor::from_slice2(&[[0.5_f32, -1.0], [f32::NAN, 3.0]]);
    let target = Tensor::from_slice(&[0_i64, -100]);
    for metric in
        ["\"accuracy\"", "{ type = \"top_k\", k = 1 }", "\"perplexity\"", "\"f1\"", "\"confusion_matrix\""]
    {
        let mut metric = spec(metric).start();
        metric.update(&output, &target).unwrap();
        assert_ne!(told(&metric), Json::Null);
    }
}

#[test]
fn a_state_that_is_none_is_refused_and_changes_nothing() {
    let bent: [fn(&Tensor) -> Tensor; 7] = [
        |row| row.to_kind(Kind::Half),
        |row| row.to_kind(Kind::Int),
        |row| row.unsqueeze(0),
        |row| row.sum(row.kind()),
        |row| Tensor::cat(&[row, row], 0),
        |row| row.full_like(-1.0),
        |row| row.full_like(i64::MAX),
    ];
    for (spec, output, target) in each() {
        let mut metric = spec.start();
        metric.update(&output, &target).unwrap();
        let before = told(&metric);
        let sound = || metric.state().unwrap();
        let mut wrong = vec![Vec::new(), sound().into_iter().skip(1).collect()];
        for place in 0..sound().len() {
            for bend in bent {
                let mut state = sound();
                state[place] = bend(&state[place]);
                wrong.push(state);
            }
        }
        let mut refused = 0;
        for state in wrong {
            let mut metric = spec.start();
            metric.update(&output, &target).unwrap();
            match metric.merge(state) {
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("another rank"), "{error}");
                    assert_eq!(told(&metric), before, "{error}");
                }
                // Such a score, or such a mean, is one.
                Ok(()) => assert!(metric.value().is_ok()),
            }
        }
        assert!(refused >= 10, "{}: {refused}", spec.name());
    }
}

#[test]
fn what_a_state_cannot_be_is_told() {
    let merged = |toml: &str, state: Vec<Tensor>| {
        let mut metric = spec(toml).start();
        metric.merge(state).unwrap_err().to_string()
    };
    let counts = |numbers: &[i64]| Tensor::from_slice(numbers);
    insta::assert_snapshot!(merged("\"accuracy\"", vec![Tensor::from_slice(&[7.0]), counts(&[6])]), @"metric `accuracy`: what another rank has counted adds up to 7, which 6 elements cannot");
    insta::assert_snapshot!(merged("\"mse\"", vec![Tensor::from_slice(&[7.0]), counts(&[-1])]), @"metric `mse`: what another rank has counted has -1 where a count is needed");
    insta::assert_snapshot!(merged("\"auc\"", vec![counts(&[1])]), @"metric `auc`: what another rank has counted has 1 tensors, and 2 are needed");
    insta::assert_snapshot!(merged("\"auc\"", vec![counts(&[1]), counts(&[1])]), @"metric `auc`: what another rank has counted has Int64 [1] where a row of Float is needed");
    insta::assert_snapshot!(merged("\"confusion_matrix\"", vec![counts(&[0]), counts(&[1, 2, 3])]), @"metric `confusion_matrix`: what another rank has counted has 3 counts, which are not a matrix of its classes");
    let row = || counts(&[1, 1]);
    insta::assert_snapshot!(merged("\"f1\"", vec![counts(&[0]), counts(&[2, 0]), row(), row()]), @"metric `f1`: what another rank has counted has more hits than targets, or predictions without a target");
    let row = || counts(&[1, 1, 1]);
    insta::assert_snapshot!(merged("\"f1\"", vec![counts(&[0]), row(), row(), row()]), @"metric `f1`: what another rank has counted is of 3 classes");
}

#[test]
fn mistakes_in_metrics_are_told() {
    let with = |metrics: &str| set(&[&format!("eval.metrics={metrics}")]);
    insta::assert_snapshot!(with("[\"acuracy\"]"), @r#"
    error: job `x.toml`: `eval.metrics[0]`: there is no metric `acuracy`
      from: option --set eval.metrics=["acuracy"]
      hint: did you mean `accuracy`?
    "#);
    insta::assert_snapshot!(with("[\"bleu\"]"), @r#"
    error: job `x.toml`: `eval.metrics[0]`: there is no metric `bleu`
      from: option --set eval.metrics=["bleu"]
      hint: known metrics: accuracy, top_k, auc, average_precision, f1, precision, recall, confusion_matrix, perplexity, mae, mse, rmse, r2
    "#);
    insta::assert_snapshot!(with("[\"top_k\"]"), @r#"
    error: job `x.toml`: `eval.metrics[0].k` is missing
      from: option --set eval.metrics=["top_k"]
      hint: for example k = 5
    "#);
    insta::assert_snapshot!(with("[{ type = \"top_k\", k = 50 }]"), @r#"
    error: job `x.toml`: `eval.metrics[0]` = { type = "top_k", k = 50 } looks at the 50 largest scores, and the output has 10 classes
      from: option --set eval.metrics=[{ type = "top_k", k = 50 }]
      hint: use k = 10 at most
    error: job `x.toml`: `eval.metrics[0]` = { type = "top_k", k = 50 } is measured on test data, and this job has none
      from: option --set eval.metrics=[{ type = "top_k", k = 50 }]
      hint: write [data.test]
    "#);
    insta::assert_snapshot!(with("[\"accuracy\", { type = \"accuracy\", threshold = 0.5 }]"), @r#"
    error: job `x.toml`: `eval.metrics[0]` and `eval.metrics[1]` are both named `accuracy`
      from: option --set eval.metrics=["accuracy", { type = "accuracy", threshold = 0.5 }]
      hint: records tell metrics apart by their names: give one of them a `name`
    "#);
    insta::assert_snapshot!(with("[{ type = \"auc\", threshold = 0.5 }]"), @r#"
    error: job `x.toml`: unknown key `eval.metrics[0].threshold`
      from: option --set eval.metrics=[{ type = "auc", threshold = 0.5 }]
      hint: known keys: type, name, ignore_index
    "#);
    insta::assert_snapshot!(with("[{ type = \"f1\", average = \"makro\" }]"), @r#"
    error: job `x.toml`: `eval.metrics[0].average` = "makro" is not one of binary, macro or micro
      from: option --set eval.metrics=[{ type = "f1", average = "makro" }]
      hint: did you mean "macro"?
    "#);
    insta::assert_snapshot!(with("[{ type = \"f1\", name = \"loss\" }, { type = \"f1\", name = \"a b\" }]"), @r#"
    error: job `x.toml`: `eval.metrics[0].name` = "loss" is what records call the loss
      from: option --set eval.metrics=[{ type = "f1", name = "loss" }, { type = "f1", name = "a b" }]
      hint: give it another name
    error: job `x.toml`: `eval.metrics[1].name`: `a b` is not a valid name
      from: option --set eval.metrics=[{ type = "f1", name = "loss" }, { type = "f1", name = "a b" }]
      hint: a name is 1 to 64 letters, digits, `_` and `-`
    "#);
    insta::assert_snapshot!(with("\"accuracy\""), @r#"
    error: job `x.toml`: `eval.metrics`: expected a list, found "accuracy"
      from: option --set eval.metrics="accuracy"
      hint: for example [1, 2]
    "#);
    insta::assert_snapshot!(with("[5]"), @r#"
    error: job `x.toml`: `eval.metrics[0]` = 5 is not a metric
      from: option --set eval.metrics=[5]
      hint: write "accuracy", { type = "top_k", k = 5 }, or { plugin = "my_metric.wasm" }
    "#);
}

#[test]
fn mistakes_with_metrics_of_ones_own_are_told() {
    let with = |metrics: &str, rest: &[&str]| {
        let (metrics, test) = (format!("eval.metrics={metrics}"), "data.test={ images = \"images\" }");
        let settings: Vec<&str> = [metrics.as_str(), test].iter().chain(rest).copied().collect();
        super::said(load(SOUND, &[], &settings))
    };
    insta::assert_snapshot!(with("[{ plugin = \"accuracy\" }]", &[]), @r#"
    error: job `x.toml`: `eval.metrics[0].plugin` = "accuracy" is not a path that ends in .wasm
      from: option --set eval.metrics=[{ plugin = "accuracy" }]
      hint: the metrics inside the program are named by their type, as "accuracy"
    "#);
    insta::assert_snapshot!(with("[{ plugin = \"own.wasm\", type = \"mae\", tolerance = 1 }]", &[]), @r#"
    error: job `x.toml`: unknown key `eval.metrics[0].tolerance`
      from: option --set eval.metrics=[{ plugin = "own.wasm", type = "mae", tolerance = 1 }]
      hint: known keys: plugin, name, params, mode
    error: job `x.toml`: unknown key `eval.metrics[0].type`
      from: option --set eval.metrics=[{ plugin = "own.wasm", type = "mae", tolerance = 1 }]
      hint: known keys: plugin, name, params, mode
    "#);
    insta::assert_snapshot!(with("[{ plugin = \"own.wasm\", name = \"a b\" }, { plugin = \"a b.wasm\" }, { plugin = \"loss.wasm\" }]", &[]), @r#"
    error: job `x.toml`: `eval.metrics[0].name`: `a b` is not a valid name
      from: option --set eval.metrics=[{ plugin = "own.wasm", name = "a b" }, { plugin = "a b.wasm" }, { plugin = "loss.wasm" }]
      hint: a name is 1 to 64 letters, digits, `_` and `-`
    error: job `x.toml`: `eval.metrics[1].plugin` = "a b.wasm" gives the metric no name: a name is 1 to 64 letters, digits, `_` and `-`
      from: option --set eval.metrics=[{ plugin = "own.wasm", name = "a b" }, { plugin = "a b.wasm" }, { plugin = "loss.wasm" }]
      hint: write name = "..." beside it
    error: job `x.toml`: `eval.metrics[2].plugin` = "loss.wasm" is what records call the loss
      from: option --set eval.metrics=[{ plugin = "own.wasm", name = "a b" }, { plugin = "a b.wasm" }, { plugin = "loss.wasm" }]
      hint: give it another name
    "#);
    insta::assert_snapshot!(with("[{ plugin = \"x/own.wasm\" }, { plugin = \"y/own.wasm\" }]", &[]), @r#"
    error: job `x.toml`: `eval.metrics[0]` and `eval.metrics[1]` are both named `own`
      from: option --set eval.metrics=[{ plugin = "x/own.wasm" }, { plugin = "y/own.wasm" }]
      hint: records tell metrics apart by their names: give one of them a `name`
    "#);
    insta::assert_snapshot!(with("[{ plugin = \"own.wasm\", mode = \"less\", params = 3 }]", &[]), @r#"
    error: job `x.toml`: `eval.metrics[0].params`: expected a table, found 3
      from: option --set eval.metrics=[{ plugin = "own.wasm", mode = "less", params = 3 }]
      hint: for example { key = "value" }
    error: job `x.toml`: `eval.metrics[0].mode` = "less" is not one of min or max
      from: option --set eval.metrics=[{ plugin = "own.wasm", mode = "less", params = 3 }]
      hint: for example "min"
    "#);
    insta::assert_snapshot!(with("[{ plugin = \"own.wasm\" }]", &["eval.every_epochs=1", "eval.best=own"]), @r#"
    error: job `x.toml`: `eval.best` goes by `own`, and whether less or more of it is better is not known
      from: option --set eval.best=own
      hint: write mode = "min" or "max" beside metric
    "#);
    insta::assert_snapshot!(with("[{ plugin = \"own.wasm\", mode = \"max\" }]", &["eval.every_epochs=1", "eval.best=owner"]), @r#"
    error: job `x.toml`: `eval.best` goes by `owner`, and whether less or more of it is better is not known
      from: option --set eval.best=owner
      hint: did you mean "own"?
    "#);
}

#[test]
fn a_plug_in_is_a_metric_with_a_name_and_a_mode() {
    let list = "eval.metrics=[\"mae\", { plugin = \"x/own.wasm\", mode = \"max\" }, \
                { plugin = \"x/own.wasm\", name = \"other\", params = { delta = 0.5 } }]";
    let deciding = ["eval.every_epochs=1", "eval.best=own.p90", "eval.stop={ metric = \"own\" }"];
    let test = "data.test={ images = \"images\" }";
    let settings: Vec<&str> = [list, test].into_iter().chain(deciding).collect();
    let job = load(SOUND, &[], &settings).unwrap();
    let training = job.job.training().unwrap();
    let metrics = &training.eval.metrics;
    let names: Vec<&str> = metrics.iter().map(MetricSpec::name).collect();
    assert_eq!(names, ["mae", "own", "other"]);
    let files: Vec<String> = training.plugin_files().into_iter().map(|(key, _)| key).collect();
    assert_eq!(files, ["eval.metrics[1].plugin", "eval.metrics[2].plugin"]);
    let sent = serde_json::to_string(metrics).unwrap();
    assert_eq!(serde_json::from_str::<Vec<MetricSpec>>(&sent).unwrap(), *metrics);
    // Where it lies may differ between machines, and what it is asked for may not.
    let elsewhere = |list: &str| {
        let settings: Vec<&str> = [list, test].into_iter().chain(deciding).collect();
        load(SOUND, &[], &settings).unwrap().hash
    };
    assert_eq!(elsewhere(&list.replace("x/", "y/")), job.hash);
    assert_ne!(elsewhere(&list.replace("0.5", "0.25")), job.hash);
    // As it stands in the run folder.
    assert_eq!(load(&job.toml, &[], &[]).unwrap().hash, job.hash);
}

#[test]
fn metrics_of_one_type_have_names_that_tell_them_apart() {
    let list = "eval.metrics=[\"f1\", { type = \"f1\", average = \"macro\" }, { type = \"top_k\", k = 5 }, \
                { type = \"accuracy\", threshold = 0.5, name = \"at_half\" }]";
    let job = load(SOUND, &[], &[list, "data.test={ images = \"images\" }"]).unwrap().job;
    let metrics = &job.training().unwrap().eval.metrics;
    let names: Vec<&str> = metrics.iter().map(MetricSpec::name).collect();
    assert_eq!(names, ["f1", "f1_macro", "top_5", "at_half"]);
    let sent = serde_json::to_string(metrics).unwrap();
    assert_eq!(serde_json::from_str::<Vec<MetricSpec>>(&sent).unwrap(), *metrics);
    assert!(load(SOUND, &[], &[]).unwrap().job.training().unwrap().eval.metrics.is_empty());
}

#[test]
fn a_metric_that_does_not_fit_what_the_loss_takes_is_told() {
    let check = |toml: &str, output: Option<Signal>, target: Option<Signal>| {
        let (problem, hint) = spec(toml).check(output.as_ref(), target.as_ref()).unwrap_err();
        format!("{problem}\nhint: {hint}")
    };
    let (floats, whole) = (
        |shape: &[i64]| Some(Signal::floats(shape)),
        |shape: &[i64]| Some(Signal::new(shape, InputDtype::Int64)),
    );
    insta::assert_snapshot!(check("\"perplexity\"", None, floats(&[1])), @r"
    takes a score for each class [classes, ...] and int64 targets [...], and a sample has the target [1]
    hint: where targets are of the output's shape there are mae, mse and r2, or accuracy, auc and f1 if they are 0 and 1
    ");
    insta::assert_snapshot!(check("\"accuracy\"", floats(&[10]), floats(&[])), @r"
    takes a score for each class [classes, ...] and int64 targets [...], or one score for each target of 0 and 1, and a sample has the output [10] and the target []
    hint: for numbers there are mae, mse and r2, whose targets are of the output's shape
    ");
    insta::assert_snapshot!(check("\"auc\"", floats(&[10]), whole(&[])), @r#"
    takes one score for each target of 0 and 1 (one shape, sizes of 1 aside), or scores of two classes, and a sample has the output [10] and the target [] of int64
    hint: for more classes there are accuracy, top_k, and f1 with average = "macro"
    "#);
    insta::assert_snapshot!(check("\"r2\"", floats(&[10]), whole(&[])), @r#"
    takes output and target of one shape (sizes of 1 aside), and a sample has the output [10] and the target [] of int64
    hint: for numbers of classes there are accuracy, top_k, and f1 with average = "macro"
    "#);
    insta::assert_snapshot!(check("\"mse\"", whole(&[10]), None), @r"
    takes an output of fractions, and a sample's is [10] of int64
    hint: let the model end with a layer that gives fractions
    ");
    insta::assert_snapshot!(check("\"confusion_matrix\"", floats(&[5000]), whole(&[])), @r#"
    is of at most 1024 classes, and the output has 5000
    hint: use f1 with average = "macro", which is one number
    "#);
    assert!(spec("\"accuracy\"").check(None, None).is_ok());
    assert!(spec("\"auc\"").check(floats(&[1]).as_ref(), whole(&[]).as_ref()).is_ok());
}

#[test]
fn a_batch_that_a_metric_does_not_take_is_told_and_changes_nothing() {
    let update = |toml: &str, output: &Tensor, target: &Tensor| {
        spec(toml).start().update(output, target).unwrap_err().to_string()
    };
    let (scores, classes) =
        (Tensor::from_slice2(&[[0.5_f32, -1.0, 0.0], [2.0, 3.0, 1.0]]), Tensor::from_slice(&[0_i64, 2]));
    insta::assert_snapshot!(update("\"accuracy\"", &scores, &Tensor::from_slice(&[0_i64, 3])), @r"
    metric `accuracy`: a target is 3, and the output has 3 classes, counted from 0
      hint: correct the data, or name targets that do not count by `ignore_index`
    ");
    insta::assert_snapshot!(update("\"mae\"", &scores, &classes), @r#"
    metric `mae`: takes output and target of one shape (sizes of 1 aside), and a sample has the output [3] and the target [] of int64
      hint: for numbers of classes there are accuracy, top_k, and f1 with average = "macro"
    "#);
    insta::assert_snapshot!(update("\"mae\"", &scores, &scores.narrow(0, 0, 1)), @r"
    metric `mae`: the output is [2, 3] and the target [1, 3]: they are not of one batch
      hint: samples lie along dimension 0 of both
    ");
    insta::assert_snapshot!(update("{ type = \"top_k\", k = 4 }", &scores, &classes), @r"
    metric `top_4`: looks at the 4 largest scores, and the output has 3 classes
      hint: use k = 3 at most
    ");
    insta::assert_snapshot!(update("\"f1\"", &scores.select(1, 0), &Tensor::from_slice(&[0.25_f32, 1.0])), @r"
    metric `f1`: a target is neither 0 nor 1
      hint: for numbers there are mae, mse and r2; for classes give the output a score for each
    ");
    let mut metric = spec("{ type = \"f1\", average = \"macro\" }").start();
    metric.update(&scores, &classes).unwrap();
    let before = told(&metric);
    let wider = Tensor::from_slice2(&[[0.5_f32, -1.0, 0.0, 1.0]]);
    insta::assert_snapshot!(metric.update(&wider, &classes.narrow(0, 0, 1)).unwrap_err(), @r"
    metric `f1_macro`: the output has 4 classes, and 3 in the batches before
      hint: let the model give as many in each batch
    ");
    assert_eq!(told(&metric), before);
}
