//! TorchScript as a module: PyTorch's numbers, its names, and what is said of files that will not do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::{Close, figures};
use pstrain::job::{MadeOf, ModuleSpec, NamedOutput, TorchScript};
use pstrain::layers::{InputDtype, Signal};
use pstrain::model::{Mode, Module, Statistics, load, save};
use tch::{Device, Kind, Tensor};

/// Sums of the same products in another order.
const CLOSE: f64 = 1e-6;

fn spec_of(file: &Path, input: &[i64], output: &[i64]) -> ModuleSpec {
    ModuleSpec {
        made_of: torchscript(file, Signal::new(output, InputDtype::Float32)),
        ..crate::model::spec(input, Vec::new())
    }
}

fn torchscript(file: &Path, signal: Signal) -> MadeOf {
    let outputs = vec![NamedOutput { name: None, signal }];
    MadeOf::TorchScript(TorchScript { file: file.into(), outputs, non_persistent: Vec::new() })
}

fn file(name: &str) -> PathBuf {
    figures(&format!("torchscript/{name}.pt"))
}

fn spec(name: &str) -> ModuleSpec {
    let size = if name == "mlp" { ([1, 8, 8].as_slice(), 10) } else { ([6].as_slice(), 4) };
    spec_of(&file(name), size.0, &[size.1])
}

/// Modules of `torchscript.py` that take samples of shape `input` and give 3 or 4 values.
fn small(name: &str) -> ModuleSpec {
    let (input, output): (&[i64], i64) = if name == "recurrent" { (&[5, 4], 3) } else { (&[4], 4) };
    spec_of(&file(name), input, &[output])
}

fn build(name: &str) -> Module {
    Module::build(&spec(name), &[Device::Cpu], 1).unwrap()
}

/// As in torchscript.py.
fn numbers(shape: &[i64], step: i64) -> Tensor {
    let count: i64 = shape.iter().product();
    let cycle = (Tensor::arange(count, (Kind::Int64, Device::Cpu)) * step).remainder(101);
    (cycle.to_kind(Kind::Float) / 50.0 - 1.0).reshape(shape)
}

fn leaves(params: &[Tensor]) -> Vec<Tensor> {
    params.iter().map(|param| param.detach().set_requires_grad(true)).collect()
}

fn torchs() -> BTreeMap<String, Tensor> {
    load(&figures("torchscript.safetensors")).unwrap().into_iter().collect()
}

#[test]
fn forward_gradients_and_buffers_are_pytorchs() {
    let (module, torchs) = (build("everything"), torchs());
    let params = module.initial_parameters().unwrap();
    let own = leaves(&params);
    let x = numbers(&[5, 6], 37).set_requires_grad(true);
    let y = module.forward(&own, &[x.shallow_clone()], Mode::train(0)).unwrap();
    y.assert_close(&torchs["train/output"], CLOSE, "output");
    let inputs: Vec<Tensor> = own.iter().chain([&x]).map(Tensor::shallow_clone).collect();
    let loss = y.square().sum(Kind::Float);
    let gradients = c10d::engine::grad(&[loss], &inputs, &[Tensor::from(1f32)], false).unwrap();
    let names = module.parameters().iter().map(|info| info.name.as_str()).chain(["input"]);
    for (name, gradient) in names.zip(gradients) {
        gradient.unwrap().assert_close(&torchs[&format!("train/{name}.grad")], CLOSE, name);
    }
    let _ = module.forward(&params, &[numbers(&[5, 6], 53)], Mode::train(1)).unwrap();
    for (name, buffer) in module.buffers().unwrap() {
        buffer.assert_close(&torchs[&format!("after/{name}")], CLOSE, &name);
    }
    let y = module.forward(&params, &[numbers(&[5, 6], 19)], Mode::EVAL).unwrap();
    y.assert_close(&torchs["eval/output"], CLOSE, "evaluated");
}

/// Compares a training forward from the file's own start, and the gradients of its output's square, with PyTorch's.
fn assert_trains_as_pytorch(spec: ModuleSpec, name: &str, x: &Tensor) -> Arc<Module> {
    let torchs = torchs();
    let module = Arc::new(Module::build(&spec, &[Device::Cpu], 1).unwrap());
    let own = leaves(&module.initial_parameters().unwrap());
    let (outputs, seen) = module.record(&own, &[x.shallow_clone()], Mode::train(0)).unwrap();
    // Before the backward, as where a module is trained.
    module.fold(&seen).unwrap();
    let y = &outputs[0];
    y.assert_close(&torchs[&format!("{name}/output")], CLOSE, "output");
    let loss = y.square().sum(Kind::Float);
    let gradients = c10d::engine::grad(&[loss], &own, &[Tensor::from(1f32)], false).unwrap();
    for (info, gradient) in module.parameters().iter().zip(gradients) {
        let gradient = gradient.unwrap_or_else(|| panic!("no gradient comes to `{}`", info.name));
        gradient.assert_close(&torchs[&format!("{name}/{}.grad", info.name)], CLOSE, &info.name);
    }
    for (buffer, tensor) in module.buffers().unwrap() {
        tensor.assert_close(&torchs[&format!("{name}/{buffer}")], CLOSE, &buffer);
    }
    module
}

/// `nn.LSTM`, `nn.GRU` and `nn.RNN` compute with a list of their parameters.
#[test]
fn parameters_in_lists_tuples_and_dictionaries_are_trained_as_in_pytorch() {
    let module = assert_trains_as_pytorch(small("recurrent"), "recurrent", &numbers(&[2, 5, 4], 37));
    assert_eq!(module.parameters().len(), 4 + 8 + 4 + 2);
}

#[test]
fn given_weights_are_what_a_recurrent_script_computes_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("start.safetensors");
    let module = Module::build(&small("recurrent"), &[Device::Cpu], 1).unwrap();
    let doubled: Vec<Tensor> = module.initial_parameters().unwrap().iter().map(|param| param * 2.0).collect();
    save(&path, &module.state_dict(&doubled).unwrap()).unwrap();
    let spec = ModuleSpec { weights: Some(path.into()), ..small("recurrent") };
    let started = Module::build(&spec, &[Device::Cpu], 1).unwrap();
    let run = |module: &Module, params: &[Tensor]| {
        module.forward(params, &[numbers(&[2, 5, 4], 37)], Mode::EVAL).unwrap()
    };
    let y = run(&started, &started.initial_parameters().unwrap());
    assert!(y.equal(&run(&module, &doubled)));
    assert!(!y.equal(&run(&module, &module.initial_parameters().unwrap())));
}

#[test]
fn a_forward_that_is_computed_again_reads_the_buffers_of_the_first() {
    let x = numbers(&[5, 4], 37);
    assert_trains_as_pytorch(small("remembers"), "remembers", &x);
    assert_trains_as_pytorch(ModuleSpec { recompute: true, ..small("remembers") }, "remembers", &x);
}

#[test]
fn buffers_that_are_not_persistent_are_not_saved() {
    let with = |names: &[&str]| {
        let mut spec = small("private");
        let MadeOf::TorchScript(script) = &mut spec.made_of else { unreachable!("it is TorchScript") };
        script.non_persistent = names.iter().map(ToString::to_string).collect();
        Module::build(&spec, &[Device::Cpu], 1)
    };
    let module = with(&["table"]).unwrap();
    let params = module.initial_parameters().unwrap();
    let names: Vec<String> = module.state_dict(&params).unwrap().into_iter().map(|(name, _)| name).collect();
    // Private().state_dict().keys() of torchscript.py
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["kept", "fc.weight", "fc.bias"]));
    let y = module.forward(&params, &[numbers(&[2, 4], 3)], Mode::EVAL).unwrap();
    let all = with(&[]).unwrap();
    assert!(
        y.equal(&all.forward(&params, &[numbers(&[2, 4], 3)], Mode::EVAL).unwrap()),
        "it is there all the same"
    );
    let error = with(&["tabel"]).unwrap_err().to_string();
    let error = error.replace(&file("private").display().to_string(), "FILE");
    insta::assert_snapshot!(error, @r"
    FILE: it has no buffer `tabel`, which `non_persistent_buffers` names
      hint: did you mean `table`?
    ");
}

#[test]
fn what_is_saved_has_the_names_of_the_state_dict_and_pytorch_could_load_it() {
    let (module, torchs) = (build("everything"), torchs());
    let names: Vec<&str> = module.parameters().iter().map(|info| info.name.as_str()).collect();
    // Neither the fixed one nor a tied one twice: what an optimizer would get from `parameters()` and change.
    let trained = [
        "encode.weight",
        "encode.bias",
        "norm.weight",
        "norm.bias",
        "first.weight",
        "first.bias",
        "second.bias",
    ];
    assert_eq!(names, trained);
    let state: BTreeMap<String, Tensor> =
        module.state_dict(&module.initial_parameters().unwrap()).unwrap().into_iter().collect();
    let wanted: Vec<&str> = torchs.keys().filter_map(|name| name.strip_prefix("init/")).collect();
    assert_eq!(state.keys().map(String::as_str).collect::<Vec<_>>(), wanted);
    for (name, tensor) in &state {
        let torchs = &torchs[&format!("init/{name}")];
        assert!(tensor.equal(torchs) && tensor.kind() == torchs.kind(), "{name}");
    }
}

#[test]
fn a_checkpoint_gives_everything_back_fixed_and_tied_ones_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let trained = build("everything");
    let params: Vec<Tensor> =
        trained.initial_parameters().unwrap().iter().map(|param| param.detach_copy() + 0.5).collect();
    let _ = trained.forward(&params, &[numbers(&[5, 6], 37)], Mode::train(0)).unwrap();
    let mut state = trained.state_dict(&params).unwrap();
    let fixed = state.iter_mut().find(|(name, _)| name == "scale").unwrap();
    fixed.1 = Tensor::from_slice(&[3f32, 1.0, 4.0, 1.0]);
    save(&path, &state).unwrap();
    let fresh =
        Module::build(&ModuleSpec { weights: Some(path.into()), ..spec("everything") }, &[Device::Cpu], 1)
            .unwrap();
    let loaded = fresh.initial_parameters().unwrap();
    for ((name, saved), (_, loaded)) in state.iter().zip(fresh.state_dict(&loaded).unwrap()) {
        assert!(loaded.equal(saved), "{name}");
    }
    let evaluate = |module: &Module, params: &[Tensor]| {
        module.forward(params, &[numbers(&[2, 6], 3)], Mode::EVAL).unwrap()
    };
    assert!(!evaluate(&fresh, &loaded).equal(&evaluate(&trained, &params)), "the fixed one counts");
}

/// Several trainers call at once, each with the version that its step reads.
#[test]
fn forwards_at_once_use_the_parameters_that_each_brings() {
    let module = build("everything");
    let params = module.initial_parameters().unwrap();
    let scaled = |by: f64| -> Vec<Tensor> { params.iter().map(|param| param * by).collect() };
    let expected: Vec<Tensor> = (0..4)
        .map(|k| module.forward(&scaled(f64::from(k)), &[numbers(&[5, 6], 7)], Mode::EVAL).unwrap())
        .collect();
    assert!(!expected[1].equal(&expected[2]));
    std::thread::scope(|scope| {
        for (k, expected) in (0..4).zip(&expected) {
            let (module, params, expected) = (&module, scaled(f64::from(k)), expected.shallow_clone());
            scope.spawn(move || {
                for _ in 0..200 {
                    let own = leaves(&params);
                    let y = module.forward(&own, &[numbers(&[5, 6], 7)], Mode::EVAL).unwrap();
                    assert!(y.equal(&expected));
                    // An update in place by another trainer would break this backward, were the leaves shared.
                    let one = Tensor::from(1f32);
                    c10d::engine::grad(&[y.sum(Kind::Float)], &own, &[one], false).unwrap();
                }
            });
        }
    });
    let same = module.initial_parameters().unwrap();
    assert!(same.iter().zip(&params).all(|(a, b)| a.equal(b)), "nobody wrote the module's own");
}

/// M-3
#[test]
fn dropout_depends_on_its_seed_alone_and_sleeps_in_evaluation() {
    let module = build("dropping");
    let params = module.initial_parameters().unwrap();
    let run = |mode| module.forward(&params, &[numbers(&[5, 6], 37)], mode).unwrap();
    let first = run(Mode::train(4));
    assert!(!run(Mode::train(5)).equal(&first));
    std::thread::scope(|scope| {
        let noise = scope.spawn(|| {
            (0..100).for_each(|seed| {
                drop(
                    module
                        .forward(
                            &module.initial_parameters().unwrap(),
                            &[numbers(&[5, 6], 3)],
                            Mode::train(seed),
                        )
                        .unwrap(),
                )
            })
        });
        for _ in 0..50 {
            assert!(run(Mode::train(4)).equal(&first));
        }
        noise.join().unwrap();
    });
    assert!(run(Mode::EVAL).equal(&run(Mode::EVAL)));
}

#[test]
fn buffers_of_several_forwards_are_folded_in_any_order_that_is_asked_for() {
    let batches = [numbers(&[5, 6], 37), numbers(&[5, 6], 53)];
    let buffers = |fold_late: bool| {
        let module = build("everything");
        let params = module.initial_parameters().unwrap();
        let mut late = Statistics::default();
        for x in &batches {
            let (_, seen) = module.observe(&params, &[x.shallow_clone()], Mode::train(0)).unwrap();
            if fold_late { late.append(seen) } else { module.fold(&seen).unwrap() }
        }
        module.fold(&late).unwrap();
        module.buffers().unwrap()
    };
    // As with layers: what a training forward gives does not depend on running statistics, so it may wait for a round.
    for ((name, late), (_, at_once)) in buffers(true).iter().zip(&buffers(false)) {
        // Its weight is one divided by the count of batches, which the second forward cannot know of yet.
        if !name.starts_with("average.running") && name != "largest" {
            assert!(late.equal(at_once), "{name}: {late} {at_once}");
        }
    }
}

fn refusal(file: &Path) -> String {
    let error = Module::build(&spec_of(file, &[4], &[4]), &[Device::Cpu], 1).unwrap_err().to_string();
    error.replace(&file.parent().unwrap().display().to_string(), "DIR")
}

#[test]
fn a_file_that_will_not_do_is_told_with_what_would() {
    let all = ["two_arguments", "two_outputs", "on_cuda", "half", "fails", "pickle"];
    let said: Vec<String> = all.iter().map(|name| refusal(&file(name))).collect();
    insta::assert_snapshot!(said.join("\n"));
    // What they have is a right of theirs in PyTorch; here it would be trained wrongly without a word.
    let all = ["counts", "collects", "halves", "cutoff"];
    let said: Vec<String> = all.iter().map(|name| refusal(&file(name))).collect();
    insta::assert_snapshot!("state_that_is_in_no_buffer", said.join("\n"));
    Module::build(&small("apart"), &[Device::Cpu], 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(file("mlp")).unwrap();
    for length in [0, 10, whole.len() / 2, whole.len() - 1] {
        let cut = folder.path().join("cut.pt");
        std::fs::write(&cut, &whole[..length]).unwrap();
        let said = refusal(&cut);
        assert!(said.starts_with("DIR/cut.pt: it is not a TorchScript file, or damaged: "), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
    }
    assert!(refusal(&folder.path().join("absent.pt")).contains("damaged"));
}

#[test]
fn what_it_gives_is_compared_with_what_the_job_says() {
    let said = |file: PathBuf, input: &[i64], output: Signal| {
        let mut spec = spec_of(&file, input, &[]);
        spec.made_of = torchscript(&file, output);
        let error = Module::build(&spec, &[Device::Cpu], 1).unwrap_err().to_string();
        error.replace(&file.parent().unwrap().display().to_string(), "DIR")
    };
    let float = |shape: &[i64]| Signal::new(shape, InputDtype::Float32);
    insta::assert_snapshot!(
        [
            said(file("mlp"), &[1, 8, 8], float(&[12])),
            said(file("mlp"), &[1, 8, 9], float(&[10])),
            said(file("mlp"), &[1, 8, 8], Signal::new(&[10], InputDtype::Int64)),
            said(file("double"), &[4], float(&[4])),
        ]
        .join("\n")
    );
}

#[test]
fn a_forward_that_writes_what_it_may_not_is_stopped() {
    let run = |name: &str| {
        let module = Module::build(&spec_of(&file(name), &[4], &[4]), &[Device::Cpu], 1).unwrap();
        let params = module.initial_parameters().unwrap();
        module.forward(&params, &[numbers(&[2, 4], 3)], Mode::train(0)).unwrap_err().to_string()
    };
    insta::assert_snapshot!(format!("{}\n{}", run("writes_a_parameter"), run("grows_a_buffer")));
}

#[test]
fn an_error_within_the_script_names_the_module_and_the_input() {
    let module = build("mlp");
    let params = module.initial_parameters().unwrap();
    let error = module.forward(&params, &[numbers(&[2, 5], 3)], Mode::EVAL).unwrap_err().to_string();
    assert_eq!(
        error,
        "module `net`, TorchScript, input of shape [2, 5]: mat1 and mat2 shapes cannot be multiplied (2x5 and 64x32)"
    );
    let error = module.forward(&params[1..], &[numbers(&[2, 64], 3)], Mode::EVAL).unwrap_err().to_string();
    assert_eq!(error, "module `net`: 3 parameter tensors came where it has 4");
}
