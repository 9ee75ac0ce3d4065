//! Every layer against PyTorch's figures (`tests/data/layers.py`): names and shapes of parameters and buffers, initial
//! parameters, forward, gradients, running statistics.

mod cases;

use std::collections::BTreeMap;

use crate::model::{Close, conv_net, figures, sequential, spec};
use cases::layers;
use pstrain::job::layer::{LayerOp, Lstm};
use pstrain::job::{InputDtype, shape, size};
use pstrain::model::{Mode, Module, load, save};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

/// Draws are PyTorch's own.
const EXACT: f64 = 1e-6;
/// Sums may be formed in another order, on another processor too.
const CLOSE: f64 = 1e-5;

#[derive(Deserialize)]
struct Figures {
    seed: u64,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    parameters: Vec<(String, Vec<i64>)>,
    buffers: Vec<(String, Vec<i64>)>,
    train: bool,
}

/// PyTorch's tensors by `CASE/KIND/NAME`.
struct Numbers(BTreeMap<String, Tensor>);

impl Numbers {
    fn get(&self, name: &str) -> &Tensor {
        self.0.get(name).unwrap_or_else(|| panic!("no figure `{name}`"))
    }

    fn named(&self, case: &str, kind: &str, names: &[(String, Vec<i64>)]) -> Vec<&Tensor> {
        names.iter().map(|(name, _)| self.get(&format!("{case}/{kind}/{name}"))).collect()
    }
}

fn read() -> (Figures, Numbers) {
    let text = std::fs::read_to_string(figures("layers.json")).unwrap();
    let numbers = load(&figures("layers.safetensors")).unwrap().into_iter().collect();
    (serde_json::from_str(&text).unwrap(), Numbers(numbers))
}

fn build(case: &str, seed: u64) -> Module {
    Module::build(&spec(&[], sequential(layers(case))), &[Device::Cpu], seed).unwrap()
}

#[test]
fn parameters_and_buffers_have_pytorchs_names_and_shapes_in_its_order() {
    for (name, case) in read().0.cases {
        let module = build(&name, 0);
        let parameters: Vec<_> =
            module.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
        assert_eq!(parameters, case.parameters, "{name}");
        let buffers: Vec<_> =
            module.buffers().unwrap().into_iter().map(|(name, tensor)| (name, tensor.size())).collect();
        assert_eq!(buffers, case.buffers, "{name}");
    }
}

#[test]
fn a_seed_gives_the_weights_that_pytorch_gives() {
    let (figures, numbers) = read();
    for (name, case) in figures.cases {
        let drawn = build(&name, figures.seed).initial_parameters().unwrap();
        for (ours, torchs) in drawn.iter().zip(numbers.named(&name, "init", &case.parameters)) {
            ours.assert_close(torchs, EXACT, &name);
        }
    }
}

#[test]
fn forward_and_gradients_are_pytorchs() {
    let (figures, numbers) = read();
    for (name, case) in figures.cases {
        let module = build(&name, 0);
        let mut state = Vec::new();
        for (kind, names) in [("param", &case.parameters), ("buffer", &case.buffers)] {
            let tensors = numbers.named(&name, kind, names);
            state.extend(names.iter().zip(tensors).map(|((name, _), tensor)| (name.clone(), tensor.copy())));
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("figures.safetensors");
        save(&file, &state).unwrap();
        let params = module.start_from(&file).unwrap();
        compare(&name, &case, &numbers, &module, &params, Mode { train: case.train, dropout_seed: 1 });
        for ((key, buffer), torchs) in
            module.buffers().unwrap().iter().zip(numbers.named(&name, "after", &case.buffers))
        {
            buffer.assert_close(torchs, CLOSE, &format!("{name}, {key} after the forward"));
        }
    }
}

/// One forward and backward of `module` with the figures' input, compared with the figures of case `name`.
fn compare(name: &str, case: &Case, numbers: &Numbers, module: &Module, params: &[Tensor], mode: Mode) {
    let mut leaves: Vec<Tensor> = params.iter().map(|p| p.detach().set_requires_grad(true)).collect();
    let mut inputs = vec![numbers.get(&format!("{name}/input/0")).copy()];
    inputs.extend(numbers.0.get(&format!("{name}/input/1")).map(Tensor::copy));
    let grad_input = numbers.0.get(&format!("{name}/grad_input"));
    if grad_input.is_some() {
        inputs[0] = inputs[0].set_requires_grad(true);
        leaves.push(inputs[0].shallow_clone());
    }
    let y = module.forward(&leaves[..params.len()], &inputs, mode).unwrap();
    y.assert_close(numbers.get(&format!("{name}/output")), CLOSE, &format!("{name}, output"));
    let loss = (&y * numbers.get(&format!("{name}/grad_output"))).sum(Kind::Float);
    loss.backward();
    let mut wanted = numbers.named(name, "grad", &case.parameters);
    wanted.extend(grad_input);
    for (at, (leaf, torchs)) in leaves.iter().zip(wanted).enumerate() {
        let grad = leaf.grad();
        // PyTorch's figure for a leaf that got no gradient is zero.
        let grad = if grad.defined() { grad } else { leaf.zeros_like() };
        let sparse = matches!(
            &layers(name)[0],
            LayerOp::Embedding { sparse: true, .. } | LayerOp::EmbeddingBag { sparse: true, .. }
        );
        assert_eq!(grad.is_sparse(), sparse, "{name}");
        let grad = if sparse { grad.to_dense(None, false) } else { grad };
        grad.assert_close(torchs, CLOSE, &format!("{name}, gradient {at}"));
    }
}

/// With masks that keep everything, the ways round libtorch's own dropout must give what it gives without dropout.
#[test]
fn layers_that_draw_their_own_masks_compute_what_libtorchs_do() {
    let (figures, numbers) = read();
    for name in [
        "attention",
        "attention_length_first",
        "attention_causal",
        "lstm_deep",
        "lstm_deep_last",
        "lstm_no_bias",
    ] {
        let mut ops = layers(name);
        match &mut ops[0] {
            // Too small for any draw to fall below it.
            LayerOp::MultiheadAttention { dropout, .. } => *dropout = 1e-12,
            LayerOp::Lstm(lstm) => lstm.dropout = 1e-12,
            _ => unreachable!(),
        }
        let module = Module::build(&spec(&[], sequential(ops)), &[Device::Cpu], 0).unwrap();
        let case = &figures.cases[name];
        let params: Vec<Tensor> =
            numbers.named(name, "param", &case.parameters).into_iter().map(Tensor::copy).collect();
        compare(name, case, &numbers, &module, &params, Mode::train(3));
    }
}

/// What `check` counts and infers without libtorch is what libtorch makes.
#[test]
fn sizes_and_shapes_are_what_the_job_infers() {
    let (figures, numbers) = read();
    for (name, case) in figures.cases {
        let layers = sequential(layers(&name));
        let counted: u64 = layers.iter().map(|layer| size::parameters(&layer.op)).sum();
        let made: i64 = case.parameters.iter().map(|(_, shape)| shape.iter().product::<i64>()).sum();
        assert_eq!(counted, made.unsigned_abs(), "{name}");
        let input = numbers.get(&format!("{name}/input/0"));
        // Samples come first in what a job can describe.
        let length_first = matches!(
            &layers[0].op,
            LayerOp::Lstm(Lstm { batch_first: false, .. })
                | LayerOp::MultiheadAttention { batch_first: false, .. }
        );
        if length_first || input.dim() == 1 {
            continue;
        }
        let dtype = if input.kind() == Kind::Int64 { InputDtype::Int64 } else { InputDtype::Float32 };
        let inferred = shape::infer(&layers, &shape::Signal::new(&input.size()[1..], dtype));
        assert!(inferred.mismatches.is_empty(), "{name}: {:?}", inferred.mismatches);
        let output = numbers.get(&format!("{name}/output")).size();
        assert_eq!(inferred.output().unwrap().shape, output[1..], "{name}");
    }
}

#[test]
fn attentions_dropout_keeps_the_mean() {
    let (figures, numbers) = read();
    let case = &figures.cases["attention"];
    let params: Vec<Tensor> =
        numbers.named("attention", "param", &case.parameters).into_iter().map(Tensor::copy).collect();
    let op = LayerOp::MultiheadAttention {
        embed_dim: 8,
        num_heads: 2,
        dropout: 0.4,
        bias: true,
        batch_first: true,
        causal: false,
    };
    let module = Module::build(&spec(&[5, 8], sequential(vec![op])), &[Device::Cpu], 0).unwrap();
    let input = numbers.get("attention/input/0");
    let run = |seed| module.forward(&params, &[input.shallow_clone()], Mode::train(seed)).unwrap();
    assert!(run(1).equal(&run(1)) && !run(1).equal(&run(2)));
    let mean = (0..3000).map(run).reduce(|a, b| a + b).unwrap() / 3000.0;
    mean.assert_close(numbers.get("attention/output"), 0.05, "mean over masks");
}

#[test]
fn dropout_passes_the_gradient_where_it_passed_the_value() {
    for op in [LayerOp::Dropout { p: 0.5 }, LayerOp::Dropout2d { p: 0.25 }] {
        let module = Module::build(&spec(&[8, 3, 3], sequential(vec![op])), &[Device::Cpu], 0).unwrap();
        let x = (Tensor::ones([4, 8, 3, 3], (Kind::Float, Device::Cpu)) * 3.0).set_requires_grad(true);
        let y = module.forward(&[], &[x.shallow_clone()], Mode::train(5)).unwrap();
        y.sum(Kind::Float).backward();
        (x.grad() * 3.0).assert_close(&y, EXACT, "gradient");
        let zeros = y.eq(0.0).sum(Kind::Int64).int64_value(&[]);
        assert!(zeros > 0 && zeros < 288);
        assert!(module.forward(&[], &[x.shallow_clone()], Mode::EVAL).unwrap().equal(&x));
    }
}

#[derive(Deserialize)]
struct ConvNetFigures {
    parameters: Vec<(String, Vec<i64>)>,
    seed: u64,
    first: BTreeMap<String, [f64; 2]>,
    gradients: BTreeMap<String, [f64; 2]>,
    losses: Vec<f64>,
    last: BTreeMap<String, [f64; 2]>,
}

#[test]
fn the_tutorials_network_trains_as_it_does_in_pytorch() {
    let text = std::fs::read_to_string(figures("conv_net.json")).unwrap();
    let figures: ConvNetFigures = serde_json::from_str(&text).unwrap();
    let module = Module::build(&spec(&[1, 28, 28], conv_net()), &[Device::Cpu], figures.seed).unwrap();
    let names: Vec<_> = module.parameters().iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
    assert_eq!(names, figures.parameters);
    let params = module.initial_parameters().unwrap();
    let sums = |tensors: &[Tensor], wanted: &BTreeMap<String, [f64; 2]>, what: &str| {
        for (info, tensor) in module.parameters().iter().zip(tensors) {
            let [sum, norm] = wanted[&info.name];
            let (our_sum, our_norm) =
                (tensor.sum(Kind::Double).double_value(&[]), tensor.norm().double_value(&[]));
            assert!(
                (our_norm - norm).abs() <= 1e-5 * norm,
                "{what} {}: norm {our_norm}, not {norm}",
                info.name
            );
            // The sum's terms are as large as the norm; their rounding counts.
            assert!(
                (our_sum - sum).abs() <= 1e-4 * (1.0 + norm),
                "{what} {}: sum {our_sum}, not {sum}",
                info.name
            );
        }
    };
    sums(&params, &figures.first, "initial");
    let x = (Tensor::arange(8 * 28 * 28, (Kind::Float, Device::Cpu)) * 0.37).sin().reshape([8, 1, 28, 28]);
    let target = Tensor::arange(8, (Kind::Int64, Device::Cpu));
    let optimizer = serde_json::json!({"type": "sgd", "lr": 0.03, "momentum": 0.0, "dampening": 0.0,
        "weight_decay": 0.0, "nesterov": false, "maximize": false});
    let mut optimizer =
        pstrain::optimizers::Optimizer::new(serde_json::from_value(optimizer).unwrap(), &params).unwrap();
    for (step, wanted) in figures.losses.iter().enumerate() {
        let leaves: Vec<Tensor> = params.iter().map(|p| p.detach().set_requires_grad(true)).collect();
        let y = module.forward(&leaves, &[x.shallow_clone()], Mode::EVAL).unwrap();
        let loss = y.nll_loss(&target);
        let value = loss.double_value(&[]);
        assert!((value - wanted).abs() < 1e-5, "step {step}: loss {value}, not {wanted}");
        let grads = Tensor::run_backward(&[loss], &leaves, false, false);
        if step == 0 {
            sums(&grads, &figures.gradients, "gradient of");
        }
        drop(leaves);
        optimizer.step(&params, &grads.into_iter().map(Some).collect::<Vec<_>>()).unwrap();
    }
    sums(&params, &figures.last, "trained");
}

#[test]
fn what_does_not_fit_is_refused_with_the_layers_name() {
    let module = Module::build(&spec(&[1, 28, 28], conv_net()), &[Device::Cpu], 0).unwrap();
    let params = module.initial_parameters().unwrap();
    let x = Tensor::zeros([2, 3, 28, 28], (Kind::Float, Device::Cpu));
    let error = module.forward(&params, &[x], Mode::EVAL).unwrap_err().to_string();
    assert!(error.starts_with("module `net`, layer `conv1`, input of shape [2, 3, 28, 28]: "), "{error}");
    assert!(!error.contains('\n'), "{error}");
    let x = || Tensor::zeros([2, 1, 28, 28], (Kind::Float, Device::Cpu));
    let error = module.forward(&params[1..], &[x()], Mode::EVAL).unwrap_err().to_string();
    assert_eq!(error, "module `net`: 7 parameter tensors came where it has 8");
    let error = module.forward(&params, &[x(), x()], Mode::EVAL).unwrap_err().to_string();
    assert_eq!(error, "module `net`: 2 inputs came, layer `conv1` takes 1");
    assert!(Module::build(&spec(&[1, 28, 28], conv_net()), &[], 0).is_err());
}

#[test]
fn two_builds_of_one_seed_have_the_same_weights() {
    let draw = |seed| {
        let module = Module::build(&spec(&[1, 28, 28], conv_net()), &[Device::Cpu], seed).unwrap();
        let first = module.initial_parameters().unwrap();
        let again = module.initial_parameters().unwrap();
        assert!(first.iter().zip(&again).all(|(a, b)| a.equal(b) && !a.requires_grad()));
        first
    };
    assert!(draw(1).iter().zip(&draw(1)).all(|(a, b)| a.equal(b)));
    assert!(!draw(1)[0].equal(&draw(2)[0]));
    // Uniform between -1/sqrt(fan_in) and 1/sqrt(fan_in), all of the range.
    for (tensor, fan_in) in draw(1).iter().zip([9.0, 9.0, 288.0, 288.0, 9216.0, 9216.0, 128.0, 128.0]) {
        let bound = 1.0 / f64::sqrt(fan_in);
        let (low, high) = (tensor.min().double_value(&[]), tensor.max().double_value(&[]));
        assert!(
            (-bound..-0.5 * bound).contains(&low) && high <= bound && high > 0.5 * bound,
            "{low} {high} {bound}"
        );
        if tensor.numel() > 1000 {
            let deviation = tensor.std(true).double_value(&[]);
            assert!((deviation / (bound / f64::sqrt(3.0)) - 1.0).abs() < 0.05);
        }
    }
}
