//! Checkpoints: what is written is read again, here and by PyTorch, and what does not fit is named.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model_common;

use std::path::Path;

use model_common::{Close, conv_net, sequential, spec};
use pstrain::job::layer::LayerOp;
use pstrain::model::{Mode, Module, load, save};
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn module(seed: u64) -> Module {
    let norm = LayerOp::BatchNorm {
        dims: 1,
        num_features: 4,
        eps: 1e-5,
        momentum: 0.1,
        affine: true,
        track_running_stats: true,
    };
    let ops = vec![LayerOp::Linear { in_features: 3, out_features: 4, bias: false }, norm];
    Module::build(&spec(&[3], sequential(ops)), &[Device::Cpu], seed).unwrap()
}

fn names(state: &[(String, Tensor)]) -> Vec<&str> {
    state.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_checkpoint_gives_parameters_and_running_statistics_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let trained = module(1);
    let params = trained.initial_parameters().unwrap();
    let x = Tensor::rand([5, 3], FLOAT);
    let _ = trained.forward(&params, &[x.shallow_clone()], Mode::train(0)).unwrap();
    let state = trained.state_dict(&params).unwrap();
    let all = ["0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"];
    assert_eq!(names(&state), all);
    save(&file, &state).unwrap();
    let fresh = module(2);
    let loaded = fresh.load_state_dict(&file, &load(&file).unwrap()).unwrap();
    let wanted = trained.forward(&params, &[x.shallow_clone()], Mode::EVAL).unwrap();
    assert!(fresh.forward(&loaded, &[x], Mode::EVAL).unwrap().equal(&wanted));
    assert_eq!(fresh.buffers().unwrap()[2].1.int64_value(&[]), 1);
}

#[test]
fn any_tensor_is_written_as_its_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("odd.safetensors");
    let grid = Tensor::arange(6, FLOAT).reshape([2, 3]);
    let tensors = vec![
        ("transposed".to_owned(), grid.transpose(0, 1)),
        ("leaf".to_owned(), grid.copy().set_requires_grad(true)),
        ("sparse".to_owned(), grid.to_sparse(None, None::<Vec<i64>>.as_deref(), None)),
        ("scalar".to_owned(), Tensor::from(7i64)),
        ("empty".to_owned(), Tensor::zeros([0, 3], FLOAT)),
        ("half".to_owned(), grid.to_kind(Kind::Half)),
    ];
    save(&file, &tensors).unwrap();
    let read = load(&file).unwrap();
    assert_eq!(names(&read), ["empty", "half", "leaf", "scalar", "sparse", "transposed"]);
    for (name, tensor) in &tensors {
        let (_, read) = read.iter().find(|(has, _)| has == name).unwrap();
        assert_eq!(read.kind(), tensor.kind());
        let dense = if tensor.is_sparse() { tensor.to_dense(None, false) } else { tensor.detach() };
        read.assert_close(&dense, 0.0, name);
    }
}

#[test]
fn parameters_of_another_dtype_become_f32() {
    let module = module(1);
    let params = module.initial_parameters().unwrap();
    let halves: Vec<_> = module
        .state_dict(&params)
        .unwrap()
        .into_iter()
        .map(|(name, tensor)| {
            (name, if tensor.is_floating_point() { tensor.to_kind(Kind::Double) } else { tensor })
        })
        .collect();
    let loaded = module.load_state_dict("m".as_ref(), &halves).unwrap();
    assert!(loaded.iter().zip(&params).all(|(a, b)| a.kind() == Kind::Float && a.equal(b)));
}

#[test]
fn what_does_not_fit_is_named_and_nothing_is_taken_over() {
    let module = module(1);
    let params = module.initial_parameters().unwrap();
    type Change<'a> = &'a dyn Fn(&mut Vec<(String, Tensor)>);
    let state = |change: Change<'_>| {
        let mut state = module.state_dict(&params).unwrap();
        state[3].1 = Tensor::ones([4], FLOAT);
        change(&mut state);
        module.load_state_dict(Path::new("m.safetensors"), &state).unwrap_err().to_string()
    };
    let missing = state(&|state| drop(state.remove(1)));
    assert_eq!(
        missing,
        "m.safetensors: tensor `1.weight` is missing\n  hint: it has 0.weight, 1.bias, 1.running_mean, 1.running_var, 1.num_batches_tracked"
    );
    let shape = state(&|state| state[0].1 = Tensor::zeros([3, 4], FLOAT));
    assert_eq!(shape, "m.safetensors: tensor `0.weight` has shape [3, 4] where the model wants [4, 3]");
    let buffer = state(&|state| state[4].1 = Tensor::zeros([5], FLOAT));
    assert_eq!(buffer, "m.safetensors: tensor `1.running_var` has shape [5] where the model wants [4]");
    let unknown = state(&|state| state.push(("2.weight".into(), Tensor::zeros([1], FLOAT))));
    assert_eq!(unknown, "m.safetensors: tensor `2.weight` belongs to no layer of module `net`");
    assert_eq!(module.buffers().unwrap()[0].1.sum(Kind::Float).double_value(&[]), 0.0);
}

#[test]
fn a_missing_cut_or_foreign_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let message = |file: &Path| load(file).unwrap_err().to_string();
    let absent = folder.path().join("absent.safetensors");
    let text = message(&absent);
    assert!(text.starts_with(&format!("{}: cannot be read: ", absent.display())), "{text}");
    assert_eq!(text.matches("absent").count(), 1, "{text}");
    let whole = folder.path().join("whole.safetensors");
    let model = Module::build(&spec(&[1, 28, 28], conv_net()), &[Device::Cpu], 1).unwrap();
    save(&whole, &model.state_dict(&model.initial_parameters().unwrap()).unwrap()).unwrap();
    let bytes = std::fs::read(&whole).unwrap();
    for length in [0, 4, 8, 100, bytes.len() - 1] {
        let cut = folder.path().join("cut.safetensors");
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let text = message(&cut);
        assert!(text.starts_with(&format!("{}: cannot be read: ", cut.display())), "{text}");
    }
    let foreign = folder.path().join("foreign.safetensors");
    std::fs::write(&foreign, [255; 64]).unwrap();
    assert!(message(&foreign).contains("cannot be read"));
    let nowhere = folder.path().join("no/such/folder/model.safetensors");
    let text = save(&nowhere, &[]).unwrap_err().to_string();
    assert!(text.starts_with(&format!("{}: cannot be written: ", nowhere.display())), "{text}");
}
