//! Every layer against PyTorch's figures (`tests/data/layers.py`): names and shapes of parameters and buffers, initial
//! parameters, forward, gradients, running statistics.

use std::collections::BTreeMap;

use crate::model::{Close, conv_net, figures, sequential, spec};
use pstrain::job::{self, JobErrors, JobText, ModuleSpec, Resolved, Sources};
use pstrain::layers::{self, Dropout, Dropout2d, LAYERS, LayerOp};
use pstrain::model::{Mode, Module, load, save};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

/// Draws are PyTorch's own.
const EXACT: f64 = 1e-6;
/// Sums may be formed in another order, on another processor too.
const CLOSE: f64 = 1e-5;

const SEED: u64 = 20;

/// PyTorch's figures of one layer, or of a few.
#[derive(Deserialize)]
struct Figures {
    seed: u64,
    cases: BTreeMap<String, Case>,
    /// Layers as a job writes them, and the shape of a sample that PyTorch refuses there.
    refused: Vec<(String, Vec<i64>)>,
}

/// The figures of one layer.
fn read_of(layer: &str) -> Figures {
    let text = std::fs::read_to_string(figures(&format!("layers/{layer}.json")));
    let of_layer: Figures = serde_json::from_str(&text.expect(layer)).unwrap();
    assert_eq!(of_layer.seed, SEED);
    of_layer
}

#[derive(Deserialize)]
pub struct Case {
    /// As a job writes them.
    layers: String,
    parameters: Vec<(String, Vec<i64>)>,
    buffers: Vec<(String, Vec<i64>)>,
    train: bool,
    #[serde(skip)]
    name: String,
    /// PyTorch's tensors by `KIND/NAME`.
    #[serde(skip)]
    numbers: BTreeMap<String, Tensor>,
}

impl Case {
    fn get(&self, name: &str) -> &Tensor {
        self.numbers.get(name).unwrap_or_else(|| panic!("{}: no figure `{name}`", self.name))
    }

    fn named(&self, kind: &str, names: &[(String, Vec<i64>)]) -> Vec<&Tensor> {
        names.iter().map(|(name, _)| self.get(&format!("{kind}/{name}"))).collect()
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.named("param", &self.parameters).into_iter().map(Tensor::copy).collect()
    }

    /// The module as a job says it, whose samples are those of the figures.
    fn spec(&self) -> ModuleSpec {
        let resolved = load_job(&self.job()).unwrap_or_else(|errors| panic!("{}: {errors}", self.name));
        resolved.job.training().unwrap().modules[0].clone()
    }

    /// A job with these layers alone.
    pub fn job(&self) -> String {
        let dtype = |kind| if kind == Kind::Int64 { "int64" } else { "float32" };
        let sample = |input: &Tensor| (input.size()[1..].to_vec(), dtype(input.kind()));
        let inputs: Vec<_> = self.inputs().iter().map(sample).collect();
        text_of(&self.layers, &inputs)
    }

    /// Parameters and buffers by their names.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let mut state = Vec::new();
        for (kind, names) in [("param", &self.parameters), ("buffer", &self.buffers)] {
            let tensors = self.named(kind, names);
            state.extend(names.iter().zip(tensors).map(|((name, _), tensor)| (name.clone(), tensor.copy())));
        }
        state
    }

    /// The batch, and the further ones of a layer that joins several.
    pub fn inputs(&self) -> Vec<Tensor> {
        let others = (1..).map_while(|nth| self.numbers.get(&format!("input{nth}")));
        std::iter::once(self.get("input")).chain(others).map(Tensor::copy).collect()
    }

    fn build(&self, seed: u64) -> Module {
        Module::build(&self.spec(), &[Device::Cpu], seed).unwrap()
    }
}

/// A module of these layers, read and checked as a job's.
fn job_of(layers: &str, input: &[i64], dtype: &str) -> Result<ModuleSpec, String> {
    let resolved =
        load_job(&text_of(layers, &[(input.to_vec(), dtype)])).map_err(|errors| errors.to_string())?;
    Ok(resolved.job.training().unwrap().modules[0].clone())
}

pub fn load_job(text: &str) -> Result<Resolved, JobErrors> {
    let file = JobText { name: "x.toml", text };
    job::load(&Sources { file, env: Vec::new(), overrides: &[] })
}

/// A job with an input of each shape and dtype.
fn text_of(layers: &str, inputs: &[(Vec<i64>, &str)]) -> String {
    let takes = match inputs {
        [(input, dtype)] => format!("input = {input:?}\ninput_dtype = \"{dtype}\""),
        several => {
            let names: Vec<String> = (0..several.len()).map(|nth| format!("x{nth}")).collect();
            let entry = |(name, (shape, dtype)): (&String, &(Vec<i64>, &str))| {
                format!("{name} = {{ shape = {shape:?}, dtype = \"{dtype}\" }}")
            };
            let entries: Vec<String> = names.iter().zip(several).map(entry).collect();
            format!("from = {names:?}\ninputs = {{ {} }}", entries.join(", "))
        }
    };
    format!(
        "[roles]\nserver = 1\ntrainer = 1\n[data]\nplugin = \"own.wasm\"\n[loss]\nplugin = \"mse\"\n\
         [optimizer]\ntype = \"sgd\"\n\
         [modules.net]\nplace = \"server\"\n{takes}\nlayers = {layers}\n"
    )
}

/// The figures of every layer that a job can name.
pub fn read() -> BTreeMap<String, Case> {
    let mut all = BTreeMap::new();
    for entry in LAYERS {
        let mut numbers = load(&figures(&format!("layers/{}.safetensors", entry.name))).unwrap();
        for (name, mut case) in read_of(entry.name).cases {
            let prefix = format!("{name}/");
            let own = numbers.extract_if(.., |(key, _)| key.starts_with(&prefix));
            case.numbers = own.map(|(key, tensor)| (key[prefix.len()..].to_owned(), tensor)).collect();
            case.name = name.clone();
            all.insert(name, case);
        }
    }
    all
}

#[test]
fn parameters_and_buffers_have_pytorchs_names_and_shapes_in_its_order() {
    for (name, case) in read() {
        let module = case.build(0);
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
    for (name, case) in read() {
        let drawn = case.build(SEED).initial_parameters().unwrap();
        for (ours, torchs) in drawn.iter().zip(case.named("init", &case.parameters)) {
            ours.assert_close(torchs, EXACT, &name);
        }
    }
}

#[test]
fn forward_and_gradients_are_pytorchs() {
    for (name, case) in read() {
        let module = case.build(0);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("figures.safetensors");
        save(&file, &case.state()).unwrap();
        let params = module.start_from(&file.clone().into()).unwrap();
        compare(&case, &module, &params, Mode { train: case.train, dropout_seed: 1 });
        for ((key, buffer), torchs) in
            module.buffers().unwrap().iter().zip(case.named("after", &case.buffers))
        {
            buffer.assert_close(torchs, CLOSE, &format!("{name}, {key} after the forward"));
        }
    }
}

/// One forward and backward of `module` with the figures' input, compared with them.
fn compare(case: &Case, module: &Module, params: &[Tensor], mode: Mode) {
    let name = &case.name;
    let mut leaves: Vec<Tensor> = params.iter().map(|p| p.detach().set_requires_grad(true)).collect();
    let mut inputs = case.inputs();
    let mut grad_inputs = Vec::new();
    for (nth, input) in inputs.iter_mut().enumerate() {
        let number = if nth == 0 { String::new() } else { nth.to_string() };
        if let Some(gradient) = case.numbers.get(&format!("grad_input{number}")) {
            *input = input.set_requires_grad(true);
            leaves.push(input.shallow_clone());
            grad_inputs.push(gradient);
        }
    }
    let y = module.forward(&leaves[..params.len()], &inputs, mode).unwrap();
    y.assert_close(case.get("output"), CLOSE, &format!("{name}, output"));
    let loss = (&y * case.get("grad_output")).sum(Kind::Float);
    if loss.requires_grad() {
        loss.backward();
    }
    let mut wanted = case.named("grad", &case.parameters);
    wanted.extend(grad_inputs);
    let sparse = case.spec().layers()[0].op.has_sparse_gradient();
    for (at, (leaf, torchs)) in leaves.iter().zip(wanted).enumerate() {
        let grad = leaf.grad();
        // PyTorch's figure for a leaf that got no gradient is zero.
        let grad = if grad.defined() { grad } else { leaf.zeros_like() };
        assert_eq!(grad.is_sparse(), sparse, "{name}");
        let grad = if sparse { grad.to_dense(None, false) } else { grad };
        grad.assert_close(torchs, CLOSE, &format!("{name}, gradient {at}"));
    }
}

/// With masks that keep everything, the ways round libtorch's own dropout must give what it gives without dropout.
#[test]
fn layers_that_draw_their_own_masks_compute_what_libtorchs_do() {
    let mut drawn = 0;
    for (name, case) in read() {
        let mut spec = case.spec();
        let job::MadeOf::Layers(layers) = &mut spec.made_of else { panic!("{name}") };
        // Too small for any draw to fall below it.
        match &mut layers[0].op {
            LayerOp::MultiheadAttention(layer) if layer.dropout == 0.0 => layer.dropout = 1e-12,
            LayerOp::Lstm(layer) if layer.num_layers > 1 && layer.dropout == 0.0 => layer.dropout = 1e-12,
            _ => continue,
        }
        drawn += 1;
        let module = Module::build(&spec, &[Device::Cpu], 0).unwrap();
        compare(&case, &module, &case.parameters(), Mode::train(3));
    }
    assert_eq!(drawn, 6);
}

/// What `check` counts and infers without libtorch is what libtorch makes.
#[test]
fn sizes_and_shapes_are_what_the_job_infers() {
    for (name, case) in read() {
        let spec = case.spec();
        let counted: u64 = spec.layers().iter().map(|layer| layers::size::parameters(&layer.op)).sum();
        let made: i64 = case.parameters.iter().map(|(_, shape)| shape.iter().product::<i64>()).sum();
        assert_eq!(counted, made.unsigned_abs(), "{name}");
        let inferred = layers::infer(spec.layers(), &spec.inputs);
        assert!(inferred.mismatches.is_empty(), "{name}: {:?}", inferred.mismatches);
        assert_eq!(inferred.output().unwrap().shape, case.get("output").size()[1..], "{name}");
    }
}

#[test]
fn samples_that_pytorch_refuses_are_refused_by_the_job() {
    let mut tried = 0;
    for entry in LAYERS {
        for (layers, shape) in read_of(entry.name).refused {
            let said = job_of(&layers, &shape, "float32").expect_err(&format!("{layers} takes {shape:?}"));
            assert!(
                said.contains(&format!("{} `0` expects ", entry.name)) && said.contains("hint: "),
                "{said}"
            );
            tried += 1;
        }
    }
    assert!(tried > 15, "{tried}");
}

#[test]
fn every_layer_and_every_argument_of_it_says_what_it_means() {
    for entry in LAYERS {
        assert!(entry.doc.ends_with('.') && !entry.doc.contains('\n'), "{}: {}", entry.name, entry.doc);
        for key in entry.keys.iter().filter(|key| key.kind().is_ok()) {
            assert!(key.doc().ends_with('.'), "{}, {}: {}", entry.name, key.name(), key.doc());
        }
    }
}

#[test]
fn only_minus_one_is_an_empty_place_of_a_bag() {
    let bag = r#"[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "sum" }]"#;
    let module = Module::build(&job_of(bag, &[3], "int64").unwrap(), &[Device::Cpu], 0).unwrap();
    let params = module.initial_parameters().unwrap();
    let forward =
        |ids: [i64; 3]| module.forward(&params, &[Tensor::from_slice(&ids).unsqueeze(0)], Mode::EVAL);
    assert!(forward([4, -1, -1]).unwrap().get(0).equal(&params[0].get(4)));
    let error = forward([4, -7, -1]).unwrap_err().to_string();
    assert!(
        error.contains("id -7 is negative") && error.contains("hint: in a bag -1 is an empty place"),
        "{error}"
    );
}

#[test]
fn attentions_dropout_keeps_the_mean() {
    let case = read().remove("attention").unwrap();
    let params = case.parameters();
    let with_dropout = case.layers.replace("embed_dim", "dropout = 0.4, embed_dim");
    let module =
        Module::build(&job_of(&with_dropout, &[5, 8], "float32").unwrap(), &[Device::Cpu], 0).unwrap();
    let input = case.get("input");
    let run = |seed| module.forward(&params, &[input.shallow_clone()], Mode::train(seed)).unwrap();
    assert!(run(1).equal(&run(1)) && !run(1).equal(&run(2)));
    let mean = (0..3000).map(run).reduce(|a, b| a + b).unwrap() / 3000.0;
    mean.assert_close(case.get("output"), 0.05, "mean over masks");
}

#[test]
fn dropout_passes_the_gradient_where_it_passed_the_value() {
    for op in [LayerOp::Dropout(Dropout { p: 0.5 }), LayerOp::Dropout2d(Dropout2d { p: 0.25 })] {
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
        optimizer.step(&params, &grads.into_iter().map(Some).collect::<Vec<_>>(), 1.0).unwrap();
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
