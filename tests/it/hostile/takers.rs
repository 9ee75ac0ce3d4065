//! Plug-ins that take too much of one thing: tables, the compiler, memory and time of operations and their backward.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use pstrain::job::PluginLimits;
use pstrain::plugin::{Host, Loss, PluginErrorKind};
use serde_json::json;
use tch::Tensor;

use super::modules::{Repeats, hard_to_compile, raw_loss, raw_loss_without_numbers, repeating, tables};
use crate::program::{assert_code, finish, records, spawn, stderr, summary};

fn uncached() -> Host {
    Host::new(Some("/proc/nowhere".as_ref())).unwrap()
}

fn pstrain() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pstrain"))
}

#[test]
fn tables_count_as_memory() {
    let limits = PluginLimits { memory_bytes: 64 << 20, ..PluginLimits::default() };
    let open = |count| {
        let component = uncached().load("tables", &tables(count, 1_000_000)).unwrap();
        Loss::open(&component, &json!({}), limits).map(drop)
    };
    open(2).unwrap();
    let error = open(90).unwrap_err();
    assert_eq!(error.kind, PluginErrorKind::OutOfMemory { limit_bytes: 64 << 20 });
    let told = error.to_string();
    assert!(told.contains("plug-in `tables`: `start`") && told.contains("`plugins.memory_mb`"), "{told}");
}

#[test]
fn there_are_not_too_many_tables() {
    let open = |count| {
        let component = uncached().load("tables", &tables(count, 1))?;
        Loss::open(&component, &json!({}), PluginLimits::default()).map(drop)
    };
    open(50).unwrap();
    let told = open(101).unwrap_err().to_string();
    assert!(told.contains("`tables`") && told.contains("tables count exceeds limit of 100"), "{told}");
}

#[test]
fn a_module_that_is_hard_to_compile_ends_at_its_limits() {
    let module = hard_to_compile(20_000, 20_000);
    assert!(module.len() < 400_000, "{} bytes", module.len());
    let load = |limits| {
        let began = Instant::now();
        let error = uncached().compiling_with(pstrain(), limits).load("hard", &module).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        error.to_string()
    };
    let brief = PluginLimits { compile_time: Duration::from_millis(300), ..PluginLimits::default() };
    insta::assert_snapshot!(load(brief), @r"
    plug-in `hard`: `compile` was stopped after 300ms, its limit
      hint: it has functions that are hard to compile; if it needs more, raise `plugins.compile_time_ms`
    ");
    let small = PluginLimits { compile_memory_bytes: 128 << 20, ..PluginLimits::default() };
    insta::assert_snapshot!(load(small), @r"
    plug-in `hard`: `compile` wanted more memory than its limit, 128 MiB: to compile it
      hint: it has functions that are hard to compile; if it needs more, raise `plugins.compile_memory_mb`
    ");
}

#[test]
fn a_plug_in_is_compiled_apart_once_and_then_found() {
    let cache = tempfile::tempdir().unwrap();
    let host = || Host::new(Some(cache.path())).unwrap().compiling_with(pstrain(), PluginLimits::default());
    let module = tables(1, 1);
    host().load("first", &module).unwrap();
    let noted = || std::fs::read_dir(cache.path().join("compiles")).unwrap().count();
    assert_eq!(noted(), 1);
    // Another program would not be believed: none is asked.
    let host =
        Host::new(Some(cache.path())).unwrap().compiling_with("/bin/false".as_ref(), PluginLimits::default());
    host.load("again", &module).unwrap();
    let error = host.load("other", &tables(2, 1)).unwrap_err().to_string();
    assert!(error.contains("the process that compiled it ended with"), "{error}");
    assert_eq!(noted(), 1);
}

#[test]
fn what_is_not_a_plug_in_is_told_as_by_this_process() {
    let apart = uncached().compiling_with(pstrain(), PluginLimits::default());
    for bytes in [&b"import torch"[..], b"", b"\0asm\x01\0\0\0\xff"] {
        let told = |host: &Host| host.load("thing.wasm", bytes).unwrap_err().to_string();
        assert_eq!(told(&apart), told(&uncached()));
    }
}

#[test]
fn a_loss_whose_backward_would_take_minutes_is_refused_in_its_forward() {
    let component = uncached().load("narrows", &repeating(Repeats::Narrow, 100_000)).unwrap();
    let mut loss = Loss::open(&component, &json!({}), PluginLimits::default()).unwrap();
    let output = Tensor::ones([1024, 4096], tch::kind::FLOAT_CPU).set_requires_grad(true);
    let began = Instant::now();
    let error = loss.compute(&[output], &[Tensor::from_slice(&[0i64])], false).unwrap_err();
    assert!(began.elapsed() < PluginLimits::default().time, "{:?}", began.elapsed());
    insta::assert_snapshot!(error.to_string(), @r"
    plug-in `narrows`: `compute`: an operation was refused: narrow: it reads and writes 112 MiB with its backward, after 16.0 GiB in this call; the limit is 16.0 GiB (`plugins.work_mb` and 512 times the inputs)
      hint: use fewer or smaller operations; if it needs more, raise `plugins.work_mb`
    ");
}

/// A run of the job about digits, for a few steps, with this plug-in as its loss.
fn train(loss: &[u8], settings: &[&str]) -> (tempfile::TempDir, std::process::Output) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine.wasm"), loss).unwrap();
    let all =
        [&["loss.plugin=mine.wasm", "train.epochs=1", "train.steps=5", "log.every=1"], settings].concat();
    let output = finish(&mut spawn(folder.path(), None, &all));
    (folder, output)
}

#[test]
fn a_metric_that_is_not_finite_is_null_and_ends_no_job() {
    for (name, value) in [("mine", f64::NAN), ("time_s", f64::INFINITY)] {
        let (folder, output) = train(&raw_loss(1.0, (name, value)), &[]);
        assert_code(&output, 0);
        let steps = records(folder.path(), "step");
        assert!(!steps.is_empty() && steps.iter().all(|step| step["metrics"][name].is_null()), "{steps:?}");
        let eval = &summary(folder.path())["eval"];
        assert_eq!(eval.get(name).is_some(), name == "mine", "{eval}");
    }
}

#[test]
fn a_raw_loss_beyond_float32_is_infinite_and_stops_the_job() {
    let (_folder, output) = train(&raw_loss(1e308, ("mine", 1.0)), &[]);
    assert_code(&output, 1);
    assert!(stderr(&output).contains("the loss is inf"), "{}", stderr(&output));
}

/// Its loss is a number, its gradient is none: also of the last step, after which no loss would show it.
#[test]
fn a_raw_loss_whose_gradient_is_nan_stops_the_job_before_the_update() {
    for more in [vec![], vec!["train.steps=1"]] {
        let (folder, output) = train(&raw_loss_without_numbers(), &more);
        assert_code(&output, 1);
        let said = stderr(&output);
        assert!(
            said.contains("step 1: module `net`: the gradient of parameter `conv1.weight` is NaN"),
            "{said}"
        );
        assert!(!crate::program::model(folder.path()).exists());
    }
}

#[test]
fn a_plug_in_that_logs_without_end_fills_no_log() {
    let (_folder, output) = train(&repeating(Repeats::Log, 100), &["plugins.log_kb=10"]);
    assert_code(&output, 0);
    let log = stderr(&output);
    assert!(log.len() < 200_000, "{} bytes", log.len());
    assert!(log.contains("the rest is dropped"), "{log}");
}

#[test]
fn four_billion_samples_are_shuffled_in_little_memory() {
    let job = "name = \"many\"\n[cluster]\nworld_size = 3\n[roles]\nserver = 1\ntrainer = \"rest\"\n\
               [modules.net]\nplace = \"server\"\ninput = [4]\n\
               layers = [{ type = \"linear\", in_features = 4, out_features = 1 }]\n\
               [data]\nplugin = \"synthetic\"\n\
               [data.train]\nkind = \"regression\"\nsamples = 4_000_000_000\nshape = [4]\n\
               [loss]\nplugin = \"mse\"\n[optimizer]\ntype = \"sgd\"\nlr = 0.01\n\
               [train]\nrole = \"trainer\"\nsteps = 5\nepochs = 1\nbatch_size = 32\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.toml"), job).unwrap();
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &[]));
    assert_code(&output, 0);
    assert_eq!(summary(folder.path())["steps"], 10);
    // The largest of all processes that tests have run: a list of these samples would have 16 GB.
    let peak_kb = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    assert!(peak_kb < 3 << 20, "{peak_kb} KB");
}
