//! Jobs with losses beyond the plain mean over samples and a target. Those whose mean is divided by what the targets weigh
//! follow one process of PyTorch on the joined batches of three trainers (`tests/data/weighed.py`), wherever the model lies; so do
//! those that are sums.

use std::fs;
use std::path::PathBuf;

use super::bad_input::refused;
use crate::program::*;
use pstrain::model;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// What of the loss of a batch is trained with.
#[derive(Clone, Copy, Debug)]
enum Of {
    Mean,
    Sum,
}

/// `place`: of the module, with its other keys.
fn job(of: Of, roles: &str, place: &str, train: &str) -> String {
    let (reduction, lr) = match of {
        Of::Mean => ("mean", 0.3),
        Of::Sum => ("sum", 0.015),
    };
    let fields = "file = \"weighed.csv\"\ntarget = \"y\"\ntarget_dtype = \"int64\"\n";
    format!(
        "name = \"weighed\"\n[roles]\ntrainer = 3\n{roles}\n\
         [modules.net]\n{place}\ninput = [5]\nweights = {start:?}\nlayers = [\
         {{ type = \"linear\", in_features = 5, out_features = 8 }}, \"tanh\", \
         {{ type = \"linear\", in_features = 8, out_features = 4 }}]\n\
         [data]\nplugin = \"csv\"\nroot = {root:?}\nshuffle = false\n[data.train]\n{fields}\
         [loss]\nplugin = \"cross_entropy\"\nparams = {{ weight = [0.5, 2.0, 0.75, 1.25], ignore_index = -100, \
         label_smoothing = 0.1, reduction = {reduction:?} }}\n\
         [optimizer]\ntype = \"sgd\"\nlr = {lr}\nmomentum = 0.9\n\
         [train]\nrole = \"trainer\"\nepochs = 1\n{train}\n[log]\nevery = 1\n",
        start = data("weighed_start.safetensors"),
        root = data(""),
    )
}

#[track_caller]
fn assert_is_pytorchs(roles: &str, place: &str, train: &str) {
    assert_follows(Of::Mean, roles, place, train);
}

#[track_caller]
fn assert_follows(of: Of, roles: &str, place: &str, train: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), job(of, roles, place, train)).unwrap();
    assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &[])), 0);
    let trained = model::load(&crate::program::model(folder.path())).unwrap();
    let figures = match of {
        Of::Mean => "weighed.safetensors",
        Of::Sum => "weighed_sum.safetensors",
    };
    let figures = model::load(&data(figures)).unwrap();
    assert_eq!(trained.len(), figures.len());
    for (name, figure) in &figures {
        let (_, tensor) = trained.iter().find(|(found, _)| found == name).expect("PyTorch's names");
        let difference = (tensor - figure).abs().max().double_value(&[]);
        assert!(difference <= 1e-5, "{of:?} {place} {train} {name}: {difference}");
    }
    // In the fifth step no target counts.
    let losses: Vec<f64> =
        records(folder.path(), "step").iter().map(|record| record["loss"].as_f64().unwrap()).collect();
    assert_eq!(losses.len(), 36);
    assert!(losses.iter().filter(|&&loss| loss == 0.0).count() >= 4, "{losses:?}");
}

const WHOLE: &str = "batch_size = 8";
const ACCUMULATED: &str = "batch_size = 4\naccumulate = 2";
const ROUNDS: &str = "consistency = \"bsp\"";

#[test]
fn a_model_on_a_server_follows_one_process_by_what_the_targets_weigh() {
    for train in [WHOLE, ACCUMULATED] {
        assert_is_pytorchs("server = 1", "place = \"server\"", &format!("{train}\n{ROUNDS}"));
    }
}

#[test]
fn a_model_that_the_trainers_compute_follows_one_process_by_what_the_targets_weigh() {
    let caller = "place = \"server\"\nrun = \"caller\"";
    assert_is_pytorchs("server = 2", caller, &format!("{ACCUMULATED}\n{ROUNDS}"));
}

#[test]
fn replicas_follow_one_process_by_what_the_targets_weigh() {
    for average in ["ddp", "all_reduce", "ring"] {
        for train in [WHOLE, ACCUMULATED] {
            let train = format!("{train}\n[replicas]\naverage = \"{average}\"");
            assert_is_pytorchs("", "place = \"trainer\"", &train);
        }
    }
}

#[test]
fn replicas_that_train_for_others_follow_one_process_by_what_the_targets_weigh() {
    assert_is_pytorchs("server = 3", "place = \"server\"", &format!("{ACCUMULATED}\n{ROUNDS}"));
}

#[test]
fn stages_follow_one_process_by_what_the_targets_weigh() {
    let train = format!("{WHOLE}\n{ROUNDS}\n[pipeline]\nmicro_batches = 2");
    assert_is_pytorchs("front = 1\nback = 1", "place = [\"front\", \"back\"]", &train);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_sum_is_that_of_one_process_under_every_placement() {
    let server = "place = \"server\"";
    for train in [WHOLE, ACCUMULATED] {
        assert_follows(Of::Sum, "server = 1", server, &format!("{train}\n{ROUNDS}"));
        assert_follows(Of::Sum, "server = 3", server, &format!("{train}\n{ROUNDS}"));
        for average in ["ddp", "all_reduce"] {
            let train = format!("{train}\n[replicas]\naverage = \"{average}\"");
            assert_follows(Of::Sum, "", "place = \"trainer\"", &train);
        }
    }
    let caller = format!("{server}\nrun = \"caller\"");
    assert_follows(Of::Sum, "server = 2", &caller, &format!("{ACCUMULATED}\n{ROUNDS}"));
    let stages = format!("{WHOLE}\n{ROUNDS}\n[pipeline]\nmicro_batches = 2");
    assert_follows(Of::Sum, "front = 1\nback = 1", "place = [\"front\", \"back\"]", &stages);
}

/// The number of batches, and of trainers, changes nothing of what is shown.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn what_is_shown_of_a_sum_is_its_part_of_a_sample() {
    let digits = include_str!("../../../jobs/digits_ps.toml");
    let shown = |settings: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("job.toml"), digits).unwrap();
        let one_step = ["train.steps=1", "train.consistency=bsp", "optimizer.lr=1e-30", "log.every=1"];
        assert_code(&finish(&mut spawn(folder.path(), Some("job.toml"), &[&one_step, settings].concat())), 0);
        let loss = |kind: &str| {
            let first = records(folder.path(), kind).into_iter().find(|record| record["rank"] == 1);
            first.unwrap()["loss"].as_f64().unwrap()
        };
        (loss("step"), loss("eval"))
    };
    let (step, eval) = shown(&[]);
    let sum = "loss.params.reduction=sum";
    for settings in [&[sum][..], &[sum, "train.accumulate=2", "eval.batch_size=7"]] {
        let (of_step, of_eval) = shown(settings);
        // Of another batch, with `accumulate`.
        assert!((of_step - step).abs() < if settings.len() == 1 { 1e-5 } else { 1.0 }, "{of_step} {step}");
        assert!((of_eval - eval).abs() < 1e-5, "{of_eval} {eval}");
    }
}

#[test]
fn a_sum_over_all_trainers_and_one_over_each_do_not_go_together() {
    let folder = tempfile::tempdir().unwrap();
    let sum = ["loss.params={ reduction = \"sum\" }"];
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/dlrm.toml")).unwrap();
    insta::assert_snapshot!(refused(folder.path(), Some("job.toml"), &sum, 2), @r#"
    error: job `job.toml`: `loss.params` has reduction = "sum", and the sum would be over all trainers for replicas, and over one for modules that are updated by train.consistency = async
      from: option --set loss.params={ reduction = "sum" }
      hint: write consistency = "bsp" in [train], or reduction = "mean"
    "#);
}

#[test]
fn a_loss_of_outputs_alone_takes_no_target() {
    let scores = |name: &str, place: &str| {
        format!(
            "[modules.{name}]\nplace = \"{place}\"\nfrom = \"features\"\ninput = [5]\n\
             layers = [{{ type = \"linear\", in_features = 5, out_features = 1 }}]\n"
        )
    };
    let split = "file = \"weighed.csv\"\ntarget = \"y\"\n";
    let job = format!(
        "name = \"ranked\"\n[roles]\nserver = 1\ntrainer = 2\n{chosen}{other}\
         [data]\nplugin = \"csv\"\nroot = {root:?}\n[data.train]\n{split}[data.test]\n{split}\
         [loss]\nplugin = \"bpr\"\nfrom = [\"chosen\", \"other\"]\ntarget = []\n\
         [optimizer]\ntype = \"sgd\"\nlr = 0.3\n\
         [train]\nrole = \"trainer\"\nconsistency = \"bsp\"\nepochs = 3\nbatch_size = 8\n",
        chosen = scores("chosen", "server"),
        other = scores("other", "trainer"),
        root = data(""),
    );
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), &job).unwrap();
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &["replicas.average=all_reduce"]));
    assert_code(&output, 0);
    let eval = records(folder.path(), "eval").pop().unwrap();
    assert_eq!((&eval["ordered"], &eval["targets"]), (&1.0.into(), &0.into()));

    fs::write(folder.path().join("job.toml"), job.replace("target = []\n", "")).unwrap();
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &["replicas.average=all_reduce"]));
    assert_code(&output, 2);
    let said = stderr(&output);
    assert!(
        said.contains("this loss takes no target, and got 1\n  hint: write target = [] in [loss]"),
        "{said}"
    );
}
