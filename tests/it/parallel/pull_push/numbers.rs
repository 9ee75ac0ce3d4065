//! The numbers of whole jobs against plain libtorch operations in this process.

use pstrain::job::Training;
use pstrain::model::Module;
use pstrain::plugin::Host;
use pstrain::runner;
use pstrain::runner::loader::Schedule;
use pstrain::runner::samples::Split;
use tch::{Tensor, no_grad};

use super::{JOB, train, training};

/// An update by the textbook, of one parameter.
#[derive(Debug)]
enum Rule {
    /// PyTorch's documentation of SGD.
    Sgd { lr: f64, momentum: f64 },
    /// Kingma and Ba, 2015, algorithm 1.
    Adam { lr: f64 },
}

impl Rule {
    fn apply(&self, parameter: &mut Tensor, gradient: &Tensor, slots: &mut [Tensor; 2], step: i32) {
        let update = match self {
            Rule::Sgd { lr, momentum } => {
                slots[0] = &slots[0] * *momentum + gradient;
                &slots[0] * *lr
            }
            Rule::Adam { lr } => {
                slots[0] = &slots[0] * 0.9 + gradient * 0.1;
                slots[1] = &slots[1] * 0.999 + gradient * gradient * 0.001;
                let (mean, square) =
                    (&slots[0] / (1.0 - 0.9f64.powi(step)), &slots[1] / (1.0 - 0.999f64.powi(step)));
                mean / (square.sqrt() + 1e-8) * *lr
            }
        };
        no_grad(|| {
            let _ = parameter.g_sub_(&update);
        });
    }
}

/// Linear layers with relu between them, on the batches of all trainers at once. Of the program it has the first
/// parameters and the data.
fn one_process(job: &Training, rule: &Rule, steps: i32) -> Vec<Tensor> {
    let first = |(position, spec)| {
        let module = Module::build(spec, &[tch::Device::Cpu], job.module_seed(position)).unwrap();
        module.initial_parameters().unwrap()
    };
    let mut parameters: Vec<Tensor> =
        job.modules.iter().enumerate().flat_map(first).map(|tensor| tensor.set_requires_grad(true)).collect();
    let mut slots: Vec<[Tensor; 2]> = parameters
        .iter()
        .map(|tensor| [tensor.detach().zeros_like(), tensor.detach().zeros_like()])
        .collect();

    let host = Host::new(None).unwrap();
    let root = runner::builtin::unpack("digits").unwrap();
    let mut split = Split::open(&host, job, &root).unwrap();
    let trainers = job.train.trainers.ranks.len() as u32;
    let schedules: Vec<Schedule> =
        (0..trainers).map(|at| Schedule::for_training(job, split.samples(), at).unwrap()).collect();
    let mut batches: Vec<_> = schedules.iter().map(Schedule::batches).collect();
    for step in 1..=steps {
        let indices = batches.iter_mut().flat_map(|batches| batches.next().unwrap().indices);
        let samples = split.batch(&indices.collect::<Vec<u64>>()).unwrap();
        let mut output = samples.fields[0].shallow_clone();
        for (layer, linear) in parameters.chunks(2).enumerate() {
            let input = if layer == 0 { output } else { output.relu() };
            output = input.matmul(&linear[0].transpose(0, 1)) + &linear[1];
        }
        output.cross_entropy_for_logits(&samples.fields[1]).backward();
        for (parameter, slots) in parameters.iter_mut().zip(&mut slots) {
            let mut gradient = parameter.grad();
            rule.apply(parameter, &gradient, slots, step);
            let _ = gradient.zero_();
        }
    }
    parameters
}

#[track_caller]
fn assert_near(trained: &[(String, Tensor)], names: &[&str], expected: &[Tensor]) {
    assert_eq!(trained.len(), expected.len());
    for (name, expected) in names.iter().zip(expected) {
        let (_, tensor) = trained.iter().find(|(found, _)| found == name).expect("PyTorch's names");
        let difference = (tensor - expected).abs().max().double_value(&[]);
        assert!(difference <= 1e-5, "{name}: {difference}");
    }
}

const NAMES: [&str; 4] = ["0.weight", "0.bias", "2.weight", "2.bias"];
const SERVERS: [[&str; 2]; 3] = [
    ["roles.server=1", "cluster.world_size=3"],
    ["roles.server=2", "cluster.world_size=4"],
    ["roles.server=3", "cluster.world_size=5"],
];

/// And the same bits, however the parameters are cut.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn rounds_of_two_trainers_follow_plain_torch_with_any_number_of_servers() {
    let sgd = ["optimizer.momentum=0.9"];
    let adam = ["optimizer.type=adam", "optimizer.lr=0.01"];
    for (optimizer, rule) in
        [(&sgd[..], Rule::Sgd { lr: 0.1, momentum: 0.9 }), (&adam, Rule::Adam { lr: 0.01 })]
    {
        let expected = one_process(&training(JOB, &[]), &rule, 20);
        let mut all = Vec::new();
        for servers in SERVERS {
            let settings = [&servers[..], optimizer, &["train.steps=20"]].concat();
            let (trained, _) = train(JOB, &settings);
            assert_near(&trained, &NAMES, &expected);
            all.push(trained);
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{rule:?}: the same bits");
    }
}

/// The last of them are fewer: 22 steps are five synchronisations and a half.
#[test]
fn local_steps_of_one_trainer_are_steps_of_plain_sgd() {
    let alone = ["roles.trainer=1", "cluster.world_size=3", "train.steps=22"];
    let expected = one_process(&training(JOB, &alone), &Rule::Sgd { lr: 0.1, momentum: 0.0 }, 22);
    for consistency in ["async", "bsp", "hogwild"] {
        let consistency = format!("train.consistency={consistency}");
        let (trained, summary) = train(JOB, &[&alone[..], &["train.local_steps=4", &consistency]].concat());
        assert_near(&trained, &NAMES, &expected);
        assert_eq!(summary["steps"], 22);
        // 2,410 values of 4 bytes: six pushes, and a pull at the start and with each push.
        assert_eq!(summary["pull_push"]["pushed_bytes"], 6 * 9640);
        assert_eq!(summary["pull_push"]["pulled_bytes"], 7 * 9640);
    }
}

/// Parameters pulled from two servers, a module hosted by another rank, and replicas behind it.
#[test]
fn modules_of_all_placements_follow_one_process() {
    let modules = r#"
[modules.a]
place = "server"
run = "caller"
input = [64]
layers = [ { type = "linear", in_features = 64, out_features = 32 }, "relu" ]
[modules.b]
place = "owner"
layers = [ { type = "linear", in_features = 32, out_features = 24 }, "relu" ]
[modules.c]
place = "trainer"
layers = [ { type = "linear", in_features = 24, out_features = 10 } ]
"#;
    let (before, rest) = JOB.split_once("[modules.net]").unwrap();
    let (_, after) = rest.split_once("[data]").unwrap();
    let job = format!("{before}{modules}[data]{after}")
        .replace("trainer = 2", "owner = 1\ntrainer = 2")
        .replace("[train]", "[train]\nforward = [\"a\", \"b\", \"c\"]");
    let settings = ["cluster.world_size=5", "train.steps=20", "optimizer.momentum=0.9"];
    let rule = Rule::Sgd { lr: 0.1, momentum: 0.9 };
    let expected = one_process(&training(&job, &settings), &rule, 20);
    let (trained, _) = train(&job, &settings);
    let names = ["a.0.weight", "a.0.bias", "b.0.weight", "b.0.bias", "c.0.weight", "c.0.bias"];
    assert_near(&trained, &names, &expected);
}
