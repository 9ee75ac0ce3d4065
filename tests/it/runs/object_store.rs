//! Checkpoints in a bucket, as a user meets them, with whatever a store may do.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::small::SMALL;
use crate::fake_s3::{BUCKET, FakeS3, Fault, KEY_ID};
use crate::program::*;
use crate::support::eventually;

const ROUNDS: [&str; 3] = ["train.consistency=bsp", "train.steps=60", "checkpoint.every_steps=10"];
const TO: &str = "checkpoint.to=s3://bucket/runs/digits";
/// So that the parts of an upload are several.
const WIDE: [&str; 2] = [
    "modules.net.layers=[\"flatten\", { type = \"linear\", in_features = 64, out_features = 60000 }, \"relu\", \
     { type = \"linear\", in_features = 60000, out_features = 10 }]",
    "optimizer={ type = \"sgd\", lr = 0.01 }",
];

/// With a checkpoint that is due all the time.
const SHORT: [&str; 4] =
    ["train.consistency=bsp", "train.steps=400", "checkpoint.every_steps=5", "log.every=1"];

/// What is in no message and no file: the key and the session's token.
const HIDDEN: [&str; 2] = ["hidden-secret", "hidden-session"];

/// What the environment says of the store; a request takes at most `ms`.
fn with_keys(command: &mut Command, endpoint: &str, ms: u32) {
    without_keys(command);
    command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", HIDDEN[0]);
    command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_ALLOW_HTTP", "true");
    command.env("PSTRAIN_S3_TIMEOUT_MS", ms.to_string());
}

fn without_keys(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
}

/// The built-in job with a smaller model in the run folder `RUN`, with checkpoints in the store.
fn job(folder: &Path, store: &FakeS3, settings: &[&str], more: &[&str]) -> Command {
    let mut command = spawn(folder, None, &[&[TO, SMALL], settings].concat());
    command.args(more);
    with_keys(&mut command, &store.endpoint(), 30_000);
    command
}

/// The same, which goes on in the run folder.
fn going_on(folder: &Path, store: &FakeS3, settings: &[&str], from: &str) -> Command {
    let mut command = spawn_with(folder, None, &[&[TO, SMALL], settings].concat(), &["--resume", from]);
    with_keys(&mut command, &store.endpoint(), 30_000);
    command
}

fn tool(folder: &Path, store: &FakeS3, args: &[&str]) -> Output {
    let mut command = pstrain(folder);
    command.arg("checkpoint").args(args);
    with_keys(&mut command, &store.endpoint(), 30_000);
    finish(&mut command)
}

/// All ranks and who has started them, at once.
fn kill_all(launcher: &Child) {
    for process in ranks_of(launcher).into_iter().chain([Pid::from_raw(launcher.id().cast_signed())]) {
        kill(process, Signal::SIGKILL).unwrap();
    }
}

/// Waits until training has gone on for a while.
fn goes_on(folder: &Path) {
    let steps = |metrics: &str| metrics.matches("\"kind\":\"step\"").count();
    let before = records(folder, "step").len();
    wait_for_metrics(folder, |metrics| steps(metrics) > before + 60);
}

/// What was said, without what differs from run to run.
fn said(output: &Output, store: &FakeS3) -> String {
    let text = stderr(output).replace(&store.endpoint(), "ENDPOINT");
    for hidden in HIDDEN {
        assert!(!text.contains(hidden) && !stdout(output).contains(hidden), "{text}");
    }
    text
}

/// Those files below a folder in which one of these stands.
fn with_any_of(folder: &Path, texts: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(with_any_of(&path, texts));
        } else {
            let bytes = fs::read(&path).unwrap();
            let has = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            found.extend(texts.iter().any(has).then_some(path));
        }
    }
    found
}

#[test]
fn a_run_leaves_nothing_of_the_keys_in_its_files_and_in_the_store() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    let mut command = job(folder.path(), &store, &ROUNDS, &["--json"]);
    command.env("AWS_SESSION_TOKEN", HIDDEN[1]).env("PSTRAIN_LOG", "debug");
    let output = finish(&mut command);
    assert_code(&output, 0);
    said(&output, &store);
    assert!(fs::metadata(folder.path().join("RUN/summary.json")).is_ok());
    let all = [HIDDEN[0], HIDDEN[1], KEY_ID];
    let found = with_any_of(folder.path(), &all);
    assert!(found.is_empty(), "{found:?}");
    assert!(!store.keys().is_empty());
    for key in store.keys() {
        store.change(&key, |object| {
            let has = |text: &&str| object.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(!all.iter().any(has), "{key}");
        });
    }
}

/// Is each object of a checkpoint that is there?
fn of_checkpoints(store: &FakeS3) -> bool {
    let checkpoints = store.checkpoints();
    let of_one =
        |key: &String| key.rsplit_once('/').is_some_and(|(of, _)| checkpoints.contains(&of.to_owned()));
    store.keys().iter().all(of_one)
}

/// The step of the newest one.
fn last(store: &FakeS3) -> u64 {
    let last = store.checkpoints().pop().expect("a checkpoint");
    last.rsplit_once('-').expect("a step").1.parse().expect("a number")
}

fn puts(request: &crate::fake_s3::Request) -> bool {
    request.is_put()
}

fn anything(_: &crate::fake_s3::Request) -> bool {
    true
}

/// CP-1, CP-3: on a machine that has nothing of the run.
#[test]
fn a_run_that_is_killed_goes_on_from_the_bucket_to_the_same_model() {
    let store = FakeS3::start();
    let [whole, killed, elsewhere] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let settings = ["train.consistency=bsp", "train.steps=100", "checkpoint.every_steps=10"];
    assert_code(&finish(&mut spawn(whole.path(), None, &[&[SMALL], &settings[..]].concat())), 0);
    let launcher = start(&mut job(killed.path(), &store, &settings, &[]));
    eventually("a checkpoint", || !store.checkpoints().is_empty());
    kill_all(&launcher);
    wait(launcher);
    // What a writer that was killed has left.
    store.put("runs/digits/step-0000000149/shard-00001-model-00001-of-00001.safetensors", b"half");
    let mut again = going_on(elsewhere.path(), &store, &settings, "auto");
    // What looks up names has threads, which must be gone when ranks are forked.
    again.env("AWS_ENDPOINT_URL", store.named_endpoint());
    let output = finish(&mut again);
    assert_code(&output, 0);
    let text = said(&output, &store);
    assert!(text.contains("in `s3://bucket/runs/digits/step-00000000"), "{text}");
    let runs = fs::read_dir(elsewhere.path().join("runs")).unwrap().map(|run| run.unwrap().path());
    let runs: Vec<_> = runs.collect();
    let [run] = &runs[..] else { panic!("{runs:?}") };
    assert_eq!(fs::read(model(whole.path())).unwrap(), fs::read(run.join("model.safetensors")).unwrap());
    assert!((1..=2).contains(&store.checkpoints().len()), "{:?}", store.checkpoints());
    // What was left unfinished is gone, and so is what is not kept.
    assert!(of_checkpoints(&store), "{:?}", store.keys());
    assert_eq!(store.open_uploads(), 0);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn those_in_a_bucket_are_listed_verified_and_exported() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    let judged = ["eval.every_steps=10", "eval.best=accuracy", "checkpoint.keep_best=1", "checkpoint.keep=1"];
    assert_code(&finish(&mut job(folder.path(), &store, &[&ROUNDS[..], &judged].concat(), &[])), 0);
    assert!((1..=2).contains(&store.checkpoints().len()), "{:?}", store.checkpoints());
    // Of those that were removed nothing is left.
    assert!(of_checkpoints(&store), "{:?}", store.keys());
    let step = last(&store);
    let one = format!("s3://bucket/runs/digits/step-{step:010}");
    let one = one.as_str();

    let tool = |args: &[&str]| tool(folder.path(), &store, args);
    for place in ["s3://bucket/runs/digits", "s3://bucket/runs/digits/", "RUN"] {
        let listed = tool(&["list", place, "--json"]);
        assert_code(&listed, 0);
        let listed: Value = serde_json::from_str(&stdout(&listed)).unwrap();
        let last = listed.as_array().unwrap().last().unwrap();
        assert_eq!((last["folder"].as_str(), last["step"].as_u64()), (Some(one), Some(step)));
        assert_eq!(last["files"], 3);
        assert!(last["judged"]["value"].is_number() && last["saved"].is_string(), "{last}");
    }
    let runs = finish(pstrain(folder.path()).args(["runs", "."]));
    assert!(stdout(&runs).contains("in s3://bucket/runs/digits"), "{}", stdout(&runs));
    // An answer that breaks off is asked for again.
    store.fault(Fault::BreaksOff, 1, |request| request.key.ends_with(".safetensors"));
    let verified = tool(&["verify", one]);
    assert_code(&verified, 0);
    assert!(stdout(&verified).starts_with(&format!("{one}  whole: 3 files")), "{}", stdout(&verified));
    assert_code(&tool(&["export", "s3://bucket/runs/digits", "--out", "last.safetensors"]), 0);
    // What the same steps make of it.
    let short = tempfile::tempdir().unwrap();
    let steps = format!("train.steps={step}");
    assert_code(&finish(&mut spawn(short.path(), None, &[&[SMALL], &ROUNDS[..], &[&steps]].concat())), 0);
    let exported = tch::Tensor::read_safetensors(folder.path().join("last.safetensors")).unwrap();
    let saved = tch::Tensor::read_safetensors(model(short.path())).unwrap();
    assert_eq!(exported.len(), saved.len());
    assert!(exported.iter().all(|tensor| saved.contains(tensor)));

    let shard = format!("runs/digits/step-{step:010}/shard-00001-model-00001-of-00001.safetensors");
    let shard = shard.as_str();
    store.change(shard, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
    let verified = tool(&["verify", one]);
    assert_code(&verified, 1);
    let text = stdout(&verified);
    assert!(text.contains(&format!("NOT whole: `s3://bucket/{shard}` is not as it was written")), "{text}");
    fs::remove_file(folder.path().join("RUN/summary.json")).unwrap();
    let output = finish(&mut going_on(folder.path(), &store, &ROUNDS, one));
    assert_code(&output, 2);
    assert!(said(&output, &store).contains("is not as it was written: its SHA-256 is"));
    store.change(shard, Vec::clear);
    assert_code(&tool(&["verify", one]), 1);
    let nothing = tool(&["list", "s3://bucket/elsewhere"]);
    assert_code(&nothing, 2);
    assert!(stderr(&nothing).contains("there is no checkpoint in `s3://bucket/elsewhere`"));
    let nothing = tool(&["list", "gs://bucket/elsewhere"]);
    assert_code(&nothing, 2);
    insta::assert_snapshot!(stderr(&nothing), @r"
    error: `gs://bucket/elsewhere` is neither a folder nor s3://BUCKET/PREFIX
      hint: stores that speak S3 are known, others are not: write s3://BUCKET/PREFIX, with AWS_ENDPOINT_URL in the environment where it is not Amazon's
    ");
}

/// Before training, not when the first checkpoint is due.
#[test]
fn a_store_that_cannot_be_written_to_is_found_before_training() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut Command)| {
        let mut command = job(folder.path(), &store, &ROUNDS, &[]);
        change(&mut command);
        let output = finish(&mut command);
        assert_code(&output, 2);
        assert!(!folder.path().join("RUN").exists());
        said(&output, &store)
    };
    insta::assert_snapshot!(refused(&|command| {
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    }), @r"
    error: checkpoint.to: `s3://bucket/runs/digits`: the environment has no keys for it: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set
      hint: set them for every rank, on each machine; docs/checkpoints.md has the other ways
    ");
    insta::assert_snapshot!(refused(&|command| {
        command.args(["--set", "checkpoint.to=s3://other/runs"]);
    }), @r"
    error: checkpoint.to: cannot list `s3://other/runs`: the store said 404 NoSuchBucket: The specified bucket does not exist
      hint: make the bucket, or look at its name, at AWS_REGION and at AWS_ENDPOINT_URL
    ");
    assert_eq!(store.asked("PUT"), 0);
}

#[test]
fn what_a_store_refuses_is_told_at_once() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    let refused = |ms: u32, change: &dyn Fn(&mut Command)| {
        let mut command = pstrain(folder.path());
        command.args(["checkpoint", "list", "s3://bucket/runs"]);
        with_keys(&mut command, &store.endpoint(), ms);
        change(&mut command);
        let output = finish(&mut command);
        assert!(!output.status.success());
        said(&output, &store)
    };
    insta::assert_snapshot!(refused(30_000, &|command| {
        command.env("AWS_ACCESS_KEY_ID", "another");
    }), @r"
    error: cannot read `s3://bucket/runs/manifest.json`: the store said 403 InvalidAccessKeyId: The AWS Access Key Id you provided does not exist in our records
      hint: look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and this machine's clock
    ");
    insta::assert_snapshot!(refused(30_000, &|command| {
        command.env_remove("AWS_ALLOW_HTTP");
    }), @r"
    error: `s3://bucket/runs`: AWS_ENDPOINT_URL begins with http://, and others on the way could read the checkpoints
      hint: use https://, or set AWS_ALLOW_HTTP=true where nobody is on the way
    ");
    store.fault(Fault::Says(403, "AccessDenied"), 1, anything);
    insta::assert_snapshot!(refused(30_000, &|_| ()), @r"
    error: cannot read `s3://bucket/runs/manifest.json`: the store said 403 AccessDenied: Access Denied
      hint: the keys in the environment have to be allowed s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject there
    ");
    assert_eq!(store.asked(""), 2);
    // Nobody listens, or whoever does says nothing, or that there is too much to do: not at once.
    let closed = format!("http://127.0.0.1:{}", free_port());
    insta::assert_snapshot!(refused(300, &|command| {
        command.env("AWS_ENDPOINT_URL", &closed);
    }), @r"
    error: cannot read `s3://bucket/runs/manifest.json`: the store does not answer as it should: Connection refused (os error 111), tried for up to 0.3 s
      hint: look at AWS_ENDPOINT_URL, at AWS_REGION, and at whether this machine reaches the store
    ");
    store.fault(Fault::Says(503, "SlowDown"), usize::MAX, anything);
    insta::assert_snapshot!(refused(300, &|_| ()), @"error: cannot read `s3://bucket/runs/manifest.json`: the store said 503 SlowDown: Please reduce your request rate, tried for up to 0.3 s");
    assert!(store.asked("") > 4);
    store.let_go();
    store.fault(Fault::Hangs, usize::MAX, anything);
    // A try or all of them have taken too long: whichever is found first.
    let said = refused(300, &|_| ()).replace(" as it should: operation timed out", "");
    insta::assert_snapshot!(said, @r"
    error: cannot read `s3://bucket/runs/manifest.json`: the store does not answer, tried for up to 0.3 s
      hint: look at AWS_ENDPOINT_URL, at AWS_REGION, and at whether this machine reaches the store
    ");
}

#[test]
fn a_store_that_fails_for_a_while_is_asked_again() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    store.fault(Fault::Says(503, "SlowDown"), 2, |request| request.method == "GET");
    store.fault(Fault::Says(500, "InternalError"), 2, puts);
    store.fault(Fault::Hangs, 1, puts);
    let mut command = job(folder.path(), &store, &ROUNDS, &[]);
    with_keys(&mut command, &store.endpoint(), 4_000);
    assert_code(&finish(&mut command), 0);
    assert!(!store.checkpoints().is_empty() && of_checkpoints(&store));
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn where_a_store_takes_nothing_training_goes_on_and_says_so() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    // So that each is due behind the failure of the one before.
    let settings = ["train.consistency=bsp", "train.steps=60", "checkpoint.every_steps=59"];
    let failing = |settings: &[&str], fault: Fault| {
        store.let_go();
        store.fault(fault, usize::MAX, puts);
        let mut command = job(folder.path(), &store, settings, &[]);
        with_keys(&mut command, &store.endpoint(), 500);
        let output = finish(&mut command);
        assert_code(&output, 1);
        assert_eq!(store.keys(), [""; 0]);
        let text = said(&output, &store);
        text.lines()
            .filter(|line| line.contains("could not be saved") || line.contains("hint"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    insta::assert_snapshot!(failing(&settings, Fault::Says(503, "SlowDown")), @r"
    [server0]  WARN training goes on, and the checkpoint of step 59 could not be saved: `checkpoint.write` on rank 0: cannot write `s3://bucket/runs/digits/step-0000000059/shard-00001-model-00001-of-00001.safetensors`: the store said 503 SlowDown: Please reduce your request rate, tried for up to 0.5 s
    [server0] error: 1 checkpoint could not be saved: `checkpoint.write` on rank 0: cannot write `s3://bucket/runs/digits/step-0000000059/shard-00001-model-00001-of-00001.safetensors`: the store said 503 SlowDown: Please reduce your request rate, tried for up to 0.5 s
    ");
    assert!(model(folder.path()).exists());
    // As one that says nothing.
    let text = failing(&settings, Fault::Hangs);
    assert_eq!(text.matches("the store does not answer").count(), 2, "{text}");
    let many = [&ROUNDS[..], &["train.steps=100000", "checkpoint.most_failures=2"]].concat();
    let text = failing(&many, Fault::Says(403, "AccessDenied"));
    assert_eq!(text.matches("training goes on, and the checkpoint of step").count(), 2, "{text}");
}

/// No step waits for it, and the next that are due are left out meanwhile.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_slow_store_does_not_hold_up_training() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    store.fault(Fault::Waits, usize::MAX, puts);
    let launcher = start(&mut job(folder.path(), &store, &SHORT, &[]));
    eventually("a request of the first checkpoint", || store.asked("PUT") > 0);
    goes_on(folder.path());
    assert_eq!(store.checkpoints(), [""; 0]);
    assert_eq!(store.asked("PUT"), 1, "one file after another");
    store.let_go();
    assert_code(&wait(launcher), 0);
    assert!(!store.checkpoints().is_empty() && of_checkpoints(&store), "{:?}", store.keys());
}

/// Nor where it does not even say what is there.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_store_that_stops_answering_does_not_hold_up_training() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    let launcher = start(&mut job(folder.path(), &store, &SHORT, &[]));
    eventually("the first checkpoint", || !store.checkpoints().is_empty());
    let before = last(&store);
    store.fault(Fault::Waits, usize::MAX, anything);
    let asked = store.asked("");
    eventually("a request that is not answered", || store.asked("") > asked);
    goes_on(folder.path());
    store.let_go();
    assert_code(&wait(launcher), 0);
    assert!(last(&store) > before && of_checkpoints(&store), "{:?}", store.keys());
}

/// A signal while it trains, and a store that takes nothing: there is no checkpoint, and nobody waits longer than was said.
#[test]
fn a_run_that_is_stopped_waits_for_a_store_no_longer_than_its_grace() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    store.fault(Fault::Waits, usize::MAX, puts);
    let settings =
        [&SHORT[..], &["train.epochs=100000", "train.steps=100000", "checkpoint.grace_ms=700"]].concat();
    let launcher = start(&mut job(folder.path(), &store, &settings, &[]));
    wait_for_metrics(folder.path(), |metrics| metrics.lines().count() > 5);
    let began = std::time::Instant::now();
    send_signal(&launcher, Signal::SIGTERM);
    let output = wait(launcher);
    // The store would have been waited for for 30 s.
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    assert_code(&output, 130);
    assert!(said(&output, &store).contains("no checkpoint was saved"), "{}", stderr(&output));
    assert_eq!(store.checkpoints(), [""; 0]);
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn large_files_are_sent_in_parts_and_given_up_where_one_is_refused() {
    let store = FakeS3::start();
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.consistency=bsp", "train.steps=4", "checkpoint.every_steps=2"];
    let settings = [&settings[..], &WIDE].concat();
    assert_code(&finish(&mut job(folder.path(), &store, &settings, &[])), 0);
    assert_eq!((store.uploads(), store.open_uploads()), (1, 0));
    let shard = "runs/digits/step-0000000002/shard-00001-model-00001-of-00001.safetensors";
    assert_eq!(store.asked(&format!("PUT {shard}")), 3);
    assert_code(&tool(folder.path(), &store, &["verify", "s3://bucket/runs/digits"]), 0);
    let store = FakeS3::start();
    store.fault(Fault::Says(403, "AccessDenied"), 1, |request| {
        request.query.get("partNumber").is_some_and(|number| number == "2")
    });
    assert_code(&finish(&mut job(folder.path(), &store, &settings, &[])), 1);
    assert_eq!((store.uploads(), store.open_uploads()), (1, 0));
    assert_eq!(store.keys(), [""; 0]);
}

/// A store that is not ours.
struct Moto {
    server: Child,
    endpoint: String,
}

impl Moto {
    fn start() -> Moto {
        // It ends with its stdin, also where the test fails.
        let mut python = interop_python("tests/data/moto_server.py");
        let mut server = python.arg(BUCKET).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut endpoint = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut endpoint).unwrap();
        Moto { server, endpoint: endpoint.trim().into() }
    }

    /// With these keys; a request takes at most `ms`.
    fn run(&self, command: &mut Command, ms: u32) -> Output {
        with_keys(command, &self.endpoint, ms);
        finish(command)
    }

    fn signal(&self, signal: Signal) {
        send_signal(&self.server, signal);
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
#[ignore = "needs a Python with PyTorch, and moto's server in it: `make interop` runs it"]
fn a_bucket_of_moto_in_python_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let moto = Moto::start();
    let run = |command: &mut Command| {
        let output = moto.run(command, 30_000);
        assert_code(&output, 0);
        output
    };
    let steps = ["train.consistency=bsp", "train.steps=6", "checkpoint.every_steps=2", "checkpoint.keep=1"];
    let settings = [&[TO], &steps[..], &WIDE].concat();
    run(&mut spawn(folder.path(), None, &settings));
    let whole = fs::read(model(folder.path())).unwrap();
    run(pstrain(folder.path()).args(["checkpoint", "verify", "s3://bucket/runs/digits"]));
    let listed = run(pstrain(folder.path()).args(["checkpoint", "list", "s3://bucket/runs/digits"]));
    assert_eq!(stdout(&listed).lines().count(), 1, "{}", stdout(&listed));
    let more = ["--run-dir", "AGAIN", "--resume", "s3://bucket/runs/digits"];
    let output = run(&mut spawn_with(folder.path(), None, &settings, &more));
    assert!(stderr(&output).contains("in `s3://bucket/runs/digits/step-000000000"), "{}", stderr(&output));
    assert_eq!(whole, fs::read(folder.path().join("AGAIN/model.safetensors")).unwrap());
}

#[test]
#[ignore = "needs a Python with PyTorch, and moto's server in it: `make interop` runs it"]
fn a_server_of_moto_in_python_that_stands_still_or_dies_costs_checkpoints_alone() {
    let folder = tempfile::tempdir().unwrap();
    let moto = Moto::start();
    let settings = [&[TO], &SHORT[..], &["train.steps=2000"]].concat();
    let begin = || {
        let mut command = spawn(folder.path(), None, &settings);
        with_keys(&mut command, &moto.endpoint, 60_000);
        start(&mut command)
    };
    let list = || {
        let mut command = pstrain(folder.path());
        let listed = moto.run(command.args(["checkpoint", "list", "s3://bucket/runs/digits"]), 30_000);
        stdout(&listed).lines().count()
    };
    let launcher = begin();
    eventually("a checkpoint", || list() > 0);
    for signal in [Signal::SIGSTOP, Signal::SIGCONT, Signal::SIGKILL] {
        moto.signal(signal);
        goes_on(folder.path());
    }
    let output = wait(launcher);
    assert_code(&output, 1);
    let text = stderr(&output);
    assert!(text.contains("could not be saved") && text.contains("the store does not answer"), "{text}");
    assert!(model(folder.path()).exists());
}
