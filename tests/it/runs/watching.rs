//! A run as others look at it: while it goes on, and afterwards.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::program::*;
use crate::support::eventually;

/// What is answered to a GET: the head, and the body.
fn get(port: u16, path: &str, host: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.into(), body.into()))
}

/// The run as the page has it.
fn shown(port: u16) -> Option<Value> {
    let (head, body) = get(port, "/run.json", "localhost")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(&body).ok()
}

/// The JSON that a page is drawn from.
fn drawn(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"runs\">").expect("a page has its runs");
    serde_json::from_str(rest.split_once("</script>").unwrap().0).expect("JSON")
}

#[test]
fn a_run_is_seen_while_it_goes_on_and_its_page_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let settings = ["train.epochs=100000", "log.usage_every_ms=100"];
    let child =
        start(&mut spawn_with(folder.path(), None, &settings, &["--run-dir", "RUN", "--dashboard", &at]));
    eventually("three trainers and four ranks are seen", || {
        let Some(page) = shown(port) else { return false };
        let run = &page["runs"][0];
        let trainers = run["trainers"].as_array().unwrap();
        assert_eq!(run["under_way"], true);
        trainers.len() == 3
            && run["ranks"].as_array().unwrap().len() == 4
            && trainers.iter().all(|trainer| trainer["figures"]["loss"]["mean"].as_array().unwrap().len() > 3)
    });
    let (_, html) = get(port, "/", "127.0.0.1").unwrap();
    assert_eq!(drawn(&html)["live"], true);
    let (head, _) = get(port, "/", "evil.example").unwrap();
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");

    let mut top = pstrain(folder.path());
    let seen = finish(top.args(["top", &at]).env("COLUMNS", "100"));
    assert_code(&seen, 0);
    let text = stdout(&seen);
    assert!(
        text.starts_with("digits_ps ") && text.lines().next().unwrap().contains(&format!("http://{at}")),
        "{text}"
    );
    assert!(["0 server", "1 trainer", "3 trainer"].iter().all(|rank| text.contains(rank)), "{text}");

    let mut events = TcpStream::connect(("127.0.0.1", port)).unwrap();
    events.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(events, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut events = BufReader::new(events).lines().map(Result::unwrap);
    let first = events.find(|line| line.starts_with("data: {")).expect("what is new comes by itself");
    assert!(first.contains("\"trainers\""), "{first}");

    send_signal(&child, Signal::SIGTERM);
    assert!(events.any(|line| line == "event: end"), "whoever looks is told of the end");
    wait(child);
    let left = drawn(&fs::read_to_string(folder.path().join("RUN/report.html")).unwrap());
    assert_eq!((&left["live"], &left["runs"][0]["under_way"]), (&false.into(), &false.into()));
}

#[test]
fn a_page_of_two_runs_tells_by_which_keys_they_differ() {
    let folder = tempfile::tempdir().unwrap();
    for lr in ["0.001", "0.002"] {
        let lr = format!("optimizer.lr={lr}");
        let run = format!("runs/{lr}");
        let mut command = pstrain(folder.path());
        command.args([
            "spawn",
            "--world-size",
            "2",
            "--set",
            "train.steps=20",
            "--set",
            &lr,
            "--run-dir",
            &run,
        ]);
        assert_code(&finish(&mut command), 0);
    }
    let mut command = pstrain(folder.path());
    let output = finish(command.args(["report", "runs/optimizer.lr=0.001", "runs/optimizer.lr=0.002"]));
    assert_code(&output, 0);
    assert_eq!(stdout(&output), "wrote report.html\n");
    let page = drawn(&fs::read_to_string(folder.path().join("report.html")).unwrap());
    assert_eq!(page["runs"].as_array().unwrap().len(), 2);
    let differing = page["differing"].as_array().unwrap();
    assert_eq!(differing.len(), 1, "{differing:?}");
    assert_eq!(differing[0]["key"], "optimizer.lr");
    assert_eq!(differing[0]["values"], serde_json::json!(["0.001", "0.002"]));
}

/// The last figures of a page are those of the run's own files.
#[test]
fn a_page_shows_what_the_files_of_the_run_say() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&finish(&mut spawn(folder.path(), None, &["train.steps=60", "log.every=1"])), 0);
    let page = drawn(&fs::read_to_string(folder.path().join("RUN/report.html")).unwrap());
    let run = &page["runs"][0];
    assert_eq!(run["summary"]["loss_final"], summary(folder.path())["loss_final"]);
    for trainer in run["trainers"].as_array().unwrap() {
        let steps = records(folder.path(), "step");
        let own: Vec<f64> = steps
            .iter()
            .filter(|step| step["rank"] == trainer["rank"])
            .map(|step| step["loss"].as_f64().unwrap())
            .collect();
        let shown = trainer["figures"]["loss"]["mean"].as_array().unwrap();
        assert_eq!(shown.len(), 60);
        for (shown, own) in shown.iter().zip(own) {
            assert!((shown.as_f64().unwrap() - own).abs() <= 1e-5 * own.abs(), "{shown} is not {own}");
        }
    }
    let ranks: Vec<u64> =
        records(folder.path(), "rank").iter().map(|rank| rank["rank"].as_u64().unwrap()).collect();
    assert!((0..4).all(|rank| ranks.contains(&rank)), "each rank tells what it uses: {ranks:?}");
    let used = records(folder.path(), "rank");
    assert!(used.iter().all(|rank| rank["resident_bytes"].as_u64().unwrap() > 50 << 20), "{used:?}");
}

#[test]
fn a_dashboard_that_others_reach_wants_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = spawn_with(folder.path(), None, &["train.steps=5"], &["--dashboard", "0.0.0.0:0"]);
    let output = finish(command.env_remove("PSTRAIN_TOKEN"));
    assert_code(&output, 2);
    let said = stderr(&output);
    assert!(said.contains("there is no token") && said.contains("hint: set PSTRAIN_TOKEN"), "{said}");
    let output = finish(pstrain(folder.path()).args(["report", "."]));
    assert_code(&output, 2);
    assert!(stderr(&output).contains("`.` is not a run folder: it has no job.toml"), "{}", stderr(&output));
}

/// However long a run is and however many take part, its page stays small.
#[test]
fn the_page_of_a_long_run_of_many_ranks_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("long");
    fs::create_dir(&run).unwrap();
    let job = include_str!("../../../jobs/digits_ps.toml");
    fs::write(run.join("job.toml"), format!("{job}\n[cluster]\nworld_size = 20\n")).unwrap();
    write_long(&run.join("metrics.jsonl"));
    assert_code(&finish(pstrain(folder.path()).args(["report", "long"])), 0);
    let size = fs::metadata(run.join("report.html")).unwrap().len();
    assert!(size < 3_000_000, "{size} bytes");
}

/// 100,000 steps of 19 trainers, each fiftieth of which was logged.
fn write_long(path: &Path) {
    let mut file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    for step in (50..=100_000).step_by(50) {
        for rank in 1..20 {
            let loss = 2.0 / (1.0 + f64::from(step) / 5_000.0) + f64::from((step * rank) % 97) / 500.0;
            let time_s = f64::from(step) / 100.0;
            writeln!(
                file,
                r#"{{"kind":"step","step":{step},"epoch":1,"rank":{rank},"loss":{loss},"lr":0.01,"samples_per_s":{},"data_wait_pct":1.25,"staleness":3.5,"time_s":{time_s},"metrics":{{"accuracy":0.5}}}}"#,
                3_000.0 + loss * 100.0
            )
            .unwrap();
        }
        if step % 1_000 == 0 {
            for rank in 0..20 {
                let time_s = f64::from(step) / 100.0;
                writeln!(
                    file,
                    r#"{{"kind":"rank","rank":{rank},"role":"trainer","time_s":{time_s},"passed_s":10.0,"resident_bytes":{},"cpu_pct":97.5,"seconds":{{"forward":3.25,"backward":4.5,"wait":2.0}}}}"#,
                    150_000_000 + step
                )
                .unwrap();
            }
        }
    }
}
