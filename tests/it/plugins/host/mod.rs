//! The plug-in host against guests that misbehave as they are told (`plugins/testing`).

mod checks;
mod datasets;
mod files;
mod losses;
mod metrics;
mod raw_losses;
mod shipped;
mod wrong_files;

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use pstrain::job::PluginLimits;
use pstrain::plugin::{Component, Dataset, Host, Loss, PluginError, Purpose};
use serde_json::json;

/// Small, and with time enough on a busy machine.
const LIMITS: PluginLimits = PluginLimits {
    time: Duration::from_secs(20),
    open_time: Duration::from_secs(20),
    memory_bytes: 64 << 20,
    work_bytes: 4 << 30,
    batch_bytes: 4 << 20,
    max_files: 4096,
    compile_time: Duration::from_secs(20),
    compile_memory_bytes: 1 << 30,
    max_samples: 1 << 40,
    log_lines: 10_000,
    log_bytes: 1 << 20,
};
const EVALUATION: Purpose = Purpose::evaluation(0);
/// For guests that never come back.
const SHORT: PluginLimits = PluginLimits { time: Duration::from_millis(200), ..LIMITS };

static HOST: LazyLock<Host> = LazyLock::new(|| Host::new(None).expect("this machine runs WebAssembly"));
static EVIL: LazyLock<Component> = LazyLock::new(|| HOST.load("evil", &guest("evil")).expect("a plug-in"));
static RAW: LazyLock<Component> = LazyLock::new(|| HOST.load("raw", &guest("raw")).expect("a plug-in"));

/// The bytes of a plug-in of `plugins/testing`.
fn guest(name: &str) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("plugins/dist/testing_{name}.wasm"));
    std::fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}; `make setup` builds it"))
}

/// The source folder of this repository: any folder will do.
fn any_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
}

fn dataset(sin: &str) -> Result<Dataset, PluginError> {
    Dataset::open(&EVIL, &json!(sin), any_folder(), LIMITS, None)
}

fn endless_dataset(sin: &str) -> Dataset {
    Dataset::open(&EVIL, &json!(sin), any_folder(), SHORT, None).expect("it opens")
}

fn loss(sin: &str) -> Loss {
    Loss::open(&EVIL, &json!(sin), LIMITS).expect("it opens")
}

/// The message, without the guest's lines and functions: these change with its source and its compiler.
fn told(error: &PluginError) -> String {
    let place = error.place.as_ref().map(|place| format!(" ({place})"));
    place.map_or(error.to_string(), |place| error.to_string().replace(&place, ""))
}

/// How far a guest gets below its limit depends on the toolchain that built it.
fn without_size(told: &str) -> String {
    ["64.5 MiB", "64.6 MiB"].iter().fold(told.to_owned(), |told, size| told.replace(size, "64... MiB"))
}
