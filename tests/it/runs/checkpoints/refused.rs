//! What is damaged, or of another job, is not gone on from; and of two runs one saves in a place.

use std::fs;
use std::path::Path;

use super::{ROUNDS, said};
use crate::program::*;
use crate::runs::small::{begin, checkpoints, steps, trained};
use crate::support::eventually;

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn damaged_checkpoints_are_found() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    fs::remove_file(folder.path().join("RUN/summary.json")).unwrap();
    let all = checkpoints(folder.path());
    let [before, last] = &all[..] else { panic!("{all:?}") };
    let shard = last.join("shard-00001-model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let resume = |from: &Path| {
        let from = from.to_str().unwrap();
        finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "OTHER", "--overwrite", "--resume", from]))
    };
    // Options that contradict each other.
    assert_code(&resume(last), 2);
    let resume = |from: &Path| {
        let run = tempfile::tempdir().unwrap();
        let args = ["--run-dir", run.path().to_str().unwrap(), "--resume", from.to_str().unwrap()];
        finish(&mut begin(folder.path(), &ROUNDS, &args))
    };
    let output = resume(last);
    assert_code(&output, 2);
    let text = said(&output, folder.path());
    assert!(text.contains("is not as it was written: its SHA-256 is"), "{text}");
    // The one before it is whole.
    let keeping = [&ROUNDS[..], &["checkpoint.keep=9"]].concat();
    let output = finish(&mut begin(folder.path(), &keeping, &["--resume", "RUN"]));
    assert_code(&output, 0);
    let text = said(&output, folder.path());
    assert!(text.contains("warning: a newer checkpoint is left out"), "{text}");
    assert!(text.contains(&format!("going on from step {}", steps(&all)[0])), "{text}");
    // A part is missing, and a version that is not known yet.
    fs::remove_file(before.join("shard-00001-model-00001-of-00001.safetensors")).unwrap();
    let text = said(&resume(before), folder.path());
    let missing = format!("cannot read `FOLDER/RUN/checkpoints/step-{:010}/shard-00001", steps(&all)[0]);
    assert!(text.contains(&missing), "{text}");
    let manifest = fs::read_to_string(before.join("manifest.json")).unwrap();
    fs::write(before.join("manifest.json"), manifest.replacen("\"version\":2", "\"version\":3", 1)).unwrap();
    let text = said(&resume(before), folder.path());
    assert!(text.contains("is a checkpoint of version 3, and this program reads those up to 2"), "{text}");
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn what_cannot_be_gone_on_from_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    let refused = |settings: &[&str], more: &[&str]| {
        let output = finish(&mut begin(folder.path(), &[&ROUNDS, settings].concat(), more));
        assert_code(&output, 2);
        said(&output, folder.path())
    };
    insta::assert_snapshot!(refused(&[], &["--resume", "RUN"]), @r"
    error: the run in `RUN` is finished
      hint: --run-dir names another folder for a run that goes on from it
    ");
    insta::assert_snapshot!(refused(&[], &["--resume", "NOWHERE"]), @r"
    error: there is no checkpoint in `NOWHERE`
      hint: name a run folder or a checkpoint in it; a job with [checkpoint] saves them
    ");
    let last = checkpoints(folder.path()).pop().unwrap();
    let from = ["--run-dir", "OTHER", "--resume", last.to_str().unwrap()];
    insta::assert_snapshot!(refused(&["seed=9", "train.batch_size=16", "optimizer={type=\"sgd\", lr=0.1}"], &from), @r#"
    error: the checkpoint is of another job, which cannot go on as this one:
      `optimizer.type` was "adam" and is "sgd"
      `seed` was 1 and is 9
      `train.batch_size` was 32 and is 16
      hint: leave these as they were, or begin anew; `weights` starts a module of another job from it
    "#);
    let apart = ["cluster.world_size=3", "train.consistency=hogwild"];
    assert!(refused(&apart, &from).contains("`train.consistency` was \"bsp\" and is \"hogwild\""));
    // `auto` has nothing to do, which is no failure.
    let output = finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "RUN", "--resume", "auto"]));
    assert_code(&output, 0);
    assert_eq!(
        said(&output, folder.path()),
        "the run in `RUN` is finished: there is nothing to go on with\n"
    );
    // And nothing to go on from, which is none either.
    let output = finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "NEW", "--resume", "auto"]));
    assert_code(&output, 0);
}

/// A run folder is one run's: another goes on in it where an attempt of the same job has left nothing to lose.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_run_does_not_go_on_in_the_folder_of_another() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    let from = checkpoints(folder.path()).pop().unwrap();
    let resume = ["--resume", from.to_str().unwrap(), "--run-dir", "OTHER"];
    // All but the last line, as if it had been killed.
    let unfinished = || fs::remove_file(folder.path().join("OTHER/summary.json")).unwrap();
    let goes_on = |settings: &[&str], more: &[&str]| {
        let settings = [&ROUNDS[..], &["train.steps=90"], settings].concat();
        let output = finish(&mut begin(folder.path(), &settings, more));
        let said =
            said(&output, folder.path()).replace(from.file_name().unwrap().to_str().unwrap(), "CHECKPOINT");
        (output.status.code(), said)
    };
    // The same line as often as its run has saved nothing.
    for _ in 0..2 {
        assert_eq!(goes_on(&["checkpoint.every_steps=1000"], &resume).0, Some(0));
        unfinished();
    }
    assert_eq!(goes_on(&["log.every=1"], &resume).0, Some(0), "what it writes into its log is no other job");
    unfinished();
    let (code, said) = goes_on(&[], &resume);
    assert_eq!(code, Some(2), "{said}");
    insta::assert_snapshot!(said.replace("0000000080", "LAST"), @r"
    error: the run in `OTHER` has saved checkpoints itself, the last of which is `FOLDER/OTHER/checkpoints/step-LAST`
      hint: --resume OTHER goes on from that one; --run-dir names another folder
    ");
    assert_eq!(goes_on(&[], &["--resume", "OTHER"]).0, Some(0));
    // Of another job, finished or not.
    for (auto, is_finished) in [(true, true), (true, false), (false, false)] {
        let other = tempfile::tempdir_in(folder.path()).unwrap();
        let run = other.path().join("RUN");
        let run = run.to_str().unwrap();
        let settings = ["train.steps=9", "optimizer.type=sgd"];
        assert_code(&finish(&mut begin(folder.path(), &settings, &["--run-dir", run])), 0);
        if !is_finished {
            fs::remove_file(Path::new(run).join("summary.json")).unwrap();
        }
        let resume = if auto { "auto" } else { from.to_str().unwrap() };
        let (code, said) = goes_on(&[], &["--resume", resume, "--run-dir", run]);
        assert_eq!(code, Some(2), "{said}");
        let holds = "holds a run of another job:\n  `optimizer.type` was \"sgd\" and is \"adam\"";
        assert!(said.contains(holds), "{said}");
    }
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_run_that_begins_anew_does_so_where_no_other_has_saved() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    let all = checkpoints(folder.path());
    let last = all.last().unwrap().to_str().unwrap();
    // What it starts from is not removed.
    let from = format!("modules.net.weights={last}");
    let overwrites = ["--run-dir", "RUN", "--overwrite"];
    let output = finish(&mut begin(folder.path(), &[&ROUNDS[..], &[&from]].concat(), &overwrites));
    assert_code(&output, 2);
    assert!(
        said(&output, folder.path()).contains("would overwrite it in its run folder"),
        "{}",
        stderr(&output)
    );
    assert_eq!(checkpoints(folder.path()), all);
    let shards = fs::read_dir(last).unwrap().map(|entry| entry.unwrap().path());
    let shard = shards.into_iter().find(|path| path.extension().is_some_and(|name| name == "safetensors"));
    let from = format!("modules.net.weights={}", shard.unwrap().display());
    assert_code(&finish(&mut begin(folder.path(), &[&ROUNDS[..], &[&from]].concat(), &overwrites)), 2);
    assert_eq!(checkpoints(folder.path()), all);
    // Nor are older steps kept beside those of the run that has overwritten them.
    let shorter = [ROUNDS[0], "train.steps=20", "checkpoint.every_steps=10"];
    assert_code(&finish(&mut begin(folder.path(), &shorter, &overwrites)), 0);
    assert!(steps(&checkpoints(folder.path())).iter().all(|step| *step <= 20));
    // With nothing else of a run in it, a folder with checkpoints is another run's.
    for file in fs::read_dir(folder.path().join("RUN")).unwrap().map(|entry| entry.unwrap()) {
        if file.file_type().unwrap().is_file() {
            fs::remove_file(file.path()).unwrap();
        }
    }
    let output = finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "RUN"]));
    assert_code(&output, 2);
    assert!(said(&output, folder.path()).contains("`RUN` holds another run: step-"), "{}", stderr(&output));

    let into_one = [&ROUNDS[..], &["checkpoint.to=kept", "checkpoint.keep=1"]].concat();
    assert_code(&finish(&mut begin(folder.path(), &into_one, &["--run-dir", "ONE"])), 0);
    let kept = fs::read_dir(folder.path().join("kept")).unwrap().next().unwrap().unwrap();
    let kept = format!("kept/{}", kept.file_name().into_string().unwrap());
    let output = finish(&mut begin(folder.path(), &into_one, &["--run-dir", "OTHER"]));
    assert_code(&output, 2);
    let wanted = format!(
        "error: `kept` holds 1 checkpoint of another run\n  \
         hint: --resume {kept} goes on from the last one; --set checkpoint.to=PLACE saves in another place\n"
    );
    assert_eq!(said(&output, folder.path()), wanted);
    // Nor does a run that goes on from elsewhere.
    let of_shorter = checkpoints(folder.path()).pop().unwrap();
    let elsewhere = ["--run-dir", "OTHER", "--resume", of_shorter.to_str().unwrap()];
    let output = finish(&mut begin(folder.path(), &into_one, &elsewhere));
    assert_code(&output, 2);
    assert!(
        said(&output, folder.path()).contains("`FOLDER/kept` holds 1 checkpoint of another run"),
        "{}",
        stderr(&output)
    );
    // What is not there any more is nothing to go on from, wherever the job saves.
    let output = finish(&mut begin(folder.path(), &into_one, &["--run-dir", "OTHER", "--resume", last]));
    assert_code(&output, 2);
    assert!(stderr(&output).contains("there is no checkpoint in"), "{}", stderr(&output));
    assert!(!folder.path().join("OTHER").exists());
    // That hint leads on.
    let longer = [&into_one[..], &["train.steps=80"]].concat();
    assert_code(&finish(&mut begin(folder.path(), &longer, &["--run-dir", "OTHER", "--resume", &kept])), 0);
}

/// Each would remove the other's as old ones.
#[test]
fn of_two_runs_that_save_in_one_place_one_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "train.consistency=bsp",
        "train.steps=3000",
        "checkpoint.every_steps=10",
        "checkpoint.to=kept",
        "checkpoint.most_failures=3",
    ];
    let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    let kept = folder.path().join("kept");
    eventually("a checkpoint", || fs::read_dir(&kept).is_ok_and(|all| all.count() > 0));
    let of_other = kept.join("step-0000000007");
    fs::create_dir_all(&of_other).unwrap();
    fs::write(of_other.join("manifest.json"), b"{}").unwrap();
    let output = wait(launcher);
    assert_code(&output, 1);
    let text = said(&output, folder.path());
    assert!(
        text.contains(
            "checkpoint.most_failures = 3 one after another: `FOLDER/kept/step-0000000007` is of another run"
        ),
        "{text}"
    );
    assert!(of_other.join("manifest.json").is_file());
}
