//! Every layer as `pstrain export` writes it: with the same parameters PyTorch's module gives what ours does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::layers::{load_job, read};
use crate::program::{assert_code, finish, interop_python};
use pstrain::job::Training;
use pstrain::layers::{LAYERS, Layer};
use pstrain::model::{Mode, Module, save};
use pstrain::runner::export::Export;
use pstrain::runner::run_folder::WhichModel;
use tch::{Device, Kind, Tensor};

/// A run folder at `folder` and, beside the exported files, what the model gives: `called.safetensors`.
fn exported(folder: &Path, job: &str, state: &[(String, Tensor)], inputs: &[Tensor], output: &Tensor) {
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("job.toml"), job).unwrap();
    save(&folder.join("model.safetensors"), state).unwrap();
    Export { run: folder, out: None, which: WhichModel::Last, force: false }
        .write()
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut called = vec![("output".to_owned(), output.shallow_clone())];
    called.extend(inputs.iter().enumerate().map(|(nth, input)| (format!("input{nth}"), input.contiguous())));
    save(&folder.join("export/called.safetensors"), &called).unwrap();
}

fn module(training: &Training) -> Module {
    Module::build(&training.modules[0], &[Device::Cpu], 0).unwrap()
}

fn names_of(layers: &[Layer], names: &mut BTreeSet<&'static str>) {
    for layer in layers {
        names.insert(layer.op.name());
        names_of(layer.op.inner(), names);
    }
}

/// Every layer, with the parameters and inputs of its figures, in evaluation.
fn exported_figures(folder: &Path) {
    let mut names = BTreeSet::new();
    for (name, case) in read() {
        let (job, state) = (case.job(), case.state());
        let resolved = load_job(&job).unwrap();
        let training = resolved.job.training().unwrap();
        names_of(training.modules[0].layers(), &mut names);
        let file = folder.join("start.safetensors");
        save(&file, &state).unwrap();
        let module = module(training);
        let params = module.start_from(&file.clone().into()).unwrap();
        let output = module.forward(&params, &case.inputs(), Mode::EVAL).unwrap();
        exported(&folder.join(name), &job, &state, &case.inputs(), &output);
    }
    let all: BTreeSet<&str> = LAYERS.iter().map(|entry| entry.name).collect();
    assert_eq!(names, all, "every layer is exported");
}

/// Names that are none in Python, and tables of which a run has saved some rows: no figures have them.
fn exported_others(folder: &Path) {
    let named = r#"
        [modules.net]
        place = "trainer"
        input = [3]
        layers = [{ type = "residual", name = "class", layers = [
            { type = "linear", in_features = 3, out_features = 3, name = "a-b" }, "relu" ] }]"#;
    let job = job(named);
    let module = module(load_job(&job).unwrap().job.training().unwrap());
    let params = module.initial_parameters().unwrap();
    let input = Tensor::from_slice(&[1.0_f32, -2.0, 0.5]).unsqueeze(0);
    let output = module.forward(&params, &[input.shallow_clone()], Mode::EVAL).unwrap();
    let names = module.parameters().iter().map(|info| info.name.clone());
    let state: Vec<_> = names.zip(params.iter().map(Tensor::copy)).collect();
    exported(&folder.join("named"), &job, &state, &[input], &output);

    // Rows of ids 2, 5 and 900.
    let table = table("type = \"embedding\", num_embeddings = 1000", "[3]");
    let input = Tensor::from_slice(&[900_i64, 2, 5]).unsqueeze(0);
    let output = Tensor::from_slice(&[4.0_f32, 5.0, 0.0, 1.0, 2.0, 3.0]).unsqueeze(0);
    exported(&folder.join("seen"), &table, &rows("", 0, &[2, 5, 900]), &[input], &output);

    // And those of 0 and 7 of another table.
    let bags = self::table("type = \"embedding_bag\", mode = \"sum\", num_embeddings = [1000, 8]", "[2, 3]");
    let input = Tensor::from_slice(&[900_i64, 2, -1, -1, 7, -1]).view([1, 2, 3]);
    let output = Tensor::from_slice(&[4.0_f32, 6.0, 8.0, 9.0]).unsqueeze(0);
    let state: Vec<_> = rows("0.", 0, &[2, 5, 900]).into_iter().chain(rows("1.", 3, &[0, 7])).collect();
    exported(&folder.join("seen_bags"), &bags, &state, &[input], &output);
}

fn job(modules: &str) -> String {
    format!(
        "[roles]\nserver = 2\ntrainer = 1\n[data]\nplugin = \"own.wasm\"\n[loss]\nplugin = \"mse\"\n\
         [optimizer]\ntype = \"sgd\"\nlr = 0.1\n{modules}\n"
    )
}

/// A table that is cut by hash.
fn table(layer: &str, input: &str) -> String {
    let modules = format!(
        "[train]\nforward = [\"table\", \"head\"]\n\
         [modules.table]\nplace = \"server\"\nshards = \"hash\"\ninput = {input}\ninput_dtype = \"int64\"\n\
         layers = [{{ embedding_dim = 2, {layer} }}]\n\
         [modules.head]\nplace = \"trainer\"\nlayers = [\"flatten\", {{ type = \"prelu\", init = 1.0 }}]"
    );
    job(&modules)
}

/// Those of some ids, as a run saves them, with numbers that count from 0 on.
fn rows(part: &str, first: i64, ids: &[i64]) -> Vec<(String, Tensor)> {
    let all = Tensor::arange(10, (Kind::Float, Device::Cpu)).view([5, 2]);
    let mut rows = vec![
        (format!("table.0.{part}weight"), all.narrow(0, first, ids.len() as i64)),
        (format!("table.0.{part}ids"), Tensor::from_slice(ids)),
    ];
    if first == 0 {
        rows.push(("head.1.weight".into(), Tensor::from_slice(&[1.0_f32])));
    }
    rows
}

#[test]
fn every_layer_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    exported_figures(folder.path());
    exported_others(folder.path());
}

#[test]
#[ignore = "needs a Python with PyTorch: `make interop` runs it"]
fn every_layer_gives_the_same_outputs_in_python() {
    let folder = tempfile::tempdir().unwrap();
    exported_figures(folder.path());
    exported_others(folder.path());
    let runs = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut runs: Vec<_> = runs.filter(|path| path.is_dir()).map(|run| run.join("export")).collect();
    runs.sort();
    let output = finish(interop_python("tests/data/export.py").args(runs));
    assert_code(&output, 0);
}
