//! The plug-ins inside the binary, run by the host as a job runs them.

mod datasets;
mod losses;

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use pstrain::job::{PluginLimits, PluginRef};
use pstrain::plugin::{Component, Dataset, Host, Loss, Purpose};
use serde_json::Value;

/// A job's defaults.
const LIMITS: PluginLimits = PluginLimits {
    time: Duration::from_secs(10),
    open_time: Duration::from_secs(60),
    memory_bytes: 512 << 20,
    work_bytes: 8 << 30,
    batch_bytes: 256 << 20,
    max_files: 4096,
    compile_time: Duration::from_secs(20),
    compile_memory_bytes: 1 << 30,
    max_samples: 10_000_000_000,
    log_lines: 10_000,
    log_bytes: 1 << 20,
};

const EVALUATION: Purpose = Purpose::evaluation(0);

static HOST: LazyLock<Host> = LazyLock::new(|| Host::new(None).expect("this machine runs WebAssembly"));

fn shipped(name: &str) -> Component {
    HOST.load_ref(&PluginRef::Builtin(name.into())).expect("it is shipped")
}

fn loss(name: &str, params: &Value) -> Loss {
    Loss::open(&shipped(name), params, LIMITS).expect("it opens")
}

fn dataset(name: &str, config: &Value, root: &Path) -> Dataset {
    Dataset::open(&shipped(name), config, root, LIMITS, None).expect("it opens")
}

fn loss_error(name: &str, params: &Value) -> String {
    Loss::open(&shipped(name), params, LIMITS).err().expect("it does not open").to_string()
}

fn dataset_error(name: &str, config: &Value, root: &Path) -> String {
    let error = Dataset::open(&shipped(name), config, root, LIMITS, None).err().expect("it does not open");
    error.to_string().replace(&root.display().to_string(), "ROOT")
}
