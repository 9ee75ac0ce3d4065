//! `pstrain export`: what it writes, mistakes, TorchScript.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::program::*;
use pstrain::job::{self, JobText, Resolved, Sources};
use pstrain::model::{self, Module};
use tch::{Device, Kind, Tensor};

const MLP: &str = r#"
name = "mlp"
[roles]
trainer = 1
[modules.net]
place = "trainer"
input = [1, 28, 28]
layers = [
  "flatten",
  { type = "linear", in_features = 784, out_features = 64 },
  { type = "gelu", approximate = "tanh" },
  { type = "linear", in_features = 64, out_features = 10, bias = false },
]
[data]
root = "."
plugin = "idx"
normalize = { scale = 255.0, mean = [0.1307], std = [0.3081] }
[data.train]
images = "images"
labels = "labels"
[loss]
plugin = "cross_entropy"
[optimizer]
type = "sgd"
lr = 0.1
"#;

/// A field that two modules take, each in its shape, of which the loss takes both outputs; channels; a residual.
const TWICE: &str = r#"
name = "twice"
[roles]
trainer = 1
[modules.flat]
place = "trainer"
from = "image"
input = [2, 4]
layers = [{ type = "linear", in_features = 4, out_features = 8 }]
[modules.res-net]
place = "trainer"
from = "image"
input = [2, 2, 2]
layers = [
  { type = "residual", layers = [
    { type = "conv2d", in_channels = 2, out_channels = 2, kernel_size = 3, padding = 1 },
    { type = "batch_norm2d", num_features = 2, momentum = 0.2 },
    "relu",
  ] },
]
[data]
root = "."
plugin = "own.wasm"
input = "image"
normalize = { scale = 255.0, mean = [0.1, 0.2], std = [0.3, 0.4] }
[loss]
plugin = "own.wasm"
from = ["res-net", "flat"]
[optimizer]
type = "sgd"
lr = 0.1
"#;

fn load(text: &str) -> Resolved {
    let file = JobText { name: "job.toml", text };
    job::load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap_or_else(|errors| panic!("{errors}"))
}

/// A folder with `RUN`, as a run of `job` that has learnt nothing leaves it.
fn untrained(job: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("RUN");
    fs::create_dir(&run).unwrap();
    let resolved = load(job);
    fs::write(run.join("job.toml"), &resolved.toml).unwrap();
    let training = resolved.job.training().unwrap();
    let mut state: Vec<(String, Tensor)> = Vec::new();
    for spec in &training.modules {
        let module = Module::build(spec, &[Device::Cpu], 0).unwrap();
        let drawn = module.initial_parameters().unwrap();
        let parameters = module.parameters().iter().map(|info| &info.name).zip(&drawn);
        state.extend(parameters.map(|(name, drawn)| (training.tensor_name(spec, name), drawn.copy())));
        let buffers = module.buffers().unwrap().into_iter();
        state.extend(buffers.map(|(name, buffer)| (training.tensor_name(spec, &name), buffer)));
    }
    model::save(&run.join("model.safetensors"), &state).unwrap();
    folder
}

fn export(folder: &Path, options: &[&str]) -> Output {
    finish(pstrain(folder).arg("export").args(options))
}

/// The text of the model of a job.
fn text(job: &str) -> String {
    let folder = untrained(job);
    let output = export(folder.path(), &["RUN", "--to", "python"]);
    assert_code(&output, 0);
    assert_eq!(
        stdout(&output),
        "wrote RUN/export/model.py, RUN/export/model.safetensors\n\n  \
         cd RUN/export && python3 -c 'import model; print(model.load())'\n"
    );
    let weights = ["RUN", "RUN/export"].map(|of| fs::read(folder.path().join(of).join("model.safetensors")));
    let [ours, exported] = weights.map(Result::unwrap);
    assert!(ours == exported);
    fs::read_to_string(folder.path().join("RUN/export/model.py")).unwrap()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn of_jobs(name: &str) -> String {
    fs::read_to_string(repository().join("jobs").join(name)).unwrap()
}

#[test]
fn layers_that_are_called_by_their_positions_are_a_plain_list() {
    insta::assert_snapshot!(text(MLP), @r#"
    """The model of the job `mlp`, which pstrain has trained.

        from model import load

        model = load()  # with the weights of model.safetensors, in eval mode
        model(input)

    `Model.forward` takes, each with the dimension of the batch in front:

        input: float32 [1, 28, 28], through normalize()

    and gives what the loss `cross_entropy` took:

        net: float32 [10]
    """

    from torch import nn


    class Model(nn.Sequential):
        def __init__(self):
            super().__init__(
                nn.Flatten(),
                nn.Linear(784, 64),
                nn.GELU(approximate="tanh"),
                nn.Linear(64, 10, bias=False),
            )

        def forward(self, input):
            return super().forward(input)


    def normalize(x):
        """What a batch went through in training: as the data have it, in the shape that `Model.forward` takes."""
        return (x / 255.0 - 0.1307) / 0.3081


    def load(folder="."):
        """The model with the weights that are in `folder`, in eval mode."""
        from safetensors.torch import load_file

        model = Model()
        weights = load_file(f"{folder}/model.safetensors")
        model.load_state_dict(weights, strict=True)
        return model.eval()
    "#);
}

#[test]
fn layers_with_names_are_attributes() {
    insta::assert_snapshot!(text(&of_jobs("digits_ps.toml")));
}

#[test]
fn modules_that_take_from_one_another_are_a_forward() {
    insta::assert_snapshot!(text(&of_jobs("two_tower.toml")));
}

#[test]
fn a_field_may_be_taken_in_several_shapes() {
    insta::assert_snapshot!(text(TWICE));
}

/// What is said, and the exit code.
fn mistake(folder: &Path, options: &[&str]) -> String {
    let output = export(folder, options);
    assert_eq!(stdout(&output), "");
    format!("{}exit code {}", stderr(&output), output.status.code().unwrap())
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let folder = untrained(MLP);
    let folder = folder.path();
    insta::assert_snapshot!(mistake(folder, &["runs/mlp", "--to", "python"]), @r"
    error: there is no folder `runs/mlp`
      hint: name the folder of a run: runs/NAME-TIME, or what --run-dir named
    exit code 2
    ");
    fs::create_dir(folder.join("empty")).unwrap();
    insta::assert_snapshot!(mistake(folder, &["empty", "--to", "python"]), @r"
    error: `empty` is not a run folder: it has no job.toml
      hint: name the folder of a run: runs/NAME-TIME, or what --run-dir named
    exit code 2
    ");
    insta::assert_snapshot!(mistake(folder, &["RUN", "--to", "onnx"]), @r"
    error: invalid value 'onnx' for '--to <FORMAT>'
      [possible values: python]

    For more information, try '--help'.
    exit code 2
    ");
    insta::assert_snapshot!(mistake(folder, &["RUN", "--to", "python", "--best"]), @r"
    error: the run `RUN` has no model-best.safetensors
      hint: a job with eval.best keeps it; without --best the last model is taken
    exit code 2
    ");
    insta::assert_snapshot!(mistake(folder, &["RUN", "--to", "python", "--out", "RUN", "--force"]), @r"
    error: `RUN/model.safetensors` is what is to be exported
      hint: name another folder with --out
    exit code 2
    ");
    let job = folder.join("RUN/job.toml");
    let text = fs::read_to_string(&job).unwrap();
    let other = text
        .replace("out_features = 64", "out_features = 32")
        .replace("in_features = 64", "in_features = 32");
    assert_ne!(text, other);
    fs::write(&job, other).unwrap();
    insta::assert_snapshot!(mistake(folder, &["RUN", "--to", "python"]), @r"
    error: `RUN/model.safetensors` is not of the job beside it: `1.weight` is [64, 784] of float32, where [32, 784] of float32 is wanted (and 2 more)
      hint: the model was another when it was saved
    exit code 2
    ");
    fs::remove_file(folder.join("RUN/model.safetensors")).unwrap();
    insta::assert_snapshot!(mistake(folder, &["RUN", "--to", "python"]), @r"
    error: the run `RUN` has no model.safetensors
      hint: a run writes it when it ends: is this one still going on, or did it end early?
    exit code 2
    ");
}

#[test]
fn files_that_are_there_are_written_over_with_force_alone() {
    let folder = untrained(MLP);
    let folder = folder.path();
    let file = folder.join("there/model.py");
    fs::create_dir(folder.join("there")).unwrap();
    fs::write(&file, "mine").unwrap();
    let options = ["RUN", "--to", "python", "--out", "there"];
    insta::assert_snapshot!(mistake(folder, &options), @r"
    error: `there/model.py` exists
      hint: name another folder with --out, or write over it with --force
    exit code 2
    ");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert_code(&export(folder, &[&options[..], &["--force"]].concat()), 0);
    assert!(fs::read_to_string(&file).unwrap().contains("class Model(nn.Sequential)"));
}

#[test]
fn a_name_that_pytorch_keeps_for_itself_is_refused() {
    let layer = "in_features = 784, out_features = 64";
    let folder = untrained(&MLP.replace(layer, &format!("{layer}, name = \"training\"")));
    insta::assert_snapshot!(mistake(folder.path(), &["RUN", "--to", "python"]), @r"
    error: module `net`: `training` is the name of a part of it, and every torch.nn.Module keeps something else under that name
      hint: give it another name, in the job and in the names of the saved tensors
    exit code 2
    ");
}

#[test]
fn the_best_weights_are_taken_where_they_are_asked_for() {
    let folder = untrained(MLP);
    let run = folder.path().join("RUN");
    let mut best = model::load(&run.join("model.safetensors")).unwrap();
    best.iter_mut().for_each(|(_, tensor)| *tensor = tensor.zeros_like());
    model::save(&run.join("model-best.safetensors"), &best).unwrap();
    assert_code(&export(folder.path(), &["RUN", "--to", "python", "--best"]), 0);
    let [best, exported] =
        ["model-best.safetensors", "export/model.safetensors"].map(|name| fs::read(run.join(name)).unwrap());
    assert!(best == exported);
}

/// A run of a few steps of TorchScript, alone or before layers.
fn with_script(folder: &Path, alone: bool) -> PathBuf {
    let text = of_jobs("torchscript.toml").replace("jobs/digits_net.pt", "net.pt");
    let (from, to) = match alone {
        true => ("output = [10] ", "output = [10]\nnon_persistent_buffers = [\"norm1.running_mean\"] "),
        false => (
            "\n[data]\n",
            "\n[modules.head]\nplace = \"server\"\nlayers = [{ type = \"linear\", in_features = 10, out_features = 10 }]\n\n[data]\n",
        ),
    };
    assert!(text.contains(from));
    fs::copy(repository().join("jobs/digits_net.pt"), folder.join("net.pt")).unwrap();
    fs::write(folder.join("job.toml"), text.replacen(from, to, 1)).unwrap();
    let mut settings = vec!["train.steps=3", "train.epochs=1"];
    settings.extend((!alone).then_some("train.forward=[\"net\",\"head\"]"));
    assert_code(&finish(&mut spawn(folder, Some("job.toml"), &settings)), 0);
    folder.join("RUN")
}

#[test]
fn torchscript_is_copied_beside_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let run = with_script(folder.path(), false);
    assert_code(&export(folder.path(), &["RUN", "--to", "python"]), 0);
    let text = fs::read_to_string(run.join("export/model.py")).unwrap();
    assert!(text.contains("self.net = torch.jit.load(f\"{folder}/net.pt\", map_location=\"cpu\")"), "{text}");
    let script = folder.path().join("net.pt");
    assert!(fs::read(&script).unwrap() == fs::read(run.join("export/net.pt")).unwrap());
    fs::remove_file(script).unwrap();
    let said = mistake(folder.path(), &["RUN", "--to", "python", "--force"]);
    insta::assert_snapshot!(said.replace(folder.path().to_str().unwrap(), "HERE"), @r"
    error: the TorchScript `net.pt` of the job cannot be read: No such file or directory (os error 2)
      hint: the path is relative to the current folder: this one is HERE/net.pt
    exit code 2
    ");
}

#[test]
#[ignore = "needs a Python with PyTorch: `make interop` runs it"]
fn torchscript_gives_the_same_outputs_in_python() {
    for alone in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let run = with_script(folder.path(), alone);
        assert_code(&export(folder.path(), &["RUN", "--to", "python"]), 0);
        let text = fs::read_to_string(run.join("job.toml")).unwrap();
        let script = folder.path().join("net.pt").display().to_string();
        let resolved = load(&text.replace("\"net.pt\"", &format!("{script:?}")));
        let input = (Tensor::arange(128, (Kind::Float, Device::Cpu)) * 0.37).sin().view([2, 1, 8, 8]);
        let mut output = input.shallow_clone();
        for spec in &resolved.job.training().unwrap().modules {
            let module = Module::build(spec, &[Device::Cpu], 0).unwrap();
            let params = module.start_from(&run.join("model.safetensors").into()).unwrap();
            output = module.forward(&params, &[output], model::Mode::EVAL).unwrap();
        }
        let called = [("input0".to_owned(), input), ("output".to_owned(), output)];
        model::save(&run.join("export/called.safetensors"), &called).unwrap();
        assert_code(&finish(interop_python("tests/data/export.py").arg(run.join("export"))), 0);
    }
}
