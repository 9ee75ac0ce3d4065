//! A DLRM, two towers, a diamond and a ConvNet, each under many placements, of which a part runs by default. Real processes.

use std::fs;

use super::models::Place::{self, Caller, Hash, Remote, RemoteReplicas, Replicas, Rows, Stages, With};
use super::models::{
    self, BAGS, COLUMNS, CONV, CONV_PLACES, DIAMOND, DLRM, HEADS, Model, SCALED, SCRIPT, Samples, TOWERS,
    data, job_of, run,
};
use crate::program::*;
use crate::support::runs_by_default;
use pstrain::model;
use tch::{Kind, Tensor};

/// Below it two sums of the same numbers in other orders stay, over 50 steps.
pub const CLOSE: f64 = 1e-5;

fn train(model: &Model, places: &[Place], settings: &[&str]) -> Vec<(String, Tensor)> {
    model::load(&crate::program::model(run(model, places, settings).path())).unwrap()
}

#[track_caller]
fn assert_is_pytorchs(model: &Model, places: &[Place], settings: &[&str]) {
    assert_is(model, "", places, settings);
}

/// `how` it was trained there.
#[track_caller]
fn assert_is(model: &Model, how: &str, places: &[Place], settings: &[&str]) {
    if !runs_by_default() {
        return;
    }
    assert_are(model, how, places, settings, &train(model, places, settings));
}

#[track_caller]
pub fn assert_are(
    model: &Model,
    how: &str,
    places: &[Place],
    settings: &[&str],
    trained: &[(String, Tensor)],
) {
    let (name, difference) = farthest(model, how, places, trained);
    assert!(difference <= CLOSE, "{}, {places:?}, {settings:?}, {name}: {difference}", model.name);
}

/// Which of the tensors is farthest from PyTorch's, and how far in a number.
#[track_caller]
pub fn farthest(model: &Model, how: &str, places: &[Place], trained: &[(String, Tensor)]) -> (String, f64) {
    let cut = places.iter().any(|place| matches!(place, Rows | Hash));
    let figures = model::load(&data("graph.safetensors")).unwrap();
    let of_model = format!("{}{}{how}/", model.name, if cut { "_rows" } else { "" });
    let figures: Vec<_> = figures
        .into_iter()
        .filter_map(|(name, figure)| Some((name.strip_prefix(&of_model)?.to_owned(), figure)))
        .collect();
    let is_ids = |name: &str| name.ends_with(".ids");
    let saved = trained.iter().filter(|(name, _)| !is_ids(name)).count();
    assert_eq!(saved, figures.len(), "{places:?}");
    let find = |wanted: &str| trained.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    let mut farthest = (String::new(), 0.0);
    for (name, mut figure) in figures {
        let found = find(&name).unwrap_or_else(|| panic!("{places:?}: {name} was not saved"));
        let ids = name.strip_suffix("weight").and_then(|table| find(&format!("{table}ids")));
        if let Some(ids) = ids {
            figure = figure.index_select(0, ids);
        }
        let difference = (found - figure).abs().max().double_value(&[]);
        if difference >= farthest.1 || difference.is_nan() {
            farthest = (name, difference);
        }
    }
    farthest
}

#[test]
fn a_dlrm_equals_one_process_under_every_placement() {
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Remote, Replicas],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, Rows, Caller],
        [Replicas, Hash, RemoteReplicas],
        [Replicas, Replicas, Replicas],
        [Remote, With("bottom"), Stages],
    ] {
        assert_is_pytorchs(&DLRM, &places, &[]);
    }
    assert_is_pytorchs(&DLRM, &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_dlrm_with_a_table_for_each_column_equals_one_process_under_every_placement() {
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Remote, Replicas],
        [Replicas, Rows, Replicas],
        [Replicas, Hash, Remote],
        [Caller, Caller, Caller],
        [Replicas, Replicas, Replicas],
        [Caller, Hash, RemoteReplicas],
        [Remote, Rows, Caller],
    ] {
        assert_is_pytorchs(&COLUMNS, &places, &[]);
    }
    assert_is_pytorchs(&COLUMNS, &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn weighted_bags_equal_one_process_under_every_placement() {
    // Tables that are cut start from rows of their own, so both are or none.
    for places in [
        [Remote, Remote, Remote, Remote],
        [Replicas, Rows, Hash, Replicas],
        [Remote, Hash, Rows, Replicas],
        [Caller, Hash, Hash, Caller],
        [Replicas, Remote, Caller, Remote],
        [Remote, With("mix"), Caller, Remote],
        [Caller, Rows, Rows, RemoteReplicas],
    ] {
        assert_is_pytorchs(&BAGS, &places, &[]);
    }
    assert_is_pytorchs(&BAGS, &[Remote, Rows, Rows, Remote], &["pipeline.micro_batches=4"]);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn clipping_groups_two_optimizers_and_a_schedule_equal_one_process_under_every_placement() {
    let tuned = |model: &Model, places: &[Place]| {
        let settings = models::tuned(model);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        assert_is(model, "_tuned", places, &settings);
    };
    tuned(&DLRM, &[Remote, Remote, Remote]);
    tuned(&DLRM, &[Replicas, Rows, Replicas]);
    tuned(&DLRM, &[Caller, Hash, Caller]);
    tuned(&DLRM, &[Remote, Caller, Replicas]);
    tuned(&DLRM, &[Remote, With("bottom"), Stages]);
    tuned(&DLRM, &[Replicas, Hash, RemoteReplicas]);
    tuned(&COLUMNS, &[Remote, Rows, Caller]);
    tuned(&COLUMNS, &[Replicas, Replicas, Replicas]);
    tuned(&TOWERS, &[Remote, Remote, Remote]);
    tuned(&TOWERS, &[Caller, Replicas, RemoteReplicas]);
    tuned(&TOWERS, &[Stages, Remote, With("item")]);
    tuned(&TOWERS, &[Replicas, Caller, Remote]);
    tuned(&TOWERS, &[Replicas, Replicas, Replicas]);
    tuned(&TOWERS, &[RemoteReplicas, Remote, Caller]);
    tuned(&DIAMOND, &[Remote, Remote, Remote, Remote]);
    tuned(&DIAMOND, &[Remote, Caller, Remote, Replicas]);
    tuned(&DIAMOND, &[Caller, Remote, Caller, RemoteReplicas]);
    tuned(&DIAMOND, &[Replicas, Replicas, Replicas, Replicas]);
    tuned(&DIAMOND, &[Stages, Remote, Replicas, Caller]);
    tuned(&DIAMOND, &[Remote, With("a"), Caller, Remote]);
    for places in CONV_PLACES {
        tuned(&CONV, &places);
    }
}

#[test]
fn a_conv_net_equals_one_process_under_every_placement() {
    for places in CONV_PLACES {
        assert_is_pytorchs(&CONV, &places, &[]);
    }
    for average in ["all_reduce", "ring"] {
        assert_is_pytorchs(&CONV, &[Replicas, Replicas], &[&format!("replicas.average={average}")]);
    }
    assert_is_pytorchs(&CONV, &[Stages, Stages], &["pipeline.micro_batches=4"]);
}

#[test]
fn clipping_by_value_equals_one_process_under_every_placement() {
    let clipped = |model: &Model, places: &[Place]| {
        assert_is(model, "_clamped", places, &["optimizer.clip_value=0.002"]);
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, RemoteReplicas],
        [Remote, With("bottom"), Stages],
    ] {
        clipped(&DLRM, &places);
    }
    clipped(&COLUMNS, &[Remote, Rows, Caller]);
    clipped(&COLUMNS, &[Replicas, Replicas, Replicas]);
    clipped(&TOWERS, &[Caller, Replicas, RemoteReplicas]);
    clipped(&DIAMOND, &[Remote, Caller, Remote, Replicas]);
    for places in CONV_PLACES {
        clipped(&CONV, &places);
    }
}

/// Weights and averages, with validations in between in which they swap their places.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn averages_of_the_weights_equal_one_process_under_every_placement() {
    let averaged = |model: &Model, places: &[Place], more: &[&str]| {
        if !runs_by_default() {
            return;
        }
        let test = "data.test={file=\"graph.csv\", features=[\"id0\", \"id1\", \"id2\", \"id3\"], \
                    feature_dtype=\"int64\", target=[\"x0\", \"x1\", \"x2\", \"x3\"]}";
        let test = (model.samples == Samples::Numbers).then_some(test);
        let settings: Vec<&str> = ["ema.decay=0.9", "eval.every_steps=7"]
            .into_iter()
            .chain(test)
            .chain(more.iter().copied())
            .collect();
        let folder = run(model, places, &settings);
        let file = crate::program::model(folder.path());
        assert_are(model, "", places, &settings, &model::load(&file).unwrap());
        let averages = file.with_file_name("model-ema.safetensors");
        assert_are(model, "_averaged", places, &settings, &model::load(&averages).unwrap());
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, With("bottom"), Stages],
        [Replicas, Hash, RemoteReplicas],
    ] {
        averaged(&DLRM, &places, &[]);
    }
    averaged(&COLUMNS, &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
    averaged(&TOWERS, &[Caller, Replicas, RemoteReplicas], &[]);
    averaged(&DIAMOND, &[Remote, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    averaged(&SCRIPT, &[Remote, Caller], &[]);
    averaged(&SCRIPT, &[Replicas, RemoteReplicas], &["replicas.average=all_reduce"]);
}

/// As near to `torch.autocast` as float32 is to float32, and far from that. The gradients of an output that three take are added
/// up in bfloat16, in an order of their own: there it is a fraction of that.
#[test]
fn bf16_is_torchs_autocast_under_every_placement() {
    let cast = |model: &Model, places: &[Place], more: &[&str]| {
        assert_casts(model, places, "_bf16", &[&["precision.autocast=bf16"], more].concat());
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, With("bottom"), Stages],
        [Replicas, Hash, RemoteReplicas],
    ] {
        cast(&DLRM, &places, &[]);
    }
    cast(&COLUMNS, &[Replicas, Rows, Remote], &[]);
    cast(&TOWERS, &[Remote, Remote, Remote], &[]);
    cast(&TOWERS, &[Caller, Replicas, RemoteReplicas], &[]);
    cast(&DIAMOND, &[Remote, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    cast(&DIAMOND, &[Replicas, Replicas, Replicas, Replicas], &[]);
}

fn assert_casts(model: &Model, places: &[Place], way: &str, settings: &[&str]) {
    if !runs_by_default() {
        return;
    }
    let trained = train(model, places, settings);
    let (name, of_half) = farthest(model, way, places, &trained);
    let (_, of_float32) = farthest(model, "", places, &trained);
    let near = match way {
        _ if model.name == DIAMOND.name => of_float32 / 4.0,
        // A sum in float32 that another processor takes in another order may round to the next half: measured, 0.0002 of the
        // distance to float32, which is that of whole steps here.
        "_fp16" => CLOSE.max(of_float32 / 1000.0),
        _ => CLOSE,
    };
    assert!(of_half <= near, "{}, {places:?}, {name}: {of_half}", model.name);
    assert!(of_float32 > 20.0 * CLOSE, "{}, {places:?}: {of_float32}", model.name);
}

/// Where another step were left out, the weights would differ by a whole one.
#[test]
fn fp16_is_torchs_autocast_and_grad_scaler_under_every_placement() {
    let cast = |model: &Model, places: &[Place], more: &[&str]| {
        assert_casts(model, places, "_fp16", &[&SCALED, more].concat());
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Hash, Caller],
        [Remote, Caller, Replicas],
        [Remote, With("bottom"), Stages],
        [Replicas, Hash, RemoteReplicas],
    ] {
        cast(&DLRM, &places, &[]);
    }
    cast(&COLUMNS, &[Replicas, Rows, Remote], &[]);
    cast(&TOWERS, &[Remote, Remote, Remote], &[]);
    cast(&TOWERS, &[Caller, Replicas, RemoteReplicas], &[]);
    cast(&DIAMOND, &[Remote, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    cast(&DIAMOND, &[Replicas, Replicas, Replicas, Replicas], &[]);
    for places in CONV_PLACES {
        cast(&CONV, &places, &["optimizer.clip_norm=0.15"]);
    }
}

/// Nothing of one module is trained, and no bias of the last.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn frozen_modules_and_parameters_equal_one_process_under_every_placement() {
    let frozen = |model: &Model, module: &str, places: &[Place], more: &[&str]| {
        let (last, _) = model.modules.last().unwrap();
        let own =
            [format!("modules.{module}.freeze=true"), format!("modules.{last}.freeze=[\"{last}.*.bias\"]")];
        let settings: Vec<&str> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        assert_is(model, "_frozen", places, &settings);
    };
    for places in [
        [Remote, Remote, Remote],
        [Replicas, Rows, Replicas],
        [Caller, Rows, Caller],
        [Remote, Replicas, Caller],
        [Remote, With("bottom"), Stages],
        [Replicas, RemoteReplicas, RemoteReplicas],
    ] {
        frozen(&DLRM, "tables", &places, &[]);
    }
    frozen(&COLUMNS, "tables", &[Replicas, Rows, Remote], &["pipeline.micro_batches=4"]);
    frozen(&COLUMNS, "tables", &[Replicas, Replicas, Replicas], &[]);
    frozen(&TOWERS, "user", &[Remote, Caller, RemoteReplicas], &[]);
    frozen(&TOWERS, "user", &[Stages, Remote, With("item")], &[]);
    frozen(&TOWERS, "user", &[Replicas, Replicas, Remote], &["replicas.average=all_reduce"]);
    frozen(&DIAMOND, "a", &[Remote, Remote, Remote, Replicas], &[]);
    frozen(&DIAMOND, "a", &[Replicas, Caller, Remote, Replicas], &["replicas.average=all_reduce"]);
    // What trains nothing is not on servers.
    for places in CONV_PLACES.into_iter().filter(|places| places[0] != Caller) {
        frozen(&CONV, "convs", &places, &[]);
    }
    frozen(&SCRIPT, "both", &[Remote, Replicas], &[]);
    frozen(&SCRIPT, "both", &[Replicas, Remote], &[]);
    frozen(&SCRIPT, "both", &[Replicas, Replicas], &[]);
}

/// Outputs meet their targets in the order in which the job names them, wherever they come from.
#[test]
fn a_loss_of_several_outputs_and_targets_equals_one_process_under_every_placement() {
    let afterwards = "replicas.average=all_reduce";
    for (places, settings) in [
        ([Remote, Remote, Remote], &[][..]),
        ([Replicas, Replicas, Replicas], &[]),
        ([Caller, Caller, Caller], &[]),
        ([Remote, Replicas, Remote], &[]),
        ([Replicas, Remote, RemoteReplicas], &[afterwards]),
        ([Remote, Stages, Caller], &[]),
        ([Remote, With("body"), Replicas], &["pipeline.micro_batches=2"]),
    ] {
        assert_is_pytorchs(&HEADS, &places, settings);
    }
}

/// What PyTorch has trained, as it names it, evaluated here.
#[test]
fn weights_of_pytorch_give_its_loss() {
    for model in [&COLUMNS, &HEADS] {
        let folder = tempfile::tempdir().unwrap();
        let figures = model::load(&data("graph.safetensors")).unwrap();
        let weights = folder.path().join("weights.safetensors");
        let prefix = format!("{}/", model.name);
        let own = |(name, value): (String, Tensor)| Some((name.strip_prefix(&prefix)?.to_owned(), value));
        model::save(&weights, &figures.into_iter().filter_map(own).collect::<Vec<_>>()).unwrap();
        fs::write(folder.path().join("job.toml"), job_of(model, &[Remote, Caller, Remote])).unwrap();
        let starts = model.modules.iter().map(|(name, _)| format!("modules.{name}.weights={weights:?}"));
        let settings: Vec<String> =
            starts.chain(["train.steps=1", "optimizer.lr=1e-30"].map(str::to_owned)).collect();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &settings)), 0);
        let text = fs::read_to_string(data(&format!("graph_{}.json", model.name))).unwrap();
        let torchs = serde_json::from_str::<serde_json::Value>(&text).unwrap()["loss"].as_f64().unwrap();
        let ours = summary(folder.path())["eval"]["loss"].as_f64().unwrap();
        assert!((ours - torchs).abs() < 1e-6, "{}: {ours}, {torchs}", model.name);
    }
}

#[test]
fn two_towers_equal_one_process_under_every_placement() {
    for places in [
        [Remote, Remote, Remote],
        [Remote, Remote, Replicas],
        [Replicas, Remote, Replicas],
        [Caller, Remote, Caller],
        [Remote, Replicas, Remote],
        [Remote, Stages, Replicas],
        [RemoteReplicas, Remote, With("item")],
    ] {
        assert_is_pytorchs(&TOWERS, &places, &[]);
    }
    let afterwards = "replicas.average=all_reduce";
    assert_is_pytorchs(&TOWERS, &[Replicas, Replicas, Remote], &[afterwards]);
    let settings = ["pipeline.micro_batches=2", "pipeline.schedule=gpipe"];
    assert_is_pytorchs(&TOWERS, &[Remote, Remote, Replicas], &settings);
}

/// Gradients of one output come from three consumers, on as many ranks.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_diamond_over_three_roles_equals_one_process_under_every_placement() {
    let afterwards = "replicas.average=all_reduce";
    for (places, settings) in [
        ([Remote, Remote, Remote, Remote], &[][..]),
        ([Remote, Remote, Remote, Replicas], &[]),
        ([Replicas, Remote, Remote, Replicas], &[afterwards]),
        ([Replicas, Caller, Remote, Replicas], &[afterwards]),
        ([Caller, Remote, Replicas, Caller], &[]),
        ([Remote, With("a"), With("a"), Replicas], &[]),
        ([RemoteReplicas, Remote, Caller, With("b")], &[]),
        ([Replicas, Replicas, Replicas, Replicas], &[]),
        ([Remote, Stages, Remote, With("c")], &["pipeline.micro_batches=2"]),
    ] {
        assert_is_pytorchs(&DIAMOND, &places, settings);
    }
}

#[test]
fn torchscript_with_several_arguments_and_results_equals_one_process_under_every_placement() {
    for (places, settings) in [
        ([Remote, Remote], &[][..]),
        ([Remote, Replicas], &[]),
        ([Replicas, Replicas], &[]),
        ([Caller, Replicas], &["pipeline.micro_batches=2"]),
        ([Replicas, Remote], &["replicas.average=all_reduce"]),
        ([RemoteReplicas, Stages], &[]),
    ] {
        assert_is_pytorchs(&SCRIPT, &places, settings);
    }
}

/// What graph.py starts a table from that is cut over ranks: what the job leaves when nothing is learnt.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn first_rows_are_those_that_the_figures_start_from() {
    let remote_and_cut: [(&Model, &[Place], &str); 3] = [
        (&DLRM, &[Remote, Rows, Remote], "graph_rows"),
        (&COLUMNS, &[Remote, Rows, Remote], "graph_column_rows"),
        (&BAGS, &[Remote, Rows, Rows, Remote], "graph_bag_rows"),
    ];
    for (model, places, file) in remote_and_cut {
        let left = train(model, places, &["optimizer.lr=1e-30"]);
        let tables = model.modules.iter().zip(places).filter(|(_, place)| **place == Rows);
        let tables: Vec<String> = tables.map(|((name, _), _)| format!("{name}.")).collect();
        let of_table = |(name, _): &(String, Tensor)| tables.iter().any(|table| name.starts_with(table));
        let rows: Vec<(String, Tensor)> = left.into_iter().filter(of_table).collect();
        let file = data(&format!("{file}.safetensors"));
        if std::env::var_os("WRITE_FIRST_ROWS").is_some() {
            model::save(&file, &rows).unwrap();
        }
        let figures = model::load(&file).unwrap();
        assert_eq!(rows.len(), figures.len());
        for (name, rows) in &rows {
            let figure = &figures.iter().find(|(of, _)| of == name).unwrap().1;
            assert_eq!((rows - figure).abs().max().to_kind(Kind::Double).double_value(&[]), 0.0, "{name}");
        }
    }
}
