//! `pstrain plugin`: for who writes one; a new folder, its build, and what the host says of the result.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::args::PluginCommand;
use super::exit::{DONE, FAILED, Failure};
use super::{compile, logs, stdout};
use crate::human;
use crate::job::{PluginLimits, PluginRef};
use crate::plugin::author::{self, Kind, Lang, NewPlugin};
use crate::plugin::check::{self, Request};
use crate::plugin::{Host, PluginError};
use crate::runner::libtorch;

/// Samples of a dataset's batch, where no job says how many.
const BATCH_SIZE: u64 = 32;

pub fn command(command: PluginCommand, look: logs::Wanted) -> Result<u8, Failure> {
    match command {
        PluginCommand::New { name, lang, kind, into } => new(name, lang, kind, into),
        PluginCommand::Build { folder, out } => build(&folder, out.as_deref()),
        PluginCommand::Compile { time_ms, memory_mb, cache } => {
            compile::compile(cache.as_deref(), Duration::from_millis(time_ms), memory_mb << 20)
        }
        PluginCommand::Check { plugin, config, root, outputs, targets, json } => {
            libtorch::ensure().map_err(Failure::usage)?;
            look.start_logs(None);
            let config = read_config(&config)?;
            let limits = PluginLimits::default();
            check(
                &plugin,
                &Request { config: &config, root: &root, limits, batch_size: BATCH_SIZE, outputs, targets },
                json,
            )
        }
    }
}

fn new(name: String, lang: Lang, kind: Kind, parent: PathBuf) -> Result<u8, Failure> {
    let folder = parent.join(&name).display().to_string();
    let written = author::new(&NewPlugin { name, lang, kind, parent }).map_err(Failure::usage)?;
    for path in written.iter().filter(|path| !path.components().any(|part| part.as_os_str() == "sdk")) {
        stdout::line(format_args!("wrote {}", path.display()))?;
    }
    stdout::line(format_args!("\n  pstrain plugin build {folder}"))?;
    Ok(DONE)
}

fn build(folder: &Path, out: Option<&Path>) -> Result<u8, Failure> {
    let built = author::build(folder, out).map_err(anyhow::Error::from)?;
    let (path, size) = (built.path.display(), human::bytes(built.bytes));
    stdout::line(format_args!(
        "built {path}: {size} in {:.1} s ({})\n\n  pstrain plugin check {path}",
        built.seconds, built.toolchain
    ))?;
    Ok(DONE)
}

fn check(plugin: &str, request: &Request, as_json: bool) -> Result<u8, Failure> {
    let plugin = match Path::new(plugin).extension() {
        Some(_) => PluginRef::File(plugin.into()),
        None => PluginRef::Builtin(plugin.into()),
    };
    let report = check::check(&Host::apart(&request.limits)?, &plugin, request)?;
    stdout::result(&report, &report, as_json)?;
    Ok(if report.is_good() { DONE } else { FAILED })
}

/// A JSON object, or what stands on the right of a TOML key.
fn read_config(text: &str) -> Result<serde_json::Value, Failure> {
    let value = serde_json::from_str(text).ok().or_else(|| {
        let table: toml::Table = toml::from_str(&format!("config = {text}")).ok()?;
        serde_json::to_value(table.get("config")?).ok()
    });
    value.filter(serde_json::Value::is_object).ok_or_else(|| {
        let hint = r#"--config '{ images = "train-images-idx3-ubyte" }', or the same as JSON"#;
        Failure::usage(format!("`--config {text}` is neither a TOML table nor a JSON object\n  hint: {hint}"))
    })
}

impl From<PluginError> for Failure {
    fn from(error: PluginError) -> Failure {
        anyhow::Error::from(error).into()
    }
}
