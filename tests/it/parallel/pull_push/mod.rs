//! The classic parameter server: modules that trainers compute, with parameters on servers. Whole jobs in real processes
//! against plain libtorch, and the wire in one process.

mod learning;
mod numbers;
mod wire;

use std::fs;

use crate::program::*;
use pstrain::job::{self, JobText, Override, Sources, Training};
use pstrain::model;
use tch::Tensor;

/// A perceptron without dropout on the built-in digits, whose steps are functions of parameters and batch alone.
pub const JOB: &str = r#"
name = "pulled"
seed = 7
[cluster]
world_size = 4
[roles]
server = 2
trainer = 2
[modules.net]
place = "server"
run = "caller"
input = [64]
layers = [
  { type = "linear", in_features = 64, out_features = 32 },
  "relu",
  { type = "linear", in_features = 32, out_features = 10 },
]
[data]
root = "builtin:digits"
plugin = "idx"
normalize = { scale = 255.0, mean = [0.0], std = [1.0] }
[data.train]
images = "train-images-idx3-ubyte"
labels = "train-labels-idx1-ubyte"
[data.test]
images = "t10k-images-idx3-ubyte"
labels = "t10k-labels-idx1-ubyte"
[loss]
plugin = "cross_entropy"
[optimizer]
type = "sgd"
lr = 0.1
[train]
epochs = 2
batch_size = 8
consistency = "bsp"
"#;

pub fn folder_with(job: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job).unwrap();
    folder
}

/// Spawns the job and gives what it trained, and its summary.
pub fn train(job: &str, settings: &[&str]) -> (Vec<(String, Tensor)>, serde_json::Value) {
    let folder = folder_with(job);
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), settings)), 0);
    (model::load(&model(folder.path())).unwrap(), summary(folder.path()))
}

pub fn training(text: &str, settings: &[&str]) -> Training {
    let overrides: Vec<Override> = settings.iter().map(|setting| Override::set(setting).unwrap()).collect();
    let file = JobText { name: "job.toml", text };
    let job = job::load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap().job;
    job.training().unwrap().clone()
}
