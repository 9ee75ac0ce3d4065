//! What a user sees of bad input: the message, the hint and the exit code, from the program itself.

use std::fs;
use std::path::Path;

use crate::program::*;
use crate::support::regression;

pub fn refused(folder: &Path, job: Option<&str>, settings: &[&str], code: i32) -> String {
    let output = finish(&mut spawn(folder, job, settings));
    assert_code(&output, code);
    stderr(&output)
}

pub fn digits_job(folder: &Path) {
    fs::write(folder.join("job.toml"), include_str!("../../../jobs/digits_ps.toml")).unwrap();
}

#[test]
fn all_errors_of_a_job_are_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ["train.epoch=1", "optimizer.lr=-1", "train.consistency=ssp", "no-setting", "data.train=["];
    insta::assert_snapshot!(refused(folder.path(), None, &settings, 2), @r#"
    error: job `digits_ps.toml (built in)`: `no-setting` is not a valid setting
      from: option --set no-setting
      hint: write it as KEY=VALUE, for example train.epochs=3
    error: job `digits_ps.toml (built in)`: `data.train`: the value is not valid TOML: unclosed array, expected `]`
      from: option --set data.train=[
    error: job `digits_ps.toml (built in)`: unknown key `train.epoch`
      from: option --set train.epoch=1
      hint: did you mean `epochs`?
    error: job `digits_ps.toml (built in)`: `train.staleness` is missing, and `train.consistency` = "ssp" needs it
      from: option --set train.consistency=ssp
      hint: how many steps a trainer may be ahead of the slowest, for example staleness = 4
    error: job `digits_ps.toml (built in)`: `optimizer.lr` = -1 is not above 0
      from: option --set optimizer.lr=-1
      hint: use a number above 0
    "#);
}

#[test]
fn missing_data_name_the_folder_and_how_to_get_them() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(refused(folder.path(), None, &["data.root=nowhere"], 2), @r#"
    error: job `digits_ps.toml (built in)`: `data.root` = "nowhere": the data folder is not there
      hint: `pstrain data fetch mnist --to nowhere` fetches MNIST; `--set data.root=DIR` names another folder
    "#);
}

/// The digits job without parameters of its loss, which others do not have.
fn plain_job(folder: &Path) {
    let params = "params = { label_smoothing = 0.1 }\n";
    let digits = include_str!("../../../jobs/digits_ps.toml");
    assert!(digits.contains(params));
    fs::write(folder.join("job.toml"), digits.replace(params, "")).unwrap();
}

/// What `check` says of that job with these settings, which it refuses.
fn unfit(settings: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    plain_job(folder.path());
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("data/table.csv"), "a,b\n1,2\n").unwrap();
    fs::write(folder.path().join("empty.wasm"), b"\0asm\x01\0\0\0").unwrap();
    let mut command = pstrain(folder.path());
    command.args(["check", "job.toml"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = finish(&mut command);
    assert_code(&output, 2);
    assert!(stdout(&output).contains("parameters"), "the plan is told all the same: {}", stdout(&output));
    stderr(&output)
}

#[test]
fn check_finds_data_that_are_not_there() {
    assert!(
        unfit(&["data.root=nowhere"]).contains("`data.root` = \"nowhere\": the data folder is not there")
    );
    insta::assert_snapshot!(unfit(&["data.root=data"]), @r#"
    error: job `job.toml`: `data.train.images` = "train-images-idx3-ubyte" is not in the folder `data`
      hint: it has table.csv
    error: job `job.toml`: `data.train.labels` = "train-labels-idx1-ubyte" is not in the folder `data`
      hint: it has table.csv
    error: job `job.toml`: `data.test.images` = "t10k-images-idx3-ubyte" is not in the folder `data`
      hint: it has table.csv
    error: job `job.toml`: `data.test.labels` = "t10k-labels-idx1-ubyte" is not in the folder `data`
      hint: it has table.csv
    "#);
    assert!(unfit(&["data.input=pixels"]).contains("`data.input` = \"pixels\" is not a field of the data"));
}

#[test]
fn check_counts_the_steps_that_the_data_give_and_finds_a_schedule_that_is_longer() {
    let folder = tempfile::tempdir().unwrap();
    plain_job(folder.path());
    let schedule = "optimizer.schedule={ type = \"multi_step\", milestones = [10, 1500], warmup_steps = 5 }";
    let output = finish(pstrain(folder.path()).args(["check", "job.toml", "--set", schedule]));
    assert_code(&output, 2);
    let plan = stdout(&output);
    let (_, rate) = plan.split_once("learning rate, ").expect("the plan is told all the same");
    insta::assert_snapshot!(rate, @r"
    over the 288 steps of a trainer
      multi_step, behind a warm-up of 5 steps, from 0.0015
      0.0015 |  ''
             | .
             |
             |
             |
             |
             |
           0 |.   ''''''''''''''''''''''''''''''''''''''''''''''''''''''''
              step 1                                                   288
      0 in step 1, 0.0015 in step 6, 0.00015 in step 288
    ");
    insta::assert_snapshot!(stderr(&output), @r"
    error: job `job.toml`: `optimizer.schedule` needs at least 1,501 steps (`milestones`) behind the 5 of its warm-up, and a trainer takes 288 steps
      hint: change `milestones` so that 283 steps are enough, or train for longer
    ");
    let said = refused(folder.path(), Some("job.toml"), &[schedule], 2);
    assert_eq!(said, stderr(&output), "spawn says the same before any rank starts");
}

#[test]
fn check_finds_a_loss_that_is_not_there_or_does_not_fit() {
    assert!(unfit(&["loss.plugin=mine.wasm"]).contains("`loss.plugin` = \"mine.wasm\" cannot be read"));
    let said = unfit(&["loss.plugin=empty.wasm"]);
    assert!(said.contains("error: job `job.toml`: `loss`: `empty.wasm` is"), "{said}");
    insta::assert_snapshot!(unfit(&["loss.plugin=mse"]), @r"
    error: job `job.toml`: `data.train`: the loss of the first samples: plug-in `mse`: `compute` failed: the targets are [4], and the output is [4, 10]: they should have one shape
    error: job `job.toml`: `data.test`: the loss of the first samples: plug-in `mse`: `compute` failed: the targets are [4], and the output is [4, 10]: they should have one shape
    ");
}

#[test]
fn check_finds_metrics_of_ones_own_that_are_not_there_or_do_not_fit() {
    let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist");
    let told = |metric: &str| {
        let metrics = format!("eval.metrics=[\"accuracy\", {}]", metric.replace("DIST", dist));
        unfit(&[&metrics]).replace(dist, "DIST")
    };
    let missing = told("{plugin=\"mine.wasm\"}");
    assert!(missing.contains("`eval.metrics[1].plugin` = \"mine.wasm\" cannot be read"), "{missing}");
    insta::assert_snapshot!(told("{plugin=\"DIST/testing_raw.wasm\"}"), @"error: job `job.toml`: `eval.metrics[1]`: metric `testing_raw`: `DIST/testing_raw.wasm` is not a plug-in that can be used here: it is a raw loss, not a metric");
    insta::assert_snapshot!(told("{plugin=\"DIST/testing_metric.wasm\", params={tolerance=1}}"), @"error: job `job.toml`: `eval.metrics[1]`: metric `testing_metric`: plug-in `DIST/testing_metric.wasm`: `open` failed: unknown key `tolerance`, expected `sin` or `several`");
    insta::assert_snapshot!(told("{plugin=\"DIST/testing_metric.wasm\"}"), @"error: job `job.toml`: `data.test`: metric `testing_metric`: plug-in `DIST/testing_metric.wasm`: `update` failed: 40 outputs for 4 targets");
}

#[test]
fn a_loss_that_does_not_fit_ends_a_run_as_bad_usage() {
    let folder = tempfile::tempdir().unwrap();
    plain_job(folder.path());
    let said = refused(folder.path(), Some("job.toml"), &["loss.plugin=mse"], 2);
    assert!(said.contains("plug-in `mse`: `compute` failed"), "{said}");
    let said = refused(folder.path(), Some("job.toml"), &["data.input=pixels"], 2);
    assert!(said.contains("`data.input` = \"pixels\" is not a field of the data"), "{said}");
}

/// Nobody else is there to join.
#[test]
fn a_trainer_of_run_looks_at_its_data_before_it_waits_for_others() {
    let folder = tempfile::tempdir().unwrap();
    plain_job(folder.path());
    let run = |rank: &str, setting: &str| {
        let mut command = pstrain(folder.path());
        command.args(["run", "job.toml", "--world-size", "2", "--master-port", "0", "--rank", rank]);
        command.args(["--set", setting, "--set", "cluster.join_timeout_ms=2000", "--run-dir", "RUN"]);
        let output = finish(&mut command);
        (output.status.code().unwrap(), stderr(&output))
    };
    let (code, said) = run("1", "loss.plugin=mse");
    assert!(said.contains("`data.train`: the loss of the first samples: plug-in `mse`"), "{said}");
    let others = "the other ranks wait for this one, each for cluster.join_timeout_ms = 2000: start it again before that";
    assert!(said.contains(&format!("  hint: {others}")), "{said}");
    assert_eq!(code, 2);
    // A server's data are on another machine.
    let (code, said) = run("0", "loss.plugin=mse");
    assert!(code == 3 && !said.contains("the first samples"), "{said}");
}

#[test]
fn check_says_what_it_could_not_look_at() {
    let folder = tempfile::tempdir().unwrap();
    plain_job(folder.path());
    let net = Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs/digits_net.pt");
    let job = include_str!("../../../jobs/torchscript.toml");
    assert!(job.contains("\"jobs/digits_net.pt\""));
    fs::write(folder.path().join("script.toml"), job.replace("jobs/digits_net.pt", "net.pt")).unwrap();
    fs::copy(net, folder.path().join("net.pt")).unwrap();
    let notes = |options: &[&str]| {
        let output = finish(pstrain(folder.path()).arg("check").args(options));
        assert_code(&output, 0);
        let notes = stdout(&output);
        notes.lines().filter(|line| line.contains("not looked at")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(notes(&["job.toml"]), "");
    assert_eq!(notes(&["script.toml"]), "");
    let elsewhere = notes(&["script.toml", "--no-scripts", "--master-addr", "10.0.0.1"]);
    insta::assert_snapshot!(elsewhere, @"
    note: not looked at: what TorchScript `net.pt` computes: `--no-scripts`
    note: not looked at: data, weights and plug-ins on other machines: each rank looks at its own when it starts
    ");
}

/// Its first step looks, whatever is logged later.
#[test]
fn a_negative_log_likelihood_of_raw_scores_ends_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    plain_job(folder.path());
    let said = refused(folder.path(), Some("job.toml"), &["loss.plugin=nll", "log.every=50"], 2);
    assert!(said.contains("not log-probabilities") && said.contains("log_softmax"), "{said}");
}

#[test]
fn a_cut_data_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = pstrain::runner::builtin::unpack("digits").unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    for file in fs::read_dir(data).unwrap() {
        let file = file.unwrap();
        let mut bytes = fs::read(file.path()).unwrap();
        if file.file_name().to_string_lossy().starts_with("train-images") {
            bytes.truncate(bytes.len() / 2);
        }
        fs::write(folder.path().join("data").join(file.file_name()), bytes).unwrap();
    }
    let said = refused(folder.path(), None, &["data.root=data"], 2);
    assert!(said.contains("train-images-idx3-ubyte"), "{said}");
}

/// Nothing comes from a pipe that nobody writes to, and no limit of the sandbox ends a wait for a file.
#[test]
fn a_pipe_among_the_data_files_holds_the_job_up_for_a_while_only() {
    let folder = tempfile::tempdir().unwrap();
    job_of_a_pipe(folder.path());
    let settings = ["data.root=.", "data.plugin=csv", "plugins.open_time_ms=1500"];
    let said = refused(folder.path(), Some("job.toml"), &settings, 2);
    assert!(said.contains("plug-in `csv` has not come back from `open` within 6.5s"), "{said}");
    assert!(said.contains("hint: is there a pipe or a dead network drive in the data folder?"), "{said}");
}

/// Trains on a pipe that nobody writes to.
pub fn job_of_a_pipe(folder: &Path) {
    nix::unistd::mkfifo(&folder.join("pipe.csv"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let idx = "images = \"train-images-idx3-ubyte\"\nlabels = \"train-labels-idx1-ubyte\"";
    let digits = include_str!("../../../jobs/digits_ps.toml");
    assert!(digits.contains(idx));
    let (job, _) = digits.split_once("[data.test]").unwrap();
    let (_, rest) = digits.split_once("[loss]").unwrap();
    let job = format!("{job}[loss]{rest}").replace(idx, "file = \"pipe.csv\"\ntarget = \"y\"");
    fs::write(folder.join("job.toml"), job).unwrap();
}

#[test]
fn a_file_that_is_no_plugin_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("not.wasm"), "hello").unwrap();
    insta::assert_snapshot!(refused(folder.path(), None, &["data.plugin=not.wasm"], 2), @r#"
    error: job `digits_ps.toml (built in)`: `data.plugin` = "not.wasm" is not a WebAssembly file
      hint: `pstrain plugin build FOLDER` makes a plug-in of its sources
    "#);
}

/// Whoever opens one waits for somebody who writes to it.
#[test]
fn a_pipe_in_the_place_of_a_file_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let pipe =
        |name: &str| nix::unistd::mkfifo(&folder.path().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe("pipe.wasm");
    pipe("pipe.pt");
    let settings = ["modules.net.weights=pipe.pt", "data.plugin=pipe.wasm", "loss.plugin=pipe.wasm"];
    for setting in settings {
        let said = refused(folder.path(), None, &[setting], 2);
        assert!(said.contains("cannot be read: it is not a regular file"), "{setting}: {said}");
    }
    fs::write(folder.path().join("script.toml"), include_str!("../../../jobs/torchscript.toml")).unwrap();
    let said = refused(folder.path(), Some("script.toml"), &["modules.net.torchscript=pipe.pt"], 2);
    assert!(said.contains("cannot be read: it is not a regular file"), "{said}");
    // A run in whose folder somebody has put them.
    fs::create_dir(folder.path().join("runs")).unwrap();
    for name in ["job.toml", "summary.json", "metrics.jsonl"] {
        let run = folder.path().join("runs").join(name.replace('.', "-"));
        fs::create_dir(&run).unwrap();
        fs::write(run.join("job.toml"), "").unwrap();
        let _ = fs::remove_file(run.join(name));
        pipe(&format!("runs/{}/{name}", name.replace('.', "-")));
    }
    assert_code(&finish(pstrain(folder.path()).arg("runs")), 0);
}

#[test]
fn a_loss_that_is_no_number_stops_the_job_with_rank_and_step() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused(folder.path(), None, &["optimizer.lr=1e30"], 1);
    assert!(said.contains("the loss is NaN") || said.contains("the loss is inf"), "{said}");
    assert!(said.contains("train.on_nan = \"skip\""), "{said}");
}

/// 24 steps of one trainer. Rows that are too large are not learnt from.
fn skipping(folder: &Path, too_large: impl Fn(u32) -> bool) {
    let row = |row| match too_large(row) {
        true => "3e38,1\n".to_owned(),
        false => format!("0.{row},1\n"),
    };
    let skip = ("batch_size = 1", "batch_size = 1\non_nan = \"skip\"");
    regression(folder, "place = \"server\"", &(0..24).map(row).collect::<String>(), &[skip]);
}

#[test]
fn a_loss_that_is_no_number_is_skipped_where_the_job_says_so_and_the_summary_counts_it() {
    let folder = tempfile::tempdir().unwrap();
    skipping(folder.path(), |row| row == 5 || row == 7);
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &[]));
    assert_code(&output, 0);
    assert!(stderr(&output).contains("step 6: the loss is inf; the step is skipped"), "{}", stderr(&output));
    assert!(stdout(&output).contains("skipped   2 of 24 steps"), "{}", stdout(&output));
    assert_eq!(summary(folder.path())["skipped_steps"], 2);
    // The mean of the epoch is that of the others.
    assert!(records(folder.path(), "epoch")[0]["loss"].as_f64().is_some_and(f64::is_finite));
}

#[test]
fn a_job_that_skips_more_steps_than_it_takes_fails() {
    let folder = tempfile::tempdir().unwrap();
    skipping(folder.path(), |row| row % 2 == 0 || row == 1);
    let said = refused(folder.path(), Some("job.toml"), &[], 1);
    assert!(said.contains("rank 1: the loss or gradients were not finite in 13 of 24 steps"), "{said}");
    skipping(folder.path(), |row| row >= 2);
    let said = refused(folder.path(), Some("job.toml"), &["train.most_skipped=3"], 1);
    assert!(
        said.contains(
            "step 5: the loss or gradients were not finite in train.most_skipped = 3 steps one after another"
        ),
        "{said}"
    );
}

#[test]
fn numbers_are_not_rounded_to_become_ids() {
    let folder = tempfile::tempdir().unwrap();
    skipping(folder.path(), |_| false);
    let layers =
        r#"modules.net.layers=[{ type = "embedding", num_embeddings = 9, embedding_dim = 1 }, "flatten"]"#;
    let said = refused(folder.path(), Some("job.toml"), &["modules.net.input_dtype=int64", layers], 2);
    assert!(
        said.contains("field `features` of the data is float32, and module `net` takes whole numbers"),
        "{said}"
    );
    assert!(said.contains("`csv`: feature_dtype = \"int64\", or dtype"), "{said}");
}
