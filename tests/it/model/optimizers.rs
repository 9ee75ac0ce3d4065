//! Every optimizer against PyTorch's own trajectories (`tests/data/optimizers.py`), with and without each option.

use std::collections::BTreeMap;

use crate::model::{Close, figures};
use pstrain::model::load;
use pstrain::optimizers::{
    Adam, NamedSlot, OPTIMIZERS, Optimizer, OptimizerError, OptimizerSpec, ParameterSlots, Sgd,
};
use tch::{Device, Kind, Tensor};

const STEPS: i64 = 20;
const F32: (Kind, &str) = (Kind::Float, "f32");
const F64: (Kind, &str) = (Kind::Double, "f64");

/// PyTorch's figures, and the options of each case by `OPTIMIZER/CASE`.
struct Figures {
    specs: BTreeMap<String, OptimizerSpec>,
    numbers: BTreeMap<String, Tensor>,
}

/// The figures of every optimizer that a job can name.
fn read() -> Figures {
    let numbers = |name: &str| load(&figures(&format!("optimizers/{name}.safetensors"))).unwrap();
    let mut all = Figures { specs: BTreeMap::new(), numbers: numbers("given").into_iter().collect() };
    for entry in OPTIMIZERS {
        let name = entry.name;
        let text = std::fs::read_to_string(figures(&format!("optimizers/{name}.json"))).unwrap();
        let specs: BTreeMap<String, OptimizerSpec> = serde_json::from_str(&text).unwrap();
        all.specs.extend(specs.into_iter().map(|(case, spec)| (format!("{name}/{case}"), spec)));
        all.numbers.extend(numbers(name).into_iter().map(|(key, tensor)| (format!("{name}/{key}"), tensor)));
    }
    all
}

impl Figures {
    fn number(&self, name: &str) -> &Tensor {
        self.numbers.get(name).unwrap_or_else(|| panic!("no figure `{name}`"))
    }

    /// The parameters that a case starts from, in its own precision.
    fn start(&self, case: &str, kind: Kind) -> Vec<Tensor> {
        let names: &[&str] =
            if case.contains("sparse") { &["sparse/start"] } else { &["start/0", "start/1"] };
        names.iter().map(|name| self.number(name).copy().to_kind(kind)).collect()
    }

    /// The gradients of a step, counted from 1.
    fn grads(&self, case: &str, step: i64, kind: Kind) -> Vec<Option<Tensor>> {
        if case.contains("sparse") {
            let rows = self.number("sparse/rows").get(step - 1).unsqueeze(0);
            let values = self.number("sparse/values").get(step - 1).to_kind(kind);
            let grad =
                Tensor::sparse_coo_tensor_indices_size(&rows, &values, [6, 2], (kind, Device::Cpu), false);
            return vec![Some(grad)];
        }
        let grad = |name| Some(self.number(name).get(step - 1).to_kind(kind));
        vec![grad("grads/0"), grad("grads/1").filter(|_| step != 4 && step != 5)]
    }

    /// Takes `steps` of a case.
    fn walk(
        &self,
        case: &str,
        kind: Kind,
        optimizer: &mut Optimizer,
        params: &[Tensor],
        steps: impl Iterator<Item = i64>,
    ) {
        for step in steps {
            optimizer.step(params, &self.grads(case, step, kind), 1.0).unwrap();
        }
    }
}

fn follow((kind, suffix): (Kind, &str), tolerance: f64) {
    let figures = read();
    for (case, spec) in &figures.specs {
        let params = figures.start(case, kind);
        let mut optimizer = Optimizer::new(spec.clone(), &params).unwrap();
        for step in 1..=STEPS {
            figures.walk(case, kind, &mut optimizer, &params, step..=step);
            for (at, param) in params.iter().enumerate() {
                let path = figures.number(&format!("{case}/{suffix}/{at}"));
                param.assert_close(&path.get(step - 1), tolerance, &format!("{case}, step {step}"));
            }
        }
    }
}

#[test]
fn every_optimizer_follows_pytorchs_trajectory() {
    follow(F32, 1e-6);
}

/// In f64 rounding cannot hide a difference in the rule.
#[test]
fn every_optimizer_computes_pytorchs_rule() {
    follow(F64, 1e-13);
}

#[test]
fn the_state_has_pytorchs_names_and_numbers() {
    let figures = read();
    for (case, spec) in &figures.specs {
        let params = figures.start(case, F64.0);
        let mut optimizer = Optimizer::new(spec.clone(), &params).unwrap();
        assert!(
            optimizer.state().unwrap().iter().all(|of| of.slots.is_empty()),
            "{case}: before the first step"
        );
        figures.walk(case, F64.0, &mut optimizer, &params, 1..=STEPS);
        for (at, ours) in optimizer.state().unwrap().iter().enumerate() {
            let prefix = format!("{case}/f64/state/{at}/");
            let theirs: Vec<_> = figures
                .numbers
                .iter()
                .filter_map(|(key, tensor)| Some((key.strip_prefix(&prefix)?, tensor)))
                .collect();
            let mut names: Vec<&str> = ours.slots.iter().map(|slot| slot.name.as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, theirs.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "{case}");
            for (name, tensor) in theirs {
                let slot = ours.slots.iter().find(|slot| slot.name == name).unwrap();
                assert_eq!(slot.value.kind(), tensor.kind(), "{case}, {name}");
                slot.value.assert_close(tensor, 1e-13, &format!("{case}, {name}"));
            }
        }
    }
}

/// The state cut into pieces of a few elements each, as servers have them.
fn cut(params: &[Tensor], state: &[ParameterSlots]) -> Vec<(Tensor, Vec<NamedSlot>)> {
    let mut pieces = Vec::new();
    for (param, state) in params.iter().zip(state) {
        for start in (0..param.numel() as i64).step_by(3) {
            let part = |tensor: &Tensor| {
                tensor.view(-1).narrow(0, start, 3.min(param.numel() as i64 - start)).copy()
            };
            let slot = |slot: &NamedSlot| NamedSlot {
                name: slot.name.clone(),
                value: if slot.per_element { part(&slot.value) } else { slot.value.copy() },
                per_element: slot.per_element,
            };
            pieces.push((part(param), state.slots.iter().map(slot).collect()));
        }
    }
    pieces
}

#[test]
fn a_run_that_goes_on_from_a_state_in_another_cut_has_the_same_bits() {
    let figures = read();
    for (case, spec) in figures.specs.iter().filter(|(case, _)| !case.contains("sparse")) {
        let params = figures.start(case, F32.0);
        let mut optimizer = Optimizer::new(spec.clone(), &params).unwrap();
        figures.walk(case, F32.0, &mut optimizer, &params, 1..=7);
        let pieces = cut(&params, &optimizer.state().unwrap());
        let parts: Vec<Tensor> = pieces.iter().map(|(part, _)| part.shallow_clone()).collect();
        let state: Vec<(&str, &[NamedSlot])> =
            pieces.iter().map(|(_, slots)| ("p", slots.as_slice())).collect();
        let mut other = Optimizer::new(spec.clone(), &parts).unwrap();
        other.load_state(&state).unwrap();
        figures.walk(case, F32.0, &mut optimizer, &params, 8..=STEPS);
        for step in 8..=STEPS {
            let grads = figures.grads(case, step, F32.0).into_iter().flat_map(|grad| {
                let grad = grad.unwrap();
                grad.view(-1).split(3, 0).into_iter().map(Some).collect::<Vec<_>>()
            });
            other.step(&parts, &grads.collect::<Vec<_>>(), 1.0).unwrap();
        }
        let whole = Tensor::cat(&params.iter().map(|param| param.view(-1)).collect::<Vec<_>>(), 0);
        assert!(whole.equal(&Tensor::cat(&parts, 0)), "{case}");
    }
}

#[test]
fn a_state_that_somebody_holds_does_not_change() {
    let figures = read();
    for (case, spec) in &figures.specs {
        let params = figures.start(case, F32.0);
        let mut optimizer = Optimizer::new(spec.clone(), &params).unwrap();
        figures.walk(case, F32.0, &mut optimizer, &params, 1..=3);
        let held = optimizer.state().unwrap();
        let copy: Vec<Tensor> = held.iter().flat_map(|of| &of.slots).map(|slot| slot.value.copy()).collect();
        figures.walk(case, F32.0, &mut optimizer, &params, 4..=6);
        let now: Vec<&Tensor> = held.iter().flat_map(|of| &of.slots).map(|slot| &slot.value).collect();
        assert!(now.iter().zip(&copy).all(|(now, copy)| now.equal(copy)), "{case}");
    }
}

#[test]
fn a_state_that_does_not_fit_names_the_parameter_and_the_slot() {
    let params = [Tensor::zeros([2, 3], (Kind::Float, Device::Cpu))];
    let mut optimizer = Optimizer::new(read().specs["adam/default"].clone(), &params).unwrap();
    let slot = |name: &str, shape: &[i64], kind| NamedSlot {
        name: name.into(),
        value: Tensor::zeros(shape, (kind, Device::Cpu)),
        per_element: name != "step",
    };
    let good = || {
        vec![
            slot("exp_avg", &[2, 3], Kind::Float),
            slot("exp_avg_sq", &[2, 3], Kind::Float),
            slot("step", &[], Kind::Float),
        ]
    };
    optimizer.load_state(&[("fc.weight", &good())]).unwrap();
    let mut refuse = |change: fn(&mut Vec<NamedSlot>)| {
        let mut slots = good();
        change(&mut slots);
        optimizer.load_state(&[("fc.weight", &slots)]).unwrap_err().to_string()
    };
    let of = "optimizer adam: the state of parameter `fc.weight`, slot";
    assert_eq!(refuse(|slots| drop(slots.remove(1))), format!("{of} `exp_avg_sq`, is missing"));
    assert_eq!(
        refuse(|slots| slots[0].value = Tensor::zeros([3, 2], (Kind::Float, Device::Cpu))),
        format!("{of} `exp_avg`, is Float [3, 2], and Float [2, 3] is needed")
    );
    assert_eq!(
        refuse(|slots| slots[1].name = "sum".into()),
        format!("{of} `sum`, is not known: this optimizer has exp_avg, exp_avg_sq, step")
    );
    assert_eq!(
        refuse(|slots| slots[2].value = Tensor::from(1.5f32)),
        format!("{of} `step`, is 1.5, which is not a count of steps")
    );
}

#[test]
fn every_option_is_a_key_and_every_key_an_option() {
    for (case, spec) in read().specs {
        let json = serde_json::to_value(&spec).unwrap();
        let mut options: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        options.retain(|option| *option != "type");
        let entry = OPTIMIZERS.iter().find(|entry| entry.name == spec.name()).unwrap();
        assert_eq!(json["type"], entry.name);
        let mut keys: Vec<&str> =
            entry.keys.iter().filter(|key| key.kind().is_ok()).map(|key| key.name()).collect();
        keys.sort_unstable();
        assert_eq!(options, keys, "{case}");
        assert!(entry.keys.iter().all(|key| key.kind().is_err() || key.doc().ends_with('.')), "{case}");
        assert!(entry.doc.ends_with('.'), "{case}");
    }
}

#[test]
fn optimizers_on_several_threads_all_move_the_parameters() {
    let params = vec![Tensor::zeros([1000], (Kind::Float, Device::Cpu))];
    let spec = OptimizerSpec::Sgd(Sgd {
        lr: 1.0,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        maximize: true,
    });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut own = Optimizer::new(spec.clone(), &params).unwrap();
            let params = vec![params[0].shallow_clone()];
            scope.spawn(move || {
                let grads = vec![Some(Tensor::ones([1000], (Kind::Float, Device::Cpu)))];
                for _ in 0..100 {
                    own.step(&params, &grads, 1.0).unwrap();
                }
            });
        }
    });
    // Updates that meet may be lost; that is what Hogwild allows. None may be torn.
    let (low, high) = (params[0].min().double_value(&[]), params[0].max().double_value(&[]));
    assert!(low >= 1.0 && high <= 400.0 && low.fract() == 0.0, "{low} {high}");
}

#[test]
fn sparse_gradients_go_where_pytorch_lets_them() {
    let figures = read();
    let taken = ["sgd/default", "sgd/maximize", "sgd/sparse", "sgd/sparse_maximize"];
    for (case, spec) in &figures.specs {
        let params = figures.start("sparse", Kind::Float);
        let mut optimizer = Optimizer::new(spec.clone(), &params).unwrap();
        let done = optimizer.step(&params, &figures.grads("sparse", 1, Kind::Float), 1.0);
        let decays = matches!(spec, OptimizerSpec::Adagrad(options) if options.weight_decay > 0.0);
        let takes = taken.contains(&case.as_str()) || case.starts_with("adagrad") && !decays;
        match done {
            Ok(()) => assert!(takes, "{case}"),
            Err(OptimizerError::Sparse { .. }) => {
                assert!(!takes, "{case}");
                params[0].assert_close(&figures.start("sparse", Kind::Float)[0], 0.0, case);
            }
            Err(other) => panic!("{case}: {other}"),
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_a_hint() {
    let figures = read();
    let spec = |case: &str| figures.specs[case].clone();
    let params = figures.start("", Kind::Float);
    let mut momentum = Optimizer::new(spec("sgd/momentum"), &params).unwrap();
    let message = |result: Result<(), OptimizerError>| result.unwrap_err().to_string();
    assert_eq!(
        message(momentum.step(&params, &[None], 1.0)),
        "optimizer sgd: 1 gradients came for 2 parameters"
    );
    let wrong = vec![Some(Tensor::zeros([4, 3], (Kind::Float, Device::Cpu))), None];
    assert_eq!(
        message(momentum.step(&params, &wrong, 1.0)),
        "optimizer sgd: parameter 0 has shape [3, 4], its gradient has [4, 3]"
    );
    let table = figures.start("sparse", Kind::Float);
    let mut momentum = Optimizer::new(spec("sgd/momentum"), &table).unwrap();
    let text = message(momentum.step(&table, &figures.grads("sparse", 1, Kind::Float), 1.0));
    assert!(
        text.starts_with(
            "optimizer sgd: parameter 0 has a sparse gradient, which it cannot apply with momentum\n  hint: "
        ),
        "{text}"
    );
    let refuse = |spec| Optimizer::new(spec, &[]).unwrap_err().to_string();
    let OptimizerSpec::Adam(adam) = spec("adam/default") else { panic!() };
    let text = refuse(OptimizerSpec::Adam(Adam { betas: [0.9, f64::NAN], ..adam }));
    assert_eq!(
        text,
        "optimizer adam: betas[1] = NaN is not a number at least 0 and below 1\n  hint: use a number at least 0 and below 1"
    );
    let OptimizerSpec::Sgd(sgd) = spec("sgd/default") else { panic!() };
    let text = refuse(OptimizerSpec::Sgd(Sgd { nesterov: true, ..sgd }));
    assert_eq!(
        text,
        "optimizer sgd: nesterov = true needs a momentum and no dampening; there are 0 and 0\n  hint: for example momentum = 0.9, and leave dampening out"
    );
    let counts = Tensor::zeros([2], (Kind::Int64, Device::Cpu));
    assert!(Optimizer::new(spec("sgd/default"), &[counts]).unwrap_err().to_string().contains("is of Int64"));
}
