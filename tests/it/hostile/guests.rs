//! Plug-ins of random host operations with wild arguments, random calls of WASI, wild results: each call comes to an end
//! in time, with a value or with an error that names the plug-in.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use pstrain::job::PluginLimits;
use pstrain::plugin::{Dataset, Host, Loss, Metric, PluginError, PluginErrorKind, Purpose};
use serde_json::json;
use tch::{Kind, Tensor};

use super::modules::{Form, random};
use crate::support::{is_alone, peak_kib, times};

const TIME: Duration = Duration::from_millis(50);
const EVALUATION: Purpose = Purpose::evaluation(0);
/// The time for all that happens with one plug-in, on a busy machine: some calls of 50 ms each, compiling, a backward.
const BOUND: Duration = Duration::from_secs(20);

fn limits() -> PluginLimits {
    PluginLimits {
        time: TIME,
        open_time: TIME,
        memory_bytes: 16 << 20,
        work_bytes: 256 << 20,
        batch_bytes: 1 << 20,
        max_files: 64,
        max_samples: 1_000_000,
        log_lines: 100,
        log_bytes: 10_000,
        ..PluginLimits::default()
    }
}

/// Without a cache, which they would fill.
static HOST: LazyLock<Host> = LazyLock::new(|| Host::new(Some("/proc/nowhere".as_ref())).expect("an engine"));

/// How a plug-in ended.
fn run(form: Form, module: &[u8], root: &Path) -> Result<(), PluginError> {
    let component = HOST.load("wild", module)?;
    match form {
        Form::Dataset => {
            let mut dataset = Dataset::open(&component, &json!({}), root, limits(), None)?;
            let samples = dataset.info().samples;
            dataset.batch(&[0, samples - 1], EVALUATION)?;
            dataset.batch(&[samples / 2], EVALUATION)?;
        }
        Form::Metric => {
            let open = || Metric::open(&component, &json!({}), limits());
            let (mut metric, mut other) = (open()?, open()?);
            let (output, target) =
                (Tensor::ones([2, 3], tch::kind::FLOAT_CPU), Tensor::from_slice(&[0i64, 2]));
            for _ in 0..2 {
                metric.update(&[output.shallow_clone()], &[target.shallow_clone()])?;
            }
            other.merge(&metric.state()?)?;
            other.figures()?;
            metric.figures()?;
        }
        Form::Loss | Form::WeighedLoss | Form::RawLoss => {
            let mut loss = Loss::open(&component, &json!({}), limits())?;
            let input = Tensor::ones([2, 3], tch::kind::FLOAT_CPU).set_requires_grad(true);
            let target = Tensor::from_slice(&[0i64, 2]);
            for _ in 0..2 {
                loss.weigh(&[target.shallow_clone()], 2)?;
                let value = loss.compute(&[&input * 2.0], &[target.shallow_clone()], true)?;
                // libtorch may refuse it: a logarithm of whole numbers has no gradient.
                let _ = value.loss.f_backward();
                assert!(value.loss.kind() == Kind::Float || value.loss.dim() == 0);
            }
        }
    }
    Ok(())
}

/// The kind of its end, and how long it took.
fn attempt(seed: u64, root: &Path) -> (String, Duration) {
    let form = Form::ALL[(seed % 5) as usize];
    let with_wasi = form == Form::Dataset || seed.is_multiple_of(3);
    let module = random(seed, form, with_wasi);
    let began = Instant::now();
    let ended = run(form, &module, root);
    let took = began.elapsed();
    assert!(took < BOUND, "seed {seed}: it took {took:?}");
    let end = match ended {
        Ok(()) => "value".to_owned(),
        Err(error) => {
            let told = error.to_string();
            println!("seed {seed}: {}", told.lines().next().unwrap_or_default());
            assert!(told.starts_with("plug-in `wild`: `"), "seed {seed}: {told}");
            assert!(!told.contains("panicked in the host"), "seed {seed}: {told}");
            assert!(told.chars().count() < 6_000, "seed {seed}: a message of {} bytes", told.len());
            match error.kind {
                PluginErrorKind::TimedOut { .. } => "TimedOut".into(),
                PluginErrorKind::OutOfMemory { .. } => "OutOfMemory".into(),
                kind => format!("{kind:?}"),
            }
        }
    };
    (end, took)
}

#[test]
fn random_plug_ins_end_with_a_value_or_an_error_in_time() {
    const MOST_MIB: u64 = 512;
    if !is_alone("hostile::guests::random_plug_ins_end_with_a_value_or_an_error_in_time") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("x"), vec![7; 10_000]).unwrap();
    std::fs::create_dir(root.path().join("y")).unwrap();
    let (mut ends, mut worst) = (BTreeMap::<String, u32>::new(), (Duration::ZERO, 0));
    let before = peak_kib("self").expect("it runs");
    for seed in 0..times(48, 2_000) as u64 {
        let (end, took) = attempt(seed, root.path());
        *ends.entry(end).or_default() += 1;
        worst = worst.max((took, seed));
    }
    let grown = (peak_kib("self").expect("it runs") - before) >> 10;
    println!("ends: {ends:?}; the longest took {:?} (seed {}); memory grew by {grown} MiB", worst.0, worst.1);
    assert!(grown < MOST_MIB, "memory grew by {grown} MiB");
    assert!(ends.len() > 3 && ends.contains_key("value"), "they all end alike: {ends:?}");
    let left = std::fs::read_dir(root.path()).unwrap().count();
    assert!(
        left == 2 && std::fs::read(root.path().join("x")).unwrap() == vec![7; 10_000],
        "the data were changed"
    );
}
