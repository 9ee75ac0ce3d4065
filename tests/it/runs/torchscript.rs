//! Jobs that train TorchScript, and jobs that start from weights: real processes.

use std::fs;
use std::path::Path;

use crate::program::*;
use crate::support::runs_by_default;
use pstrain::job::{self, JobText, Override, Sources};
use pstrain::model;
use pstrain::plugin::Host;
use pstrain::runner::loader::Schedule;
use pstrain::runner::samples::Split;
use pstrain::runner::{builtin, one_process::OneProcess};
use tch::{Kind, Tensor, no_grad};

const JOB: &str = include_str!("../../../jobs/torchscript.toml");
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/torchscript");
const STEPS: u64 = 20;
const LR: f64 = 0.1;
const MOMENTUM: f64 = 0.5;

/// A folder with the shipped job and the modules it and these tests use.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("jobs")).unwrap();
    fs::write(folder.path().join("job.toml"), JOB).unwrap();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/digits_net.pt");
    fs::copy(shipped, folder.path().join("jobs/digits_net.pt")).unwrap();
    for name in ["mlp", "nothing", "pickle", "wide", "frozen", "loops", "rows", "idle", "normed", "resnet18"]
    {
        fs::copy(format!("{DATA}/{name}.pt"), folder.path().join(format!("{name}.pt"))).unwrap();
    }
    folder
}

const MLP: [&str; 6] = [
    "modules.net.torchscript=mlp.pt",
    "train.consistency=bsp",
    "train.steps=20",
    "optimizer.type=sgd",
    "optimizer.lr=0.1",
    "optimizer.momentum=0.5",
];

fn loaded(folder: &Path) -> Vec<(String, Tensor)> {
    model::load(&model(folder)).unwrap()
}

fn named<'a>(tensors: &'a [(String, Tensor)], name: &str) -> &'a Tensor {
    &tensors.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// The same perceptron in this process on both trainers' batches at once, written down with libtorch's plain operations:
/// of the program it has the order of the samples. Its start is what tch's own loader finds in the file.
fn reference() -> Vec<(String, Tensor)> {
    let overrides: Vec<Override> = MLP.iter().map(|setting| Override::set(setting).unwrap()).collect();
    let file = JobText { name: "job.toml", text: JOB };
    let job = job::load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap().job;
    let training = job.training().unwrap();
    let module = tch::CModule::load(format!("{DATA}/mlp.pt")).unwrap();
    let start = module.named_parameters().unwrap();
    let mut parameters: Vec<(String, Tensor, Tensor)> = start
        .into_iter()
        .map(|(name, tensor)| {
            let leaf = tensor.detach().copy().set_requires_grad(true);
            (name, leaf, tensor.detach().zeros_like())
        })
        .collect();
    let root = builtin::unpack("digits").unwrap();
    let host = Host::new(None).unwrap();
    let mut split = Split::open(&host, training, &root).unwrap();
    let schedules: Vec<Schedule> =
        (0..2).map(|trainer| Schedule::for_training(training, split.samples(), trainer).unwrap()).collect();
    let mut batches: Vec<_> = schedules.iter().map(Schedule::batches).collect();
    for _ in 0..STEPS {
        let indices = batches.iter_mut().flat_map(|batches| batches.next().unwrap().indices);
        let samples = split.batch(&indices.collect::<Vec<u64>>()).unwrap();
        let get = |wanted: &str| &parameters.iter().find(|(name, ..)| name == wanted).unwrap().1;
        let x = samples.fields[0].flatten(1, -1);
        let x = (x.matmul(&get("fc1.weight").transpose(0, 1)) + get("fc1.bias")).relu();
        let scores = x.matmul(&get("fc2.weight").transpose(0, 1)) + get("fc2.bias");
        scores.cross_entropy_for_logits(&samples.fields[1]).backward();
        for (_, parameter, velocity) in &mut parameters {
            let mut gradient = parameter.grad();
            no_grad(|| {
                *velocity = &*velocity * MOMENTUM + &gradient;
                let _ = parameter.g_sub_(&(&*velocity * LR));
                let _ = gradient.zero_();
            });
        }
    }
    parameters.into_iter().map(|(name, parameter, _)| (name, parameter.detach())).collect()
}

#[track_caller]
fn assert_close(trained: &[(String, Tensor)], reference: &[(String, Tensor)]) {
    assert_eq!(trained.len(), reference.len());
    for (name, expected) in reference {
        let difference = (named(trained, name) - expected).abs().max().double_value(&[]);
        assert!(difference <= 1e-5, "{name}: {difference}");
    }
}

#[test]
fn two_trainers_of_a_remote_script_follow_one_process() {
    let folder = folder();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &MLP)), 0);
    assert_close(&loaded(folder.path()), &reference());
}

#[test]
fn replicas_of_a_script_follow_one_process() {
    for average in ["ddp", "all_reduce"] {
        let folder = folder();
        let average = format!("replicas.average={average}");
        let own = ["roles.server=0", "cluster.world_size=2", "modules.net.place=trainer", average.as_str()];
        let job = JOB.replace("server = 1\n", "").replace("place = \"server\"", "place = \"trainer\"");
        fs::write(folder.path().join("job.toml"), job).unwrap();
        let settings: Vec<&str> = MLP.iter().chain(&own[1..]).copied().collect();
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        assert_close(&loaded(folder.path()), &reference());
    }
}

/// tests/data/ddp.py is the same with PyTorch's own DistributedDataParallel: batch normalisations and all.
#[test]
fn replicas_of_a_script_follow_distributed_data_parallel() {
    follows_ddp("normed", "ddp");
}

/// torchvision's, a sixteenth as wide, with its twenty batch normalisations one behind another.
#[test]
fn replicas_of_a_resnet18_follow_distributed_data_parallel() {
    follows_ddp("resnet18", "ddp_resnet18");
}

#[track_caller]
fn follows_ddp(module: &str, figures: &str) {
    let folder = folder();
    let job = JOB.replace("server = 1\n", "").replace("place = \"server\"", "place = \"trainer\"");
    fs::write(folder.path().join("job.toml"), job).unwrap();
    let settings = [
        "cluster.world_size=2",
        &format!("modules.net.torchscript={module}.pt"),
        "train.consistency=bsp",
        "data.shuffle=false",
        "optimizer.type=sgd",
        "optimizer.lr=0.05",
        "optimizer.momentum=0.9",
        "train.batch_size=8",
        "train.steps=3",
    ];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let torchs = format!("{}/tests/data/{figures}.safetensors", env!("CARGO_MANIFEST_DIR"));
    assert_close(&loaded(folder.path()), &model::load(Path::new(&torchs)).unwrap());
}

/// `nn.LSTM` computes with a list of its parameters. That its gradients are PyTorch's is for the tests of modules.
#[test]
fn a_recurrent_script_is_trained_wherever_it_is() {
    let rows =
        ["modules.net.torchscript=rows.pt", "train.consistency=bsp", "train.steps=5", "optimizer.type=sgd"];
    let train = |job: &str, more: &[&str]| {
        let folder = folder();
        fs::write(folder.path().join("job.toml"), job).unwrap();
        let settings: Vec<&str> = rows.iter().chain(more).copied().collect();
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        loaded(folder.path())
    };
    let remote = train(JOB, &[]);
    let start = tch::CModule::load(format!("{DATA}/rows.pt")).unwrap().named_parameters().unwrap();
    for (name, tensor) in &start {
        let moved = (named(&remote, name) - tensor).abs().max().double_value(&[]);
        assert!(moved > 1e-6, "{name} stays as it was");
    }
    assert_close(&train(JOB, &["modules.net.run=caller"]), &remote);
    let replicas = JOB.replace("server = 1\n", "").replace("place = \"server\"", "place = \"trainer\"");
    for average in [&[][..], &["replicas.find_unused_parameters=true"], &["replicas.average=all_reduce"]] {
        let settings: Vec<&str> = ["cluster.world_size=2"].iter().chain(average).copied().collect();
        assert_close(&train(&replicas, &settings), &remote);
    }
}

/// And it stays as it was, as with PyTorch's optimizers, weight decay and all.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_parameter_that_no_gradient_reaches_is_named_in_the_first_steps() {
    let replicas = JOB.replace("server = 1\n", "").replace("place = \"server\"", "place = \"trainer\"");
    let all_reduce = ["cluster.world_size=2", "replicas.average=all_reduce", "train.consistency=bsp"];
    let ddp = ["cluster.world_size=2", "replicas.find_unused_parameters=true", "train.consistency=bsp"];
    let alone = ["cluster.world_size=1", "replicas.average=all_reduce"];
    // One trainer has nothing to average, so no Reducer is there to want it.
    let alone_with_ddp = ["cluster.world_size=1"];
    let hosts = ["roles.server=2", "cluster.world_size=4", "train.consistency=bsp"];
    let start = tch::CModule::load(format!("{DATA}/idle.pt")).unwrap().named_parameters().unwrap();
    for (job, more) in [
        (JOB, &[][..]),
        (JOB, &["modules.net.run=caller"]),
        (JOB, &hosts),
        (&replicas, &all_reduce),
        (&replicas, &alone),
        (&replicas, &alone_with_ddp),
        (&replicas, &ddp),
    ] {
        let folder = folder();
        fs::write(folder.path().join("job.toml"), job).unwrap();
        let settings = ["modules.net.torchscript=idle.pt", "train.steps=12", "optimizer.weight_decay=0.1"];
        let settings: Vec<&str> = settings.iter().chain(more).copied().collect();
        let output = finish(&mut spawn(folder.path(), Some("job.toml"), &settings));
        assert_code(&output, 0);
        let said = stderr(&output);
        let warned = "module `net`: parameters `idle.weight` and `idle.bias` have had no gradient in its first 10 steps";
        assert!(said.contains(warned), "{more:?}: {said}");
        let trained = loaded(folder.path());
        for name in ["idle.weight", "idle.bias"] {
            assert_eq!(named(&trained, name), named(&start, name), "{more:?}: {name}");
        }
    }
}

/// Dropout, batch normalisation, buffers: a run under `bsp` is a function of the job.
#[test]
fn the_shipped_job_under_bsp_gives_the_same_bits_again() {
    let run = || {
        let folder = folder();
        let settings = ["train.consistency=bsp", "train.steps=15", "cluster.world_size=4"];
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        loaded(folder.path())
    };
    let (first, second) = (run(), run());
    assert_eq!(named(&first, "norm1.num_batches_tracked").int64_value(&[]), 45, "15 steps of 3 trainers");
    assert_eq!(first, second);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn the_shipped_job_learns_under_every_consistency() {
    for (settings, least) in [
        (vec![], 0.9),
        (vec!["train.consistency=bsp", "train.scale_lr=true"], 0.9),
        (vec!["train.consistency=ssp", "train.staleness=4"], 0.9),
        (vec!["train.consistency=hogwild", "optimizer.lr=0.002"], 0.85),
    ]
    .into_iter()
    .filter(|_| runs_by_default())
    {
        let folder = folder();
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        let accuracy = summary(folder.path())["eval"]["accuracy"].as_f64().unwrap();
        assert!(accuracy > least, "{settings:?}: {accuracy}");
    }
}

#[test]
fn ranks_that_are_started_one_by_one_train_a_script_too() {
    let folder = folder();
    let port = free_port().to_string();
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let rank = rank.to_string();
            let mut command = pstrain(folder.path());
            command.args(["run", "job.toml", "--rank", &rank, "--master-port", &port]);
            command.args(["--set", "train.steps=30"]);
            if rank == "0" {
                command.args(["--run-dir", "RUN"]);
            }
            start(&mut command)
        })
        .collect();
    for rank in ranks {
        assert_code(&wait(rank), 0);
    }
    assert_eq!(summary(folder.path())["steps"], 60);
}

/// The model is one of layers or of TorchScript; with the prefix that a job of several modules writes, too.
#[test]
fn the_model_of_one_run_starts_the_next() {
    let folder = folder();
    let settings = ["train.consistency=bsp", "train.steps=5"];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let first = loaded(folder.path());
    fs::rename(model(folder.path()), folder.path().join("start.safetensors")).unwrap();
    fs::remove_dir_all(folder.path().join("RUN")).unwrap();
    // A learning rate of nearly nothing keeps the parameters, so that they can be compared.
    let settings = ["modules.net.weights=start.safetensors", "train.steps=1", "optimizer.lr=1e-30"];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let second = loaded(folder.path());
    assert_eq!(named(&first, "conv1.weight"), named(&second, "conv1.weight"));
    let batches = |tensors| named(tensors, "norm1.num_batches_tracked").int64_value(&[]);
    assert_eq!(batches(&second), batches(&first) + 2, "the buffers go on, too");
}

#[test]
fn buffers_that_pytorch_would_not_save_are_not_in_the_saved_model() {
    let folder = folder();
    let settings = ["train.steps=1", "modules.net.non_persistent_buffers=[\"norm1.running_mean\"]"];
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    let saved: Vec<String> = loaded(folder.path()).into_iter().map(|(name, _)| name).collect();
    assert!(!saved.contains(&"norm1.running_mean".to_owned()), "{saved:?}");
    assert!(saved.contains(&"norm1.running_var".to_owned()), "{saved:?}");
}

#[test]
fn replicas_start_from_weights_and_go_on_as_one_process_does() {
    let folder = tempfile::tempdir().unwrap();
    let layers = r#"layers = ["flatten", { type = "linear", name = "fc1", in_features = 64, out_features = 32 }, "relu",
  { type = "linear", name = "fc2", in_features = 32, out_features = 10 }]
weights = "mlp.safetensors""#;
    let job = JOB
        .replace("server = 1\n", "")
        .replace("place = \"server\"", "place = \"trainer\"")
        .replace("torchscript = \"jobs/digits_net.pt\"", layers)
        .replace("output = [10]", "");
    fs::write(folder.path().join("job.toml"), &job).unwrap();
    // As safetensors.torch.save_file(torch.jit.load("mlp.pt").state_dict()) would.
    let script = tch::CModule::load(format!("{DATA}/mlp.pt")).unwrap();
    model::save(&folder.path().join("mlp.safetensors"), &script.named_parameters().unwrap()).unwrap();
    let own = ["cluster.world_size=2"];
    let settings: Vec<&str> = MLP[1..].iter().chain(&own).copied().collect();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
    assert_close(&loaded(folder.path()), &reference());
}

#[test]
fn one_process_trains_a_script_as_the_ranks_do() {
    let path = format!("{DATA}/mlp.pt");
    let file = format!("modules.net.torchscript={path}");
    let overrides: Vec<Override> =
        [file.as_str()].iter().chain(&MLP[1..]).map(|setting| Override::set(setting).unwrap()).collect();
    let text = JobText { name: "job.toml", text: JOB };
    let job = job::load(&Sources { file: text, env: Vec::new(), overrides: &overrides }).unwrap().job;
    let training = job.training().unwrap();
    let root = builtin::unpack("digits").unwrap();
    let host = Host::new(None).unwrap();
    let mut split = Split::open(&host, training, &root).unwrap();
    let mut one = OneProcess::new(training, &host, &[tch::Device::Cpu]).unwrap();
    let schedules: Vec<Schedule> =
        (0..2).map(|trainer| Schedule::for_training(training, split.samples(), trainer).unwrap()).collect();
    let mut batches: Vec<_> = schedules.iter().map(Schedule::batches).collect();
    for step in 0..STEPS {
        let indices = batches.iter_mut().flat_map(|batches| batches.next().unwrap().indices);
        one.step(&split.batch(&indices.collect::<Vec<u64>>()).unwrap(), step).unwrap();
    }
    assert_close(&one.parameters(), &reference());
}

#[test]
fn the_check_tells_what_it_knows_of_a_script() {
    let folder = folder();
    let output = finish(pstrain(folder.path()).args(["check", "job.toml"]));
    assert_code(&output, 0);
    insta::assert_snapshot!(stdout(&output));
    let output = finish(pstrain(folder.path()).args(["check", "job.toml", "--json"]));
    let plan: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    // sum(p.numel() for p in torch.jit.load("jobs/digits_net.pt").parameters()), of torch 2.11.0
    assert_eq!(plan["modules"][0]["parameters"], 1946);
}

#[test]
fn the_check_refuses_scripts_that_will_not_do() {
    let folder = folder();
    let said = |settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let output = finish(pstrain(folder.path()).args(["check", "job.toml"]).args(settings));
        assert_code(&output, 2);
        stderr(&output)
    };
    let empty = said(&["modules.net.run=caller", "modules.net.torchscript=nothing.pt"]);
    let wide = said(&["modules.net.run=caller", "modules.net.torchscript=wide.pt"]);
    let pickled = said(&["modules.net.torchscript=pickle.pt"]);
    let frozen = said(&["modules.net.torchscript=frozen.pt"]);
    insta::assert_snapshot!(format!("{empty}\n{wide}\n{pickled}\n{frozen}"));
}

/// What a script holds is known when it is loaded.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_group_that_has_nothing_of_a_script_is_told_before_training() {
    let folder = folder();
    let settings = |groups: &'static str| {
        [&MLP[..], &[groups]].concat().into_iter().flat_map(|setting| ["--set", setting]).collect::<Vec<_>>()
    };
    let good = settings("optimizer.groups=[{match=[\"*.bias\"], lr=1e-30}]");
    assert_code(&finish(pstrain(folder.path()).args(["check", "job.toml"]).args(&good)), 0);
    let slip =
        settings("optimizer.groups=[{match=[\"*.weight\"], lr=1e-30}, {match=[\"*.bais\"], lr=1e-30}]");
    let output = finish(pstrain(folder.path()).args(["check", "job.toml"]).args(&slip));
    assert_code(&output, 2);
    insta::assert_snapshot!(stderr(&output), @r#"
    error: job `job.toml`: `optimizer.groups[1]` has a pattern that no parameter matches: "*.bais"
      hint: the 4 parameters are `net.fc1.weight` to `net.fc2.bias`
    "#);
    let output = finish(spawn(folder.path(), Some("job.toml"), &[]).args(&slip));
    assert_code(&output, 2);
    let said = stderr(&output);
    let said = said
        .lines()
        .filter(|line| line.contains("error") || line.contains("hint"))
        .collect::<Vec<_>>()
        .join("\n");
    insta::assert_snapshot!(said, @r#"
    [server0] error: `optimizer.groups[1]` has a pattern that no parameter matches: "*.bais"
    [server0]   hint: the 4 parameters are `net.fc1.weight` to `net.fc2.bias`
    "#);
    assert!(!model(folder.path()).exists());
    // With what the group says, where it has something.
    let output = finish(spawn(folder.path(), Some("job.toml"), &[]).args(&good));
    assert_code(&output, 0);
    let start = tch::CModule::load(format!("{DATA}/mlp.pt")).unwrap().named_parameters().unwrap();
    let trained = loaded(folder.path());
    for (name, before) in &start {
        assert_eq!(named(&trained, name).equal(before), name.ends_with("bias"), "{name}");
    }
}

#[test]
fn a_script_that_loops_for_ever_does_not_hold_the_check_up() {
    let folder = folder();
    let mut command = pstrain(folder.path());
    command.args(["check", "job.toml", "--set", "modules.net.torchscript=loops.pt", "--script-timeout", "1"]);
    let output = finish(&mut command);
    assert_code(&output, 2);
    insta::assert_snapshot!(stderr(&output), @r#"
    error: job `job.toml`: `modules.net.torchscript` = "loops.pt": a batch of two samples has not come through it within 1s
      hint: does its code loop for ever? `pstrain check --script-timeout SECONDS` waits longer
    "#);
}

/// What libtorch would tell is left out, and a note says so.
#[test]
fn the_check_does_without_libtorch() {
    let folder = folder();
    let nowhere = folder.path().join("nowhere");
    let output = finish(pstrain(folder.path()).args(["check", "job.toml"]).env("PSTRAIN_LIBTORCH", nowhere));
    assert_code(&output, 0);
    let said = stdout(&output);
    assert!(said.contains("holds net (parameters not known yet)"), "{said}");
    assert!(said.contains("note: module net is TorchScript: its parameters are not counted"), "{said}");
    let warned = stderr(&output);
    assert!(warned.starts_with("warning: libtorch 2.11.0 was not found"), "{warned}");
}

/// Before anything runs, and without libtorch.
#[test]
fn the_check_finds_files_that_are_missing_or_do_not_fit() {
    let folder = folder();
    fs::write(folder.path().join("text.pt"), "no zip").unwrap();
    let said = |job: &str, settings: &[&str]| {
        let mut command = pstrain(folder.path());
        command.args(["check", job]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let output = finish(&mut command);
        assert_code(&output, 2);
        let here = folder.path().canonicalize().unwrap();
        stderr(&output)
            .replace(&here.display().to_string(), "HERE")
            .replace(&folder.path().display().to_string(), "HERE")
    };
    let missing = said("job.toml", &["modules.net.torchscript=no.pt", "modules.net.weights=no.safetensors"]);
    let foreign = said("job.toml", &["modules.net.torchscript=text.pt", "modules.net.weights=mlp.pt"]);
    let start = [
        ("conv1.weight", vec![32, 1, 3, 3]),
        ("conv1.bias", vec![32]),
        ("conv2.weight", vec![32, 32, 5, 5]),
        ("conv2.bias", vec![32]),
        ("conv3.weight", vec![64, 32, 3, 3]),
        ("conv3.bais", vec![64]),
        ("fc.weight", vec![10, 256]),
        ("fc.bias", vec![10]),
    ];
    let tensor = |(name, shape): &(&str, Vec<i64>)| {
        let kind = if *name == "fc.bias" { Kind::Double } else { Kind::Float };
        ((*name).to_owned(), Tensor::zeros(shape.as_slice(), (kind, tch::Device::Cpu)))
    };
    let tensors: Vec<_> = start.iter().map(tensor).collect();
    model::save(&folder.path().join("start.safetensors"), &tensors).unwrap();
    fs::write(folder.path().join("layers.toml"), include_str!("../../../jobs/digits_ps.toml")).unwrap();
    let unlike = said("layers.toml", &["modules.net.weights=start.safetensors"]);
    insta::assert_snapshot!(format!("{missing}\n{foreign}\n{unlike}"));
}

/// What only libtorch can tell ends the job when the module is made, with the exit code that `check` has for it.
#[test]
fn a_script_that_will_not_do_ends_the_job_with_its_reason() {
    let replicas = JOB.replace("server = 1\n", "").replace("place = \"server\"", "place = \"trainer\"");
    let bsp = ["cluster.world_size=2", "train.consistency=bsp"];
    for (job, settings) in [(JOB, &[][..]), (JOB, &["modules.net.run=caller"]), (&replicas, &bsp)] {
        let folder = folder();
        fs::write(folder.path().join("job.toml"), job).unwrap();
        let settings: Vec<&str> =
            ["modules.net.torchscript=pickle.pt"].iter().chain(settings).copied().collect();
        let output = finish(&mut spawn(folder.path(), Some("job.toml"), &settings));
        assert_code(&output, 2);
        let said = stderr(&output);
        assert!(said.contains("pickle.pt: it has no TorchScript"), "{said}");
        assert!(said.contains("hint: torch.save writes no code"), "{said}");
    }
}
