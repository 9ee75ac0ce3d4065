use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use super::names::FILES;
use super::*;
use crate::runner::records::StepRecord;
use crate::runner::testing::names;
use crate::topology::Rank;

fn record(rank: u32, step: u64) -> MetricsLine {
    MetricsLine::Step(StepRecord {
        step,
        epoch: 1,
        rank: Rank(rank),
        loss: 0.5,
        lr: 0.1,
        samples_per_s: 1_000.0,
        data_wait_pct: 0.0,
        staleness: None,
        time_s: 1.0,
        grad_norm: None,
        loss_scale: None,
        metrics: BTreeMap::new(),
    })
}

/// F-3
#[test]
fn runs_that_start_in_the_same_second_get_folders_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let made: Vec<_> = (0..3)
        .map(|_| make_new(&root.path().join("runs"), "digits-20261120-213305", "--run-dir").unwrap())
        .collect();
    assert_eq!(
        names(&root.path().join("runs")),
        ["digits-20261120-213305", "digits-20261120-213305-2", "digits-20261120-213305-3"]
    );
    assert_ne!(made[0], made[1]);
}

fn create_at(path: &Path, overwrite: bool, reads: &[PathBuf]) -> Result<RunFolder> {
    RunFolder::create("digits", Some(&Explicit { path, overwrite, reads }))
}

#[test]
fn an_explicit_folder_is_made_and_may_hold_files_of_others() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/b");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("notes.txt"), b"mine").unwrap();
    let folder = create_at(&path, false, &[]).unwrap();
    folder.write_job("name = \"digits\"\n").unwrap();
    folder.metrics().unwrap().append(&record(1, 1)).unwrap();
    assert_eq!(names(&path), [JOB, METRICS, "notes.txt"]);
    assert_eq!(fs::metadata(path.join(JOB)).unwrap().permissions().mode() & 0o600, 0o600);
}

/// F-4
#[test]
fn a_folder_with_another_run_is_refused_and_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(MODEL), b"old").unwrap();
    fs::write(root.path().join(METRICS), b"old").unwrap();
    let error = create_at(root.path(), false, &[]).unwrap_err();
    assert!(error.is::<FolderInUse>());
    insta::assert_snapshot!(error.to_string().replace(root.path().to_str().unwrap(), "FOLDER"), @r"
    the run folder `FOLDER` holds another run: metrics.jsonl, model.safetensors
      hint: name another folder with --run-dir; --overwrite removes that run's files first
    ");
    assert_eq!(names(root.path()), [METRICS, MODEL]);
}

/// F-4
#[test]
fn overwriting_removes_what_the_earlier_run_wrote_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let half_written = format!(".x1y2z3.{MODEL}");
    for name in FILES.into_iter().chain([half_written.as_str(), "notes.txt", ".hidden"]) {
        fs::write(root.path().join(name), b"old").unwrap();
    }
    create_at(root.path(), true, &[]).unwrap();
    assert_eq!(names(root.path()), [".hidden", "notes.txt"]);
}

/// F-4
#[test]
fn what_the_run_itself_reads_is_not_overwritten() {
    let root = tempfile::tempdir().unwrap();
    let model = root.path().join(MODEL);
    fs::write(&model, b"old").unwrap();
    let error = create_at(root.path(), true, &[root.path().join("x.toml"), model.clone()]).unwrap_err();
    insta::assert_snapshot!(error.to_string().replace(root.path().to_str().unwrap(), "FOLDER"), @r"
    this run reads `FOLDER/model.safetensors`, and would overwrite it in its run folder `FOLDER`
      hint: name another folder with --run-dir
    ");
    assert_eq!(fs::read(&model).unwrap(), b"old");
}

/// F-4, F-5
#[test]
fn of_two_runs_that_begin_at_once_one_has_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let one = create_at(root.path(), false, &[]).unwrap();
    let said = create_at(root.path(), false, &[]).unwrap_err();
    insta::assert_snapshot!(said.to_string().replace(root.path().to_str().unwrap(), "FOLDER"), @r"
    a run is under way in `FOLDER`
      hint: name another folder with --run-dir
    ");
    // Where there are no locks, the first file of a run tells.
    let other = RunFolder::at(root.path());
    one.write_job("seed = 1\n").unwrap();
    assert!(other.write_job("seed = 2\n").unwrap_err().is::<FolderInUse>());
    assert_eq!(fs::read(root.path().join(JOB)).unwrap(), b"seed = 1\n");
}

#[test]
fn the_metrics_of_a_deleted_folder_are_still_at_hand() {
    let root = tempfile::tempdir().unwrap();
    let folder = create_at(&root.path().join("run"), false, &[]).unwrap();
    let mut metrics = folder.metrics().unwrap();
    metrics.append(&record(0, 1)).unwrap();
    assert_eq!(metrics.lines_if_deleted().unwrap(), None);
    let whole = fs::read(root.path().join("run").join(METRICS)).unwrap();
    fs::remove_dir_all(root.path().join("run")).unwrap();
    assert_eq!(metrics.lines_if_deleted().unwrap(), Some(whole));
}

/// F-2
#[test]
fn ranks_that_share_the_metrics_file_do_not_tear_lines() {
    let root = tempfile::tempdir().unwrap();
    let folder = create_at(root.path(), false, &[]).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..4 {
            let mut metrics = folder.metrics().unwrap();
            scope.spawn(move || (1..=200).for_each(|step| metrics.append(&record(rank, step)).unwrap()));
        }
    });
    let text = fs::read_to_string(root.path().join(METRICS)).unwrap();
    let records: Vec<MetricsLine> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 800);
}

/// F-1
#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let folder = create_at(root.path(), false, &[]).unwrap();
    fs::write(root.path().join(MODEL), b"old").unwrap();
    let error = folder.write_with(MODEL, |mut file, _| {
        file.write_all(b"half of the ne")?;
        Err(io::Error::other("disk is full"))
    });
    assert_eq!(
        format!("{:#}", error.unwrap_err()),
        format!("cannot write `{}`: disk is full", root.path().join(MODEL).display())
    );
    assert_eq!(names(root.path()), [MODEL]);
    assert_eq!(fs::read(root.path().join(MODEL)).unwrap(), b"old");
}

#[test]
fn a_folder_that_cannot_be_made_is_named_with_the_cause() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = create_at(&file.join("run"), false, &[]).unwrap_err();
    let path = file.join("run").display().to_string();
    assert_eq!(
        format!("{error:#}"),
        format!("cannot make the run folder `{path}`: Not a directory (os error 20)")
    );
    let error = make_new(&file, "digits-20261120-213305", "--run-dir").unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        format!(
            "cannot make the folder `{}`: File exists (os error 17)\n  hint: choose another place with --run-dir DIR",
            file.display()
        )
    );
}

#[test]
fn a_job_name_cannot_leave_the_runs_folder() {
    assert_eq!(
        ["mnist_ps", "../x", "..", "a b/c", ""].map(file_name),
        ["mnist_ps", ".._x", "run", "a_b_c", "run"]
    );
}
