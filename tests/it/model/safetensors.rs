//! Checkpoints: what is written is read again, here and by PyTorch, and what does not fit is named.

use std::path::Path;

use crate::model::{Close, conv_net, sequential, spec};
use pstrain::layers::{BatchNorm1d, LayerOp, Linear};
use pstrain::model::{Mode, Module, load, save};
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn module(seed: u64) -> Module {
    let norm = LayerOp::BatchNorm1d(BatchNorm1d {
        num_features: 4,
        eps: 1e-5,
        momentum: 0.1,
        affine: true,
        track_running_stats: true,
    });
    let ops = vec![LayerOp::Linear(Linear { in_features: 3, out_features: 4, bias: false }), norm];
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
    let loaded = fresh.start_from(&file.clone().into()).unwrap();
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
fn what_does_not_fit_is_named_and_nothing_is_taken_over() {
    let module = module(1);
    let params = module.initial_parameters().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.safetensors");
    type Change<'a> = &'a dyn Fn(&mut Vec<(String, Tensor)>);
    let refused = |change: Change<'_>| {
        let mut state = module.state_dict(&params).unwrap();
        state[3].1 = Tensor::ones([4], FLOAT);
        change(&mut state);
        save(&file, &state).unwrap();
        module
            .start_from(&file.clone().into())
            .unwrap_err()
            .to_string()
            .replace(&file.display().to_string(), "m.safetensors")
    };
    let all = refused(&|state| {
        state[0].1 = Tensor::zeros([3, 4], FLOAT);
        state[2].1 = state[2].1.to_kind(Kind::Double);
        state[4].1 = Tensor::zeros([5], FLOAT);
        state.push(("2.weight".into(), Tensor::zeros([1], FLOAT)));
        drop(state.remove(1));
    });
    insta::assert_snapshot!(all);
    assert_eq!(module.buffers().unwrap()[0].1.sum(Kind::Float).double_value(&[]), 0.0);
}

#[test]
fn a_file_without_buffers_leaves_them_and_one_of_several_modules_has_this_ones() {
    let module = module(1);
    let params = module.initial_parameters().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.safetensors");
    let mut state: Vec<_> = params
        .iter()
        .map(|param| param + 1.0)
        .collect::<Vec<_>>()
        .into_iter()
        .zip(module.parameters())
        .map(|(tensor, info)| (format!("net.{}", info.name), tensor))
        .collect();
    state.push(("other.0.weight".into(), Tensor::zeros([1], (Kind::BFloat16, Device::Cpu))));
    save(&file, &state).unwrap();
    let loaded = module.start_from(&file.clone().into()).unwrap();
    assert!(loaded.iter().zip(&params).all(|(loaded, param)| loaded.equal(&(param + 1.0))));
    assert_eq!(module.buffers().unwrap()[1].1.sum(Kind::Float).double_value(&[]), 4.0, "variances of 1");
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
