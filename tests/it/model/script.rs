//! TorchScript as a module: PyTorch's numbers, its names, and what is said of files that will not do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::model::{Close, figures};
use pstrain::job::{MadeOf, ModuleSpec, TorchScript};
use pstrain::layers::{InputDtype, Signal};
use pstrain::model::{Mode, Module, Statistics, load, save};
use tch::{Device, Kind, Tensor};

/// Sums of the same products in another order.
const CLOSE: f64 = 1e-6;

fn spec_of(file: &Path, input: &[i64], output: &[i64]) -> ModuleSpec {
    let output = Signal::new(output, InputDtype::Float32);
    ModuleSpec {
        made_of: MadeOf::TorchScript(TorchScript { file: file.into(), output }),
        ..crate::model::spec(input, Vec::new())
    }
}

fn file(name: &str) -> PathBuf {
    figures(&format!("torchscript/{name}.pt"))
}

fn spec(name: &str) -> ModuleSpec {
    let size = if name == "mlp" { ([1, 8, 8].as_slice(), 10) } else { ([6].as_slice(), 4) };
    spec_of(&file(name), size.0, &[size.1])
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
        Module::build(&ModuleSpec { weights: Some(path), ..spec("everything") }, &[Device::Cpu], 1).unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(file("mlp")).unwrap();
    for length in [0, 10, whole.len() / 2, whole.len() - 1] {
        let cut = folder.path().join("cut.pt");
        std::fs::write(&cut, &whole[..length]).unwrap();
        let said = refusal(&cut);
        assert!(said.starts_with("DIR/cut.pt: it is no TorchScript file, or damaged: "), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
    }
    assert!(refusal(&folder.path().join("absent.pt")).contains("damaged"));
}

#[test]
fn what_it_gives_is_compared_with_what_the_job_says() {
    let said = |file: PathBuf, input: &[i64], output: Signal| {
        let mut spec = spec_of(&file, input, &[]);
        spec.made_of = MadeOf::TorchScript(TorchScript { file: file.clone(), output });
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
