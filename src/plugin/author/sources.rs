//! The files of a new plug-in, all inside this program: its own SDK and WIT package, and the templates.

use super::{Kind, Lang, NewPlugin};

/// `("path/in/the/new/folder", content)`, from the repository.
macro_rules! files {
    ($($to:literal: $from:literal,)*) => {
        &[$(($to, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $from)))),*]
    };
}

type Files = &'static [(&'static str, &'static str)];

const WIT: Files = files! { "wit/plugin.wit": "plugins/wit/plugin.wit", };

/// It is on no registry, so that it always fits the program that it came with.
pub(super) const SDK: Files = files! {
    "sdk/Cargo.toml": "plugins/sdk/Cargo.toml",
    "sdk/src/bindings.rs": "plugins/sdk/src/bindings.rs",
    "sdk/src/buffer.rs": "plugins/sdk/src/buffer.rs",
    "sdk/src/config.rs": "plugins/sdk/src/config.rs",
    "sdk/src/data.rs": "plugins/sdk/src/data.rs",
    "sdk/src/dataset.rs": "plugins/sdk/src/dataset.rs",
    "sdk/src/element.rs": "plugins/sdk/src/element.rs",
    "sdk/src/lib.rs": "plugins/sdk/src/lib.rs",
    "sdk/src/log.rs": "plugins/sdk/src/log.rs",
    "sdk/src/loss.rs": "plugins/sdk/src/loss.rs",
    "sdk/src/loss/classes.rs": "plugins/sdk/src/loss/classes.rs",
    "sdk/src/loss/parts.rs": "plugins/sdk/src/loss/parts.rs",
    "sdk/src/metric.rs": "plugins/sdk/src/metric.rs",
    "sdk/src/panic.rs": "plugins/sdk/src/panic.rs",
    "sdk/src/random.rs": "plugins/sdk/src/random.rs",
    "sdk/src/raw_loss.rs": "plugins/sdk/src/raw_loss.rs",
    "sdk/src/slot.rs": "plugins/sdk/src/slot.rs",
    "sdk/src/tensor.rs": "plugins/sdk/src/tensor.rs",
    "sdk/src/testing.rs": "plugins/sdk/src/testing.rs",
};

const RUST: Files = files! {
    "dataset": "src/plugin/templates/rust/dataset.rs",
    "loss": "src/plugin/templates/rust/loss.rs",
    "raw_loss": "src/plugin/templates/rust/raw_loss.rs",
    "metric": "src/plugin/templates/rust/metric.rs",
};
const CARGO_TOML: &str = include_str!("../templates/rust/Cargo.toml.in");

const PYTHON: Files = files! {
    "dataset": "src/plugin/templates/python/dataset.py",
    "loss": "src/plugin/templates/python/loss.py",
    "raw_loss": "src/plugin/templates/python/raw_loss.py",
    "metric": "src/plugin/templates/python/metric.py",
};
const PYPROJECT: &str = include_str!("../templates/python/pyproject.toml");
const PYTHON_SDK: &str = include_str!("../templates/python/pstrain.py");

const EXAMPLE: &str = include_str!("../templates/example.csv");
const JOB_DATASET: &str = include_str!("../templates/job_dataset.toml");
const JOB_LOSS: &str = include_str!("../templates/job_loss.toml");
const JOB_METRIC: &str = include_str!("../templates/job_metric.toml");

/// Words that cannot be a crate's name.
pub(super) const RUST_WORDS: [&str; 40] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "pub", "ref", "return", "self", "static", "struct", "super",
    "trait", "true", "type",
];

/// Path in the new folder, and content.
pub(super) fn of(plugin: &NewPlugin) -> Vec<(&'static str, String)> {
    let named = |text: &str| text.replace("NAME", &plugin.name).replace("KIND", &plugin.kind.to_string());
    let mut files: Vec<(&str, String)> = match plugin.lang {
        Lang::Rust => vec![
            ("Cargo.toml", named(CARGO_TOML).replace("DEPENDENCIES\n", dependencies(plugin.kind))),
            ("src/lib.rs", named(template(RUST, plugin.kind))),
            (".gitignore", "/target/\n/*.wasm\n/runs/\n".to_owned()),
        ],
        Lang::Python => vec![
            ("pyproject.toml", named(PYPROJECT)),
            ("plugin.py", named(template(PYTHON, plugin.kind))),
            ("pstrain.py", PYTHON_SDK.to_owned()),
            (".gitignore", "__pycache__/\n/*.wasm\n/runs/\n".to_owned()),
        ],
    };
    let job = match plugin.kind {
        Kind::Dataset => JOB_DATASET,
        Kind::Loss | Kind::RawLoss => JOB_LOSS,
        Kind::Metric => JOB_METRIC,
    };
    files.push(("job.toml", named(job)));
    if plugin.kind == Kind::Dataset {
        files.push(("example.csv", EXAMPLE.to_owned()));
    }
    let sdk = if plugin.lang == Lang::Rust { SDK } else { &[] };
    files.extend(WIT.iter().chain(sdk).map(|(path, content)| (*path, (*content).to_owned())));
    files
}

fn dependencies(kind: Kind) -> &'static str {
    match kind {
        Kind::Dataset => "csv = \"1\"\n",
        Kind::Loss | Kind::RawLoss | Kind::Metric => "",
    }
}

fn template(files: Files, kind: Kind) -> &'static str {
    let found = files.iter().find(|(name, _)| *name == kind.file());
    found.expect("there is a template for each kind").1
}
