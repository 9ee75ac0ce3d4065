//! What the models of `jobs/` give is what the same models give in plain PyTorch (`tests/data/jobs.py`): of made-up parameters,
//! by PyTorch's own figures; of those that a run has saved, with PyTorch at hand.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::*;
use crate::support::runs_by_default;
use flate2::Crc;
use pstrain::job::{self, JobText, Override, Source, Sources, Training};
use pstrain::model::{self, Mode, Module};
use pstrain::plugin::{Host, Loss};
use pstrain::runner::loader::Schedule;
use pstrain::runner::samples::Split;
use tch::{Device, Kind, Tensor, no_grad};

/// Relative to the largest output, if that is above 1.
const CLOSE: f64 = 1e-6;

struct Case {
    job: &'static str,
    /// What makes it a run of a few steps. Its tables have the rows of the samples that it is tested on.
    settings: &'static [&'static str],
    /// The made-up samples' fields, as the model takes them.
    fields: &'static [MadeField],
}

/// A field of made-up samples, and its shape. Where they are ids, what they are below: all, or those of each column.
struct MadeField(&'static str, &'static [i64], &'static [i64]);

const CASES: [Case; 5] = [
    Case {
        job: "char_lm",
        settings: &["train.steps=4", "data.test.length=64", "data.train.stride=64"],
        fields: &[MadeField("input", &[2, 64], &[256])],
    },
    Case {
        job: "images",
        settings: &["train.steps=3"],
        fields: &[MadeField("images", &[3, 3, 32, 32], &[])],
    },
    Case {
        job: "two_tower",
        settings: &["train.steps=5", "data.test.samples=500"],
        fields: &[MadeField("ids", &[5, 3], &[10_200])],
    },
    Case {
        job: "wide_deep",
        settings: &[
            "train.epochs=3",
            "train.batch_size=256",
            "data.train.samples=1024",
            "data.test.samples=500",
            "data.test.offset=0",
        ],
        fields: &[MadeField("ids", &[5, 3], &[100_200])],
    },
    Case {
        job: "dlrm",
        settings: &[
            "train.epochs=2",
            "train.batch_size=128",
            "data.train.samples=512",
            "data.test.samples=300",
            "data.test.offset=0",
        ],
        fields: &[MadeField("dense", &[5, 13], &[]), MadeField("categories", &[5, 26], &DLRM_ROWS)],
    },
];

const DLRM_ROWS: [i64; 26] = [
    1_000, 500, 100_000, 50_000, 300, 20, 10_000, 600, 3, 50_000, 5_000, 100_000, 3_000, 26, 10_000, 100_000,
    10, 4_000, 2_000, 4, 100_000, 18, 15, 50_000, 100, 30_000,
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Case {
    fn path(&self) -> PathBuf {
        repository().join("jobs").join(self.job).with_extension("toml")
    }

    fn settings(&self) -> Vec<String> {
        let settings = self.settings.iter().map(|setting| (*setting).to_owned());
        // The others have no root or one that is inside the program.
        let texts = format!("data.root={}", repository().display());
        settings.chain((self.job == "char_lm").then_some(texts)).collect()
    }

    fn training(&self) -> Training {
        let (path, text) = (self.path().display().to_string(), fs::read_to_string(self.path()).unwrap());
        let overrides: Vec<Override> =
            self.settings().iter().map(|setting| Override::set(setting).unwrap()).collect();
        let file = JobText { name: &path, text: &text };
        let resolved = job::load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap();
        resolved.job.training().unwrap().clone()
    }
}

/// The job's modules in this process, each with its parameters.
struct Model {
    training: Training,
    modules: Vec<(Module, Vec<Tensor>)>,
}

impl Model {
    /// `tensor`: a parameter or a buffer by the name that it is saved under, and what it is like.
    fn new(training: Training, tensor: impl Fn(&str, &Tensor) -> Tensor) -> Model {
        let several = training.modules.len() > 1;
        let build = |(position, spec): (usize, &job::ModuleSpec)| {
            let module = Module::build(spec, &[Device::Cpu], training.module_seed(position)).unwrap();
            let prefix = if several { format!("{}.", module.name()) } else { String::new() };
            let drawn = module.initial_parameters().unwrap();
            let parameters = module.parameters().iter().zip(drawn);
            let parameters =
                parameters.map(|(info, drawn)| tensor(&format!("{prefix}{}", info.name), &drawn)).collect();
            for mut kept in module.kept() {
                let given = tensor(&format!("{prefix}{}", kept.name), &kept.tensor);
                no_grad(|| kept.tensor.copy_(&given));
            }
            (module, parameters)
        };
        let modules = training.modules.iter().enumerate().map(build).collect();
        Model { training, modules }
    }

    /// The outputs for a batch of the job's fields.
    fn outputs(&self, fields: &[Tensor]) -> Vec<Tensor> {
        let mut given: Vec<Vec<Tensor>> = Vec::new();
        let value = |given: &[Vec<Tensor>], source: &Source| match *source {
            Source::Field(field) => fields[field].shallow_clone(),
            Source::Output { module, output } => given[module][output].shallow_clone(),
        };
        for ((module, parameters), spec) in self.modules.iter().zip(&self.training.modules) {
            let inputs: Vec<Tensor> = spec.sources.iter().map(|source| value(&given, source)).collect();
            let mode = Mode { train: false, dropout_seed: 0 };
            given.push(no_grad(|| module.outputs(parameters, &inputs, mode)).unwrap());
        }
        self.training.loss.from.iter().map(|source| value(&given, source)).collect()
    }
}

/// As `made` in jobs.py.
fn made(name: &str, count: i64) -> Vec<f64> {
    let mut crc = Crc::new();
    crc.update(name.as_bytes());
    let number = |at: u64| {
        let mut state = (at.wrapping_mul(1_103_515_245) + u64::from(crc.sum())) & 0xffff_ffff;
        for shift in [15, 13] {
            state = ((state ^ (state >> shift)).wrapping_mul(1_103_515_245)) & 0xffff_ffff;
        }
        state as f64 / 2f64.powi(32)
    };
    (0..count.cast_unsigned()).map(number).collect()
}

/// As `parameter` in jobs.py.
fn made_parameter(name: &str, like: &Tensor) -> Tensor {
    if like.dim() == 0 {
        return like.shallow_clone();
    }
    let (count, size) = (like.numel() as i64, like.size());
    let numbers = made(name, count).into_iter().map(|number| match () {
        () if size.len() > 1 => (number - 0.5) * 3.0 / ((count / size[0]) as f64).sqrt(),
        () if name.ends_with("weight") || name.ends_with("running_var") => number + 0.5,
        () => number - 0.5,
    });
    Tensor::from_slice(&numbers.map(|number| number as f32).collect::<Vec<_>>()).reshape(size)
}

fn made_field(&MadeField(name, shape, below): &MadeField) -> Tensor {
    let numbers = made(name, shape.iter().product());
    let flat = match below {
        [] => Tensor::from_slice(&numbers.iter().map(|number| *number as f32).collect::<Vec<_>>()),
        below => {
            let ids = numbers.iter().zip(below.iter().cycle());
            let ids = ids.map(|(number, &below)| (number * below as f64) as i64);
            Tensor::from_slice(&ids.collect::<Vec<_>>())
        }
    };
    flat.reshape(shape)
}

#[test]
fn models_of_jobs_give_what_pytorch_gives() {
    let figures = model::load(&repository().join("tests/data/jobs.safetensors")).unwrap();
    for case in &CASES {
        let model = Model::new(case.training(), made_parameter);
        let made: Vec<Tensor> = case.fields.iter().map(made_field).collect();
        let [output] = &model.outputs(&made)[..] else { panic!("one output") };
        let (_, wanted) = figures.iter().find(|(name, _)| name == case.job).unwrap();
        let step = (output.numel() as i64 / 2048).max(1);
        let some = output.flatten(0, -1).slice(0, None, None, step);
        assert_eq!(some.size(), wanted.size(), "{}", case.job);
        let off = (&some - wanted).abs().max().double_value(&[]);
        let largest = wanted.abs().max().double_value(&[]);
        assert!(off <= CLOSE * largest.max(1.0), "{}: {off}", case.job);
    }
}

/// What a run has saved, and in `ours.safetensors` fields, outputs and loss of its test samples: the outputs as `pstrain predict`
/// tells them, which are those that this process makes of what was saved.
fn ran(case: &Case, folder: &Path) {
    let settings = case.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    assert_code(&finish(&mut spawn(folder, case.path().to_str(), &settings)), 0);
    let saved = model::load(&crate::program::model(folder)).unwrap();
    let find = |name: &str| saved.iter().find(|(saved, _)| saved == name).map(|(_, tensor)| tensor);
    // Of a table that lies on several ranks the rows are saved that there are.
    let whole = |name: &str, like: &Tensor| {
        let tensor = find(name).unwrap_or_else(|| panic!("{name} was not saved"));
        match name.strip_suffix("weight").and_then(|table| find(&format!("{table}ids"))) {
            Some(ids) => like.zeros_like().index_copy(0, ids, tensor),
            None => tensor.shallow_clone(),
        }
    };
    let model = Model::new(case.training(), whole);
    let training = &model.training;
    let root = match training.data.root {
        job::DataRoot::Folder(ref folder) => folder.clone(),
        job::DataRoot::Builtin(ref name) => pstrain::runner::builtin::unpack(name).unwrap(),
        job::DataRoot::Nothing => folder.to_owned(),
    };
    let host = Host::new(None).unwrap();
    let state = Split::open(&host, training, &root).unwrap().info().state.clone();
    let mut split = Split::open_test(&host, training, &root, state).unwrap().expect("test samples");
    let component = host.load_ref(&training.loss.plugin).unwrap();
    let mut loss = Loss::open(&component, &training.loss.params, training.plugin_limits).unwrap();

    let schedule = Schedule::for_evaluation(split.samples(), training.eval.batch_size, 0, 1).unwrap();
    let names = split.info().fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
    let (mut outputs, mut sum) = (Vec::new(), 0.0);
    let mut fields: Vec<Vec<Tensor>> = training.fields.iter().map(|_| Vec::new()).collect();
    for batch in schedule.batches() {
        let samples = split.batch(&batch.indices).unwrap();
        let output = model.outputs(&samples.fields);
        let computed = loss.compute(&output, &samples.take(&training.loss.targets), false).unwrap();
        sum += computed.loss.double_value(&[]) * samples.count as f64;
        outputs.extend(output);
        fields.iter_mut().zip(&samples.fields).for_each(|(all, field)| all.push(field.shallow_clone()));
    }
    // The ranks have evaluated what they have saved, and each its own way.
    let evaluated = summary(folder)["eval"]["loss"].as_f64().unwrap();
    let mean = sum / split.samples() as f64;
    assert!((mean - evaluated).abs() <= CLOSE * mean.max(1.0), "{}: {evaluated}, not {mean}", case.job);

    let mut ours: Vec<(String, Tensor)> = Vec::new();
    for (field, parts) in training.fields.iter().zip(&fields) {
        let name = match &field.name {
            job::FieldName::Named(name) => name.clone(),
            job::FieldName::Nth(nth) => names[*nth].clone(),
        };
        ours.push((name, Tensor::cat(parts, 0)));
    }
    let computed = Tensor::cat(&outputs, 0);
    // Those that nothing normalizes, which is done for the model alone.
    let passed: Vec<_> = ours.iter().filter(|(_, field)| field.kind() != Kind::Float).collect();
    let fields: Vec<&str> = passed.iter().flat_map(|(name, _)| ["--field", name]).collect();
    let predict = |file: &str, more: &[&str]| {
        let args = ["predict", "RUN", "--out", file, "--master-port", "0"];
        assert_code(&finish(pstrain(folder).args(args).args(&fields).args(more)), 0);
        let mut predicted = model::load(&folder.join(file)).unwrap();
        for (name, field) in &passed {
            let place =
                predicted.iter().position(|(other, _)| other == name).expect("a field that was passed on");
            assert_eq!(predicted.remove(place).1.to_kind(field.kind()), *field, "{}: {name}", case.job);
        }
        let [(_, predicted)] = &predicted[..] else { panic!("one output") };
        let off = (predicted - &computed).abs().max().double_value(&[]);
        let largest = computed.abs().max().double_value(&[]);
        assert!(off <= CLOSE * largest.max(1.0), "{}, {more:?}: {off}", case.job);
        predicted.shallow_clone()
    };
    let _ = predict("alone.safetensors", &["--one-rank"]);
    let predicted = predict("predicted.safetensors", &[]);
    ours.push(("output".into(), predicted));
    ours.push(("loss".into(), Tensor::from(evaluated).to_kind(Kind::Double)));
    model::save(&folder.join("ours.safetensors"), &ours).unwrap();
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn what_a_run_saves_gives_the_loss_that_it_has_evaluated() {
    for case in CASES.iter().filter(|_| runs_by_default()) {
        ran(case, tempfile::tempdir().unwrap().path());
    }
}

#[test]
#[ignore = "needs a Python with PyTorch: `make interop` runs it"]
fn what_a_run_saves_gives_the_same_outputs_in_python() {
    for case in &CASES {
        let folder = tempfile::tempdir().unwrap();
        ran(case, folder.path());
        let ours = folder.path().join("ours.safetensors");
        let mut command = interop_python("tests/data/jobs.py");
        command.args(["compare", case.job]).arg(crate::program::model(folder.path())).arg(&ours);
        assert_code(&finish(&mut command), 0);
        // And so does what is exported, of the same fields; one that the job does not name is the only one.
        assert_code(&finish(pstrain(folder.path()).args(["export", "RUN", "--to", "python"])), 0);
        let exported = folder.path().join("RUN/export");
        let mut called = model::load(&ours).unwrap();
        if let [MadeField(name, ..)] = case.fields {
            called.iter_mut().filter(|(of, _)| of == name).for_each(|(of, _)| *of = "input0".into());
        }
        model::save(&exported.join("called.safetensors"), &called).unwrap();
        assert_code(&finish(interop_python("tests/data/export.py").arg(&exported)), 0);
    }
}
