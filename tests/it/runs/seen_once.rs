//! A model that tells how often each sample was in it: a row for each, which one look-up moves by a known part of the way to 1.
//! Trainers that become more or fewer, and ranks that are killed, leave each sample of an epoch in it once.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use tch::{Kind, Tensor};

use super::small::{finished, last_step};
use crate::program::*;
use crate::support::{eventually, runs_by_default};

const SAMPLES: i64 = 1440;
/// With the batch's size it makes the step of a row: of `n` samples together 2 / n.
const JOB: &str = r#"
[cluster]
world_size = 3
[roles]
server = 1
trainer = "rest"
[modules.net]
place = "server"
input = [1]
input_dtype = "int64"
weights = "zeros.safetensors"
layers = [{ type = "embedding", num_embeddings = 1440, embedding_dim = 1 }, "flatten"]
[data]
root = "."
plugin = "csv"
[data.train]
file = "rows.csv"
features = ["x"]
feature_dtype = "int64"
target = ["y"]
[loss]
plugin = "mse"
[optimizer]
type = "sgd"
lr = 1.0
[train]
batch_size = 4
epochs = 1
[checkpoint]
every_steps = 7
keep = 100
"#;

fn write_job(folder: &Path) {
    let rows = (0..SAMPLES).fold("x,y\n".to_owned(), |mut rows, id| {
        writeln!(rows, "{id},1").unwrap();
        rows
    });
    fs::write(folder.join("rows.csv"), rows).unwrap();
    fs::write(folder.join("job.toml"), JOB).unwrap();
    let zeros = Tensor::zeros([SAMPLES, 1], (Kind::Float, tch::Device::Cpu));
    Tensor::write_safetensors(&[("net.0.weight", zeros)], folder.join("zeros.safetensors")).unwrap();
}

fn run(folder: &Path, run: &str, settings: &[&str], more: &[&str]) -> std::process::Command {
    spawn_with(folder, Some("job.toml"), settings, &[&["--run-dir", run], more].concat())
}

/// Each row was moved once, in a batch of up to so many samples: twice, and it would lie between these steps.
#[track_caller]
fn assert_seen_once(file: &Path, most: u32, what: &str) {
    let weights = Tensor::read_safetensors(file).unwrap();
    let rows = Vec::<f32>::try_from(weights[0].1.view([-1])).unwrap();
    assert_eq!(rows.len() as i64, SAMPLES);
    let once = |row: f32| (1..=most).any(|batch| (row - 2.0 / batch as f32).abs() < 1e-6);
    let wrong: Vec<_> = rows.iter().enumerate().filter(|(_, row)| !once(**row)).collect();
    assert!(wrong.is_empty(), "{what}: {} of {SAMPLES}: {wrong:?}", wrong.len());
}

/// Goes on from a checkpoint of a run with other settings, and from one of that with others again.
fn goes_on(attempts: &[&[&str]], most: u32) {
    if !runs_by_default() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_job(folder.path());
    for (nth, settings) in attempts.iter().enumerate() {
        let name = format!("RUN{nth}");
        // So many steps behind the first of the attempt before.
        let before = nth.checked_sub(1).map(|before| checkpoint(folder.path(), before));
        let resume = before.iter().flat_map(|from| ["--resume", from.as_str()]).collect::<Vec<_>>();
        let output = finish(&mut run(folder.path(), &name, settings, &resume));
        assert_code(&output, 0);
        if nth > 0 && settings != &attempts[nth - 1] {
            let said = stderr(&output);
            assert!(said.contains("going on from step"), "{said}");
        }
    }
    let last = format!("RUN{}/model.safetensors", attempts.len() - 1);
    assert_seen_once(&folder.path().join(last), most, &format!("{attempts:?}"));
}

/// The second of an attempt; the first where the steps are quicker than the disk.
fn checkpoint(folder: &Path, attempt: usize) -> String {
    let within = folder.join(format!("RUN{attempt}/checkpoints"));
    let mut all: Vec<_> = fs::read_dir(&within).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all[1.min(all.len() - 1)].to_str().unwrap().to_owned()
}

const BSP: &str = "train.consistency=bsp";
const ASYNC: &str = "train.consistency=async";

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn more_or_fewer_trainers_see_the_samples_that_are_left_once() {
    let world = |ranks: u32| format!("cluster.world_size={ranks}");
    let [two, three, four, five] = [2, 3, 4, 5].map(world);
    // In rounds all samples of a round are one batch.
    goes_on(&[&[BSP, &three], &[BSP, &five], &[BSP, &two]], 16);
    goes_on(&[&[ASYNC, &three], &[ASYNC, &four], &[ASYNC, &three], &[ASYNC, &three]], 4);
    // From a server to replicas, and to two servers that are pulled from.
    let replicas = ["modules.net.place=trainer", "roles={trainer=\"rest\"}"];
    let pulled = ["roles.server=2", "modules.net.run=caller"];
    goes_on(&[&[BSP, &three], &[&replicas[..], &[BSP, &three]].concat()], 12);
    goes_on(&[&[&replicas[..], &[BSP, &four]].concat(), &[&pulled[..], &[BSP, &five]].concat()], 16);
    // More servers and more trainers, replicas, and back.
    let three_servers = ["roles.server=3", "modules.net.run=caller", "cluster.world_size=7"];
    let two_servers = [&pulled[..], &[BSP, &four]].concat();
    let ways = [
        two_servers.clone(),
        [&three_servers[..], &[BSP]].concat(),
        [&replicas[..], &[BSP, &four]].concat(),
        two_servers,
    ];
    goes_on(&ways.each_ref().map(Vec::as_slice), 16);
    // Where they had taken steps of their own, and have to take the same ones now.
    goes_on(&[&[ASYNC, &four], &[BSP, &four]], 12);
    goes_on(
        &[&["train.consistency=ssp", "train.staleness=3", &three], &["train.consistency=sequential", &five]],
        4,
    );
}

/// Where trainers take turns and pull, also from servers of another number.
#[test]
fn trainers_in_turns_go_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let linear =
        "modules.net.layers=[\"flatten\", { type = \"linear\", in_features = 64, out_features = 10 }]";
    let turns = [
        "modules.net.run=caller",
        "train.consistency=sequential",
        "train.epochs=2",
        "checkpoint.every_steps=9",
    ];
    let train = |name: &str, servers: u32, more: &[&str]| {
        let [servers, ranks] =
            [format!("roles.server={servers}"), format!("cluster.world_size={}", servers + 2)];
        let settings = [&[linear], &turns[..], &[&servers, &ranks]].concat();
        let more = [&["--run-dir", name], more].concat();
        assert_code(&finish(&mut spawn_with(folder.path(), None, &settings, &more)), 0);
        fs::read(folder.path().join(name).join("model.safetensors")).unwrap()
    };
    let whole = train("RUN0", 2, &[]);
    let resumed = train("RUN1", 3, &["--resume", &checkpoint(folder.path(), 0)]);
    assert!(whole == resumed, "the model is another");
}

/// Only the rows of its own samples are written by a step: nothing else may be where nobody waits for anybody.
const OWN_ROWS: &str = "modules.net.layers=[{type=\"embedding\", num_embeddings=1440, embedding_dim=1, sparse=true}, \"flatten\"]";

/// Whatever is between a step and its update when a rank goes, no sample is in the model twice, and none is missing.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn each_step_of_each_trainer_is_in_the_model_once_whoever_is_killed() {
    let ways: [&[&str]; 4] = [
        &[ASYNC],
        &["train.consistency=sequential"],
        &["train.consistency=ssp", "train.staleness=2"],
        &["train.consistency=hogwild", OWN_ROWS],
    ];
    for (round, way) in (0..).zip(ways).filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        write_job(folder.path());
        let settings =
            [way, &["train.batch_size=1", "optimizer.lr=0.25", "checkpoint.every_steps=70"]].concat();
        let launcher = start(&mut run(folder.path(), "RUN", &settings, &["--restarts", "9"]));
        // Another rank each time, with more behind it that has to be found again.
        eventually("checkpoints", || finished(folder.path()).len() > round);
        kill(ranks_of(&launcher)[round % 3], Signal::SIGKILL).unwrap();
        let output = wait(launcher);
        assert_code(&output, 0);
        assert!(stderr(&output).contains("going on from step"), "{way:?}: {}", stderr(&output));
        let rows = Tensor::read_safetensors(folder.path().join("RUN/model.safetensors")).unwrap();
        let rows = Vec::<f32>::try_from(rows[0].1.view([-1])).unwrap();
        // Half the way each: twice would be three quarters of it.
        assert!(rows.iter().all(|row| (row - 0.5).abs() < 1e-6), "{way:?}: {rows:?}");
    }
}

/// What the server saves of itself when a trainer is lost: no checkpoint was due before.
#[test]
fn what_a_server_saves_by_itself_has_each_step_once() {
    let ways: [&[&str]; 3] =
        [&[ASYNC], &["train.consistency=sequential"], &["train.consistency=ssp", "train.staleness=2"]];
    for (round, way) in ways.into_iter().enumerate().filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        write_job(folder.path());
        let more =
            ["train.batch_size=1", "optimizer.lr=0.25", "checkpoint.every_steps=100000", "log.every=1"];
        let settings = [way, &more].concat();
        let launcher = start(&mut run(folder.path(), "RUN", &settings, &["--restarts", "1"]));
        wait_for_metrics(folder.path(), |metrics| last_step(metrics) > 100);
        kill(ranks_of(&launcher)[1 + round % 2], Signal::SIGKILL).unwrap();
        let output = wait(launcher);
        assert_code(&output, 0);
        assert!(stderr(&output).contains("what was left is saved"), "{way:?}: {}", stderr(&output));
        let rows = Tensor::read_safetensors(folder.path().join("RUN/model.safetensors")).unwrap();
        let rows = Vec::<f32>::try_from(rows[0].1.view([-1])).unwrap();
        assert!(rows.iter().all(|row| (row - 0.5).abs() < 1e-6), "{way:?}: {rows:?}");
    }
}
