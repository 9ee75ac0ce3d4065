//! `pstrain plugin check`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use insta::assert_snapshot;
use pstrain::job::{PluginLimits, PluginRef};
use pstrain::plugin::PluginError;
use pstrain::plugin::check::{Report, Request, Sketch, check};
use serde_json::json;

use super::{HOST, LIMITS, any_folder, guest, told};

/// Checks a plug-in of `plugins/testing`, with the given outputs and targets.
fn run(plugin: &str, sin: &str, sketches: Option<(&str, &str)>) -> Result<Report, PluginError> {
    run_with(plugin, &json!(sin), sketches)
}

fn run_with(
    plugin: &str,
    config: &serde_json::Value,
    sketches: Option<(&str, &str)>,
) -> Result<Report, PluginError> {
    let mut file = tempfile::Builder::new().suffix(".wasm").tempfile().unwrap();
    file.write_all(&guest(plugin)).unwrap();
    let sketch = |text: &str| vec![text.parse::<Sketch>().unwrap()];
    let (outputs, targets) = match sketches {
        Some((outputs, targets)) => (sketch(outputs), sketch(targets)),
        None => (Vec::new(), Vec::new()),
    };
    let request = Request { config, root: any_folder(), limits: LIMITS, batch_size: 4, outputs, targets };
    check(&HOST, &PluginRef::File(file.path().into()), &request)
}

/// The report without its times and sizes, which differ from run to run.
fn shown(report: &Report) -> String {
    let name = Path::new(&report.name).file_name().unwrap().to_string_lossy().into_owned();
    let text = report.to_string().replace(&report.name, "PLUGIN").replace(&name, "PLUGIN");
    let vague = |line: &str| {
        let measured =
            ["loaded in", "opened in", "a batch of", "a batch  ", "a call", "memory", "longest call"];
        let line = match measured.iter().any(|row| line.trim_start().starts_with(row)) {
            true => line.get(..19).unwrap_or(line).trim_end().to_owned() + " ...",
            false => line.to_owned(),
        };
        let exact = [" finite differences to ", " at once to "];
        exact.iter().find_map(|to| line.split_once(to)).map_or(line.clone(), |(line, _)| line.to_owned())
    };
    text.lines().map(vague).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_dataset_and_a_loss_are_reported() {
    let report = run("evil", "none", None).unwrap();
    assert!(report.is_good());
    assert_snapshot!(shown(&report), @r"
    PLUGIN: a dataset and a loss
      loaded in ...
      does without     pstrain:testing/telephone (a call of these would be an error)
      opened in ...
      samples          10
      fields           x uint8[2], y int64[]
      a batch of 4 ...
      asked again      the same
      memory ...
      longest call ...
      batch            40 bytes of 4 MiB
      given            outputs float32[8, 10]; targets float32[8, 10]
      loss             1.343198
      largest          2.790529
      a call ...
      gradient         agrees with
      memory ...
      longest call ...
    ");
}

#[test]
fn a_raw_loss_with_the_right_gradient_passes() {
    let report = run("raw", "none", None).unwrap();
    assert!(report.is_good());
    let gradient = report.loss.clone().unwrap().gradient.unwrap();
    assert!(gradient.largest_error < 1e-8 && gradient.dtype == "float64", "{gradient}");
    assert_snapshot!(shown(&report), @r"
    PLUGIN: a raw-buffer loss
      loaded in ...
      given            outputs float32[8, 10]; targets float32[8, 10]
      loss             1.343198
      rmse             1.158964
      a call ...
      gradient         agrees with
      memory ...
      longest call ...
    ");
}

#[test]
fn a_raw_loss_with_a_wrong_gradient_does_not() {
    let report = run("raw", "wrong-gradient", None).unwrap();
    assert!(!report.is_good());
    assert_snapshot!(report.loss.unwrap().gradient.unwrap(), @"WRONG: element 67 of output 0 is -0.073251, by finite differences -0.069763 (error 4.8e-2, allowed 1e-5, float64)");
}

#[test]
fn a_loss_that_knows_float32_only_is_compared_in_that() {
    let gradient = run("raw", "only-float32", None).unwrap().loss.unwrap().gradient.unwrap();
    assert!(gradient.agrees && gradient.dtype == "float32", "{gradient}");
}

#[test]
fn inputs_of_a_given_shape_are_used() {
    let loss = run("raw", "none", Some(("float32[3,4]", "float32[3,4]"))).unwrap().loss.unwrap();
    assert_eq!((loss.outputs, loss.targets), (vec!["float32[3, 4]".into()], vec!["float32[3, 4]".into()]));
    let error = run("raw", "none", Some(("float32[3,4]", "float32[3,5]"))).unwrap_err();
    assert_eq!(error.message, "the output has the shape [3, 4], the target [3, 5]");
}

#[test]
fn a_report_is_also_for_scripts() {
    let report = serde_json::to_value(run("raw", "none", None).unwrap()).unwrap();
    assert_eq!(report["loss"]["gradient"]["agrees"], true);
    assert!(report["loss"]["compute_us"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_a_job_would_stumble_over_is_the_error() {
    assert_snapshot!(strip(&run("evil", "wrong-dtype", None).unwrap_err()), @"plug-in `PLUGIN`: `batch` handed over bad data: field `x` came as int8[2, 2] and should be uint8[2, 2]");
    assert_snapshot!(strip(&run("raw", "short-gradient", None).unwrap_err()), @"plug-in `PLUGIN`: `compute` handed over bad data: given float32[8, 10] and float32[8, 10]: the gradient of output 0, float32[8, 10], has 319 bytes, not 320");
}

fn strip(error: &PluginError) -> String {
    told(error).replace(&*error.name, "PLUGIN")
}

#[test]
fn parts_of_a_metric_are_merged_and_compared_with_all_samples() {
    let report = run_with("metric", &json!({ "several": true }), None).unwrap();
    assert!(report.is_good());
    assert_snapshot!(shown(&report), @r"
    PLUGIN: a metric
      loaded in ...
      given            outputs float32[8, 10]; targets float32[8, 10]
      mean             0.945359
      largest          2.790529
      a batch ...
      state            24 bytes
      parts merged     agree with all samples
      memory ...
      longest call ...
    ");
    let report = run_with("metric", &json!({ "sin": "merge-forgets" }), None).unwrap();
    assert!(!report.is_good());
    let merged = report.metric.unwrap().merged.to_string();
    assert!(merged.starts_with("WRONG: `value` is 0."), "{merged}");
    let cut = run_with("metric", &json!({}), Some(("float32[64,3]", "float32[64,3]"))).unwrap();
    assert!(cut.is_good());
}

/// A pipe among the images, which are opened when they are asked for: nobody writes to it.
#[test]
fn a_dataset_that_reads_a_pipe_is_waited_for_only_so_long() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("a")).unwrap();
    nix::unistd::mkfifo(&folder.path().join("a/pipe.png"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let config = json!({ "folder": ".", "resize": 8, "crop": 8 });
    let short = Duration::from_millis(100);
    let limits = PluginLimits { time: short, open_time: short, ..LIMITS };
    let (outputs, targets) = (Vec::new(), Vec::new());
    let request = Request { config: &config, root: folder.path(), limits, batch_size: 4, outputs, targets };
    let error = check(&HOST, &PluginRef::Builtin("images".into()), &request).unwrap_err();
    let told = error.to_string();
    assert!(told.starts_with("plug-in `images` has not come back from `check` within "), "{told}");
    assert!(told.contains("hint: is there a pipe or a dead network drive in the data folder?"), "{told}");
}
