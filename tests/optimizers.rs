//! Every optimizer against PyTorch's own trajectories (`tests/data/optimizers.py`), with and without each option.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model_common;

use std::collections::BTreeMap;

use model_common::{Close, figures};
use pstrain::autograd::optimizer::{Optimizer, OptimizerError};
use pstrain::job::optimizer::OptimizerSpec;
use pstrain::model::load;
use tch::{Device, Kind, Tensor};

const STEPS: i64 = 20;

struct Figures {
    specs: BTreeMap<String, OptimizerSpec>,
    numbers: BTreeMap<String, Tensor>,
}

fn read() -> Figures {
    let text = std::fs::read_to_string(figures("optimizers.json")).unwrap();
    let numbers = load(&figures("optimizers.safetensors")).unwrap().into_iter().collect();
    Figures { specs: serde_json::from_str(&text).unwrap(), numbers }
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
}

fn follow(kind: Kind, suffix: &str, tolerance: f64) {
    let figures = read();
    for (case, spec) in &figures.specs {
        let params = figures.start(case, kind);
        let mut optimizer = Optimizer::new(spec.clone(), &params).unwrap();
        for step in 1..=STEPS {
            optimizer.step(&params, &figures.grads(case, step, kind)).unwrap();
            for (at, param) in params.iter().enumerate() {
                let path = figures.number(&format!("{case}/{suffix}/{at}"));
                param.assert_close(&path.get(step - 1), tolerance, &format!("{case}, step {step}"));
            }
        }
    }
}

#[test]
fn every_optimizer_follows_pytorchs_trajectory() {
    follow(Kind::Float, "f32", 1e-6);
}

/// In f64 rounding cannot hide a difference in the rule.
#[test]
fn every_optimizer_computes_pytorchs_rule() {
    follow(Kind::Double, "f64", 1e-13);
}

#[test]
fn optimizers_on_several_threads_all_move_the_parameters() {
    let params = vec![Tensor::zeros([1000], (Kind::Float, Device::Cpu))];
    let spec = OptimizerSpec::Sgd {
        lr: 1.0,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        maximize: true,
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut own = Optimizer::new(spec.clone(), &params).unwrap();
            let params = vec![params[0].shallow_clone()];
            scope.spawn(move || {
                let grads = vec![Some(Tensor::ones([1000], (Kind::Float, Device::Cpu)))];
                for _ in 0..100 {
                    own.step(&params, &grads).unwrap();
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
        let done = optimizer.step(&params, &figures.grads("sparse", 1, Kind::Float));
        let decays = matches!(spec, OptimizerSpec::Adagrad { weight_decay, .. } if *weight_decay > 0.0);
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
    assert_eq!(message(momentum.step(&params, &[None])), "optimizer sgd: 1 gradients came for 2 parameters");
    let wrong = vec![Some(Tensor::zeros([4, 3], (Kind::Float, Device::Cpu))), None];
    assert_eq!(
        message(momentum.step(&params, &wrong)),
        "optimizer sgd: parameter 0 has shape [3, 4], its gradient has [4, 3]"
    );
    let table = figures.start("sparse", Kind::Float);
    let mut momentum = Optimizer::new(spec("sgd/momentum"), &table).unwrap();
    let text = message(momentum.step(&table, &figures.grads("sparse", 1, Kind::Float)));
    assert!(
        text.starts_with(
            "optimizer sgd: parameter 0 has a sparse gradient, which it cannot apply with momentum\n  hint: "
        ),
        "{text}"
    );
    let refuse = |spec| Optimizer::new(spec, &[]).unwrap_err().to_string();
    let OptimizerSpec::Adam { lr, eps, weight_decay, amsgrad, maximize, .. } = spec("adam/default") else {
        panic!()
    };
    let text =
        refuse(OptimizerSpec::Adam { lr, betas: [0.9, f64::NAN], eps, weight_decay, amsgrad, maximize });
    assert_eq!(
        text,
        "optimizer adam: betas[1] = NaN is not possible\n  hint: it is at least 0 and less than 1"
    );
    let text = refuse(OptimizerSpec::Sgd {
        lr: 0.1,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: true,
        maximize: false,
    });
    assert_eq!(
        text,
        "optimizer sgd: nesterov = true is not possible\n  hint: it needs a momentum and no dampening"
    );
    let counts = Tensor::zeros([2], (Kind::Int64, Device::Cpu));
    assert!(Optimizer::new(spec("sgd/default"), &[counts]).unwrap_err().to_string().contains("is of Int64"));
}
