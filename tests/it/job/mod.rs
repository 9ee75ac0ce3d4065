//! What bad job files get: every message that a person sees, and that they come all at once.

mod checkpoint;
mod ema;
mod eval;
mod exports;
mod freeze;
mod metrics;
mod model;
mod optimizers;
mod precision;
mod pull_push;
mod schedules;
mod shards;
mod sources;
mod torchscript;
mod values;
mod world;

use pstrain::job::{self, JobErrors, JobText, Override, Resolved, Sources};

/// A small sound job; the tests break it.
const SOUND: &str = r#"
name = "x"
[cluster]
world_size = 4
[roles]
server = 1
trainer = "rest"
[modules.net]
place = "server"
input = [1, 8, 8]
layers = [
  "flatten",
  { type = "linear", name = "fc1", in_features = 64, out_features = 32 },
  "relu",
  { type = "linear", name = "fc2", in_features = 32, out_features = 10 },
]
[data]
root = "data"
plugin = "idx"
train = { images = "images" }
[loss]
plugin = "cross_entropy"
[optimizer]
type = "sgd"
lr = 0.1
[train]
epochs = 2
"#;

fn load(text: &str, env: &[(&str, &str)], settings: &[&str]) -> Result<Resolved, JobErrors> {
    let overrides: Vec<_> =
        settings.iter().map(|setting| Override::set(setting).expect("a setting")).collect();
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    job::load(&Sources { file: JobText { name: "x.toml", text }, env, overrides: &overrides })
}

fn sound(text: &str, env: &[(&str, &str)], settings: &[&str]) -> Resolved {
    load(text, env, settings).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> String {
    said(load(text, &[], &[]))
}

fn said(result: Result<Resolved, JobErrors>) -> String {
    result.expect_err("the job is wrong").to_string()
}

/// What the sound job says after one piece of its text has been replaced.
fn replaced(from: &str, to: &str) -> String {
    assert!(SOUND.contains(from), "{from}");
    errors(&SOUND.replace(from, to))
}

/// What the sound job says after a setting.
fn set(settings: &[&str]) -> String {
    said(load(SOUND, &[], settings))
}
