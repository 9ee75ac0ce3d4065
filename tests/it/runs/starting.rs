//! What a run needs before it starts, and what it does not overwrite: libtorch, the run folder, the job file, a port.

use std::fs;
use std::path::Path;

use super::bad_input::digits_job;
use crate::program::*;

/// Two steps of the digits.
const SHORT: [&str; 2] = ["train.steps=2", "eval.batch_size=2000"];

#[test]
fn a_missing_libtorch_is_said_with_its_version_and_where_it_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let output = finish(pstrain(folder.path()).args(["spawn"]).env("PSTRAIN_LIBTORCH", "/nowhere"));
    assert_code(&output, 2);
    insta::assert_snapshot!(stderr(&output), @r"
    error: libtorch 2.11.0 was not found
      looked in /nowhere: no libtorch_cpu.so
      hint: `python3 -m pip install torch==2.11.0` in an active environment, or name the folder of torch or of libtorch_cpu.so in PSTRAIN_LIBTORCH
    ");
}

#[test]
fn libtorch_is_found_in_the_folder_of_torch_as_well_as_in_that_of_its_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let torch = Path::new(env!("CARGO_MANIFEST_DIR")).join(".deps/libtorch");
    for named in [torch.clone(), torch.join("lib")] {
        let output = finish(
            pstrain(folder.path())
                .args(["bench", "data", "--steps", "1", "--json"])
                .env("PSTRAIN_LIBTORCH", named),
        );
        assert_code(&output, 0);
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_run_folder_that_holds_a_run_is_refused_and_overwritten_only_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let with = |overwrite: bool, settings: &[&str]| {
        let mut command = pstrain(folder.path());
        command.args(["spawn", "--run-dir", "RUN"]).args(overwrite.then_some("--overwrite"));
        finish(command.args(SHORT.iter().chain(settings).flat_map(|&setting| ["--set", setting])))
    };
    assert_code(&with(false, &[]), 0);
    let before = fs::read(model(folder.path())).unwrap();
    let again = with(false, &["seed=2"]);
    assert_code(&again, 2);
    let said = stderr(&again);
    let files = "job.toml, metrics.jsonl, summary.json, model.safetensors, report.html";
    assert!(
        said.contains(&format!("error: the run folder `RUN` holds another run: {files}\n  hint:")),
        "{said}"
    );
    assert_eq!(fs::read(model(folder.path())).unwrap(), before);
    // Nothing of the earlier run stays beside one that failed.
    let failed = with(true, &["optimizer.lr=1e30", "train.steps=0"]);
    assert_code(&failed, 1);
    assert!(stderr(&failed).contains("what the run recorded is in `RUN`"), "{}", stderr(&failed));
    assert!(!model(folder.path()).exists());
    assert_code(&with(true, &["seed=2"]), 0);
    assert_ne!(fs::read(model(folder.path())).unwrap(), before);
}

#[test]
fn a_job_is_not_overwritten_by_its_own_run() {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    let job = fs::read(folder.path().join("job.toml")).unwrap();
    let output = finish(pstrain(folder.path()).args(["spawn", "job.toml", "--run-dir", ".", "--overwrite"]));
    assert_code(&output, 2);
    assert!(stderr(&output).contains("this run reads `job.toml`"), "{}", stderr(&output));
    assert_eq!(fs::read(folder.path().join("job.toml")).unwrap(), job);
}

/// Also on a machine on which another job has the port that `run` listens on.
#[test]
fn a_spawn_without_a_job_says_what_it_trains_and_finds_a_free_port() {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    // Another test may hold it: that is as good.
    let _taken = std::net::TcpListener::bind("127.0.0.1:29500");
    let settings = SHORT.iter().flat_map(|&setting| ["--set", setting]);
    let output = finish(pstrain(folder.path()).args(["spawn", "--json", "--run-dir", "RUN"]).args(settings));
    assert_code(&output, 0);
    let said = stderr(&output);
    assert!(said.starts_with("no job file is named: this trains the built-in job `digits_ps`\n"), "{said}");
    assert!(said.contains("hint: `pstrain spawn job.toml` trains the job.toml in this folder"), "{said}");

    let result: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let run_dir = folder.path().canonicalize().unwrap().join("RUN");
    assert_eq!(Path::new(result["run_dir"].as_str().unwrap()).canonicalize().unwrap(), run_dir);
    assert_eq!(result["config"]["train"]["steps"], 2);
    assert_eq!(result["config"]["optimizer"]["type"], "adam");
    assert_eq!(result["config"]["cluster"].get("master_port"), None);
    assert_eq!(result["steps"], summary(folder.path())["steps"]);
}

#[test]
fn init_writes_a_job_and_the_schema_that_its_first_line_names() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&finish(pstrain(folder.path()).arg("init")), 0);
    let job = fs::read_to_string(folder.path().join("job.toml")).unwrap();
    assert!(job.starts_with("#:schema ./pstrain.schema.json\n"), "{job}");
    let written = fs::read_to_string(folder.path().join("pstrain.schema.json")).unwrap();
    let printed = finish(pstrain(folder.path()).arg("schema"));
    assert_code(&printed, 0);
    assert_eq!(written, stdout(&printed));
    let schema: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(schema["properties"]["train"]["properties"]["epochs"]["maximum"], 1_000_000);
}
