//! Jobs whose model is partly on a server and partly in replicas, driven by a rank of its own: real processes.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::program::*;
use nix::sys::signal::Signal;
use pstrain::job::{self, JobText, Override, Sources};
use pstrain::model::{self, Module};
use pstrain::plugin::Host;
use pstrain::runner::loader::Schedule;
use pstrain::runner::samples::Split;
use tch::{Kind, Tensor, no_grad};

const DDP_RPC: &str = include_str!("../../../jobs/ddp_rpc.toml");
const STEPS: usize = 50;
const LR: f64 = 0.05;

fn folder_with(job: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job).unwrap();
    folder
}

/// Spawns the job's four ranks and returns the trained tensors.
fn train(settings: &[&str]) -> Vec<(String, Tensor)> {
    let folder = folder_with(DDP_RPC);
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), settings)), 0);
    model::load(&model(folder.path())).unwrap()
}

/// The tutorial's model in this process, on both trainers' batches at once. Written down with libtorch's plain
/// operations: of the program it has the first parameters and the data.
fn one_process(settings: &[&str]) -> [(&'static str, Tensor); 3] {
    let overrides: Vec<Override> = settings.iter().map(|setting| Override::set(setting).unwrap()).collect();
    let file = JobText { name: "job.toml", text: DDP_RPC };
    let job = job::load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap().job;
    let training = job.training().unwrap();
    let leaves = |position: usize| {
        let cpu = [tch::Device::Cpu];
        let module = Module::build(&training.modules[position], &cpu, training.module_seed(position));
        let parameters = module.unwrap().initial_parameters().unwrap();
        parameters.into_iter().map(|tensor| tensor.set_requires_grad(true))
    };
    let mut parameters: Vec<Tensor> = leaves(0).chain(leaves(1)).collect();

    let host = Host::new(None).unwrap();
    let mut split = Split::open(&host, training, Path::new(".")).unwrap();
    let schedules: Vec<Schedule> =
        (0..2).map(|trainer| Schedule::for_training(training, split.samples(), trainer).unwrap()).collect();
    let mut batches: Vec<_> = schedules.iter().map(Schedule::batches).collect();
    for _ in 0..STEPS {
        let indices = batches.iter_mut().flat_map(|batches| batches.next().unwrap().indices);
        let samples = split.batch(&indices.collect::<Vec<u64>>()).unwrap();
        let [table, weight, bias] = &parameters[..] else { panic!("an embedding and a linear layer") };
        let there = samples.fields[0].ge(0).unsqueeze(-1);
        let rows = Tensor::embedding(table, &samples.fields[0].clamp_min(0), -1, false, false);
        let bags = (rows * there).sum_dim_intlist([-2].as_slice(), false, Kind::Float);
        let scores = bags.matmul(&weight.transpose(0, 1)) + bias;
        scores.cross_entropy_for_logits(&samples.fields[1]).backward();
        for parameter in &mut parameters {
            let mut gradient = parameter.grad();
            no_grad(|| {
                let _ = parameter.g_sub_(&(&gradient * LR));
                let _ = gradient.zero_();
            });
        }
    }
    let [table, weight, bias] = <[Tensor; 3]>::try_from(parameters).unwrap();
    [("emb.0.weight", table), ("fc.0.weight", weight), ("fc.0.bias", bias)]
}

#[track_caller]
fn assert_follows_one_process(settings: &[&str]) {
    let steps = format!("train.steps={STEPS}");
    let settings: Vec<&str> = settings.iter().copied().chain([steps.as_str()]).collect();
    let trained = train(&settings);
    assert_eq!(trained.len(), 3);
    for (name, expected) in one_process(&settings) {
        let (_, tensor) = trained.iter().find(|(found, _)| found == name).expect("PyTorch's names");
        let difference = (tensor - &expected).abs().max().double_value(&[]);
        assert!(difference <= 1e-5, "{settings:?}, {name}: {difference}");
    }
}

#[test]
fn embedding_and_replicas_follow_one_process_that_sees_both_trainers_batches() {
    assert_follows_one_process(&["train.consistency=bsp"]);
}

/// However the replicas average, whoever starts the trainers, dense or sparse.
#[test]
fn other_ways_to_the_same_step_give_the_same_numbers() {
    let bsp = "train.consistency=bsp";
    assert_follows_one_process(&[bsp, "replicas.average=all_reduce"]);
    assert_follows_one_process(&[bsp, "modules.emb.layers[0].sparse=false", "seed=7"]);
    let undriven = DDP_RPC.replace("driver = \"master\"", "");
    assert_ne!(undriven, DDP_RPC);
    let folder = folder_with(&undriven);
    let settings = [bsp, "train.steps=50"];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let driven = train(&settings);
    assert_eq!(model::load(&model(folder.path())).unwrap(), driven, "the same bits");
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn the_loss_of_the_shipped_job_falls_over_its_hundred_epochs() {
    let folder = folder_with(DDP_RPC);
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &["log.every=1"])), 0);
    let records = records(folder.path(), "step");
    for rank in [0, 1] {
        let losses: Vec<f64> = records
            .iter()
            .filter(|record| record["rank"] == rank)
            .map(|record| record["loss"].as_f64().unwrap())
            .collect();
        assert_eq!(losses.len(), 1000, "100 epochs of 10 batches");
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let (first, middle, last) = (mean(&losses[..10]), mean(&losses[490..500]), mean(&losses[990..]));
        // Each half of the run takes at least a third away.
        let falls = |from: f64, to: f64| to < from * 2.0 / 3.0;
        assert!(falls(first, middle) && falls(middle, last), "rank {rank}: {first}, {middle}, {last}");
    }
    assert_eq!(summary(folder.path())["steps"], 2000);
}

#[test]
fn the_check_tells_who_holds_what_and_who_drives() {
    let folder = folder_with(DDP_RPC);
    let output = finish(pstrain(folder.path()).args(["check", "job.toml"]));
    assert_code(&output, 0);
    let said = stdout(&output);
    let (said, _) = said.split_once("\n\nmodule").expect("modules after roles");
    insta::assert_snapshot!(said, @r"
    job ddp_rpc
      2 trainers, async, 100 epochs, batches of 8

    roles, 4 ranks
      trainer  2 ranks  0 to 1  holds fc (136 parameters, 544 bytes on each), trains
      master    1 rank  2       makes the remote modules, starts the trainers and waits for them
      ps        1 rank  3       holds emb (1,600 parameters, 6.2 KiB)
    ");
}

/// The four ranks, each a process; `more` are options of rank 0.
fn start_world(folder: &Path, more: &[&str]) -> Vec<Child> {
    let port = free_port().to_string();
    let rank = |rank: &str| {
        let mut command = pstrain(folder);
        command.args(["run", "job.toml", "--rank", rank, "--master-port", &port, "--run-dir", "RUN"]);
        command.args(["--set", "train.epochs=100000", "--set", "log.every=1"]);
        command.args(["--set", "cluster.lost_after_ms=2000"]);
        if rank == "0" {
            command.args(more);
        }
        start(&mut command)
    };
    ["0", "1", "2", "3"].map(rank).into()
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_killed_master_ends_all_others_with_its_name() {
    let folder = folder_with(DDP_RPC);
    let mut world = start_world(folder.path(), &[]);
    wait_for_metrics(folder.path(), |metrics| {
        (0..2).all(|rank| metrics.matches(&format!("\"rank\":{rank},")).count() > 200)
    });
    let master = world.remove(2);
    send_signal(&master, Signal::SIGKILL);
    let killed = Instant::now();
    for rank in world {
        let output = wait(rank);
        assert_code(&output, 3);
        let said = stderr(&output);
        assert!(said.contains("rank 2 (`master2`) was lost while driving trainer0, trainer1"), "{said}");
    }
    assert!(killed.elapsed() < Duration::from_secs(10), "the others ended after {:?}", killed.elapsed());
    wait(master);
}

/// The trainer says what failed, and the others that the master ended the job because of that trainer.
#[test]
fn the_master_passes_on_the_first_error_with_the_name_of_its_rank() {
    let (made_up, data) = (DDP_RPC.find("[data]").unwrap(), DDP_RPC.find("[loss]").unwrap());
    let from_a_file = "[data]\nplugin = \"csv\"\nroot = \".\"\ntrain = { file = \"bags.csv\", header = false, features = [0, 1], \
        feature_dtype = \"int64\", target = 2, target_dtype = \"int64\" }\n\n";
    let job = [&DDP_RPC[..made_up], from_a_file, &DDP_RPC[data..]].concat();
    let folder = folder_with(&job.replace("input = [10] ", "input = [2] "));
    // Where the data lie is each rank's own matter, and a class that the model has not shows when its turn comes.
    let bags: String = (0..800).map(|bag| format!("{},{},{}\n", bag % 80, bag % 40, bag % 8)).collect();
    fs::write(folder.path().join("bags.csv"), &bags).unwrap();
    fs::create_dir(folder.path().join("broken")).unwrap();
    let classes = bags.replace("\n79,39,7\n", "\n79,39,99\n").replacen("\n79,39,99\n", "\n79,39,7\n", 9);
    fs::write(folder.path().join("broken/bags.csv"), classes).unwrap();
    let world = start_world(folder.path(), &["--set", "data.root=broken"]);
    for (rank, child) in world.into_iter().enumerate() {
        let output = wait(child);
        assert_code(&output, 1);
        let said = stderr(&output);
        match rank {
            0 => assert!(said.contains("error: plug-in `cross_entropy`"), "{said}"),
            2 => assert!(
                said.contains("error: training on trainer0 failed: plug-in `cross_entropy`"),
                "{said}"
            ),
            _ => assert!(said.contains("rank 2 (`master2`) ended the job"), "{said}"),
        }
    }
}
