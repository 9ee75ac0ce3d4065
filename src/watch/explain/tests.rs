use super::*;
use crate::profile::Activity;
use crate::runner::records::{RankRecord, StepRecord};
use crate::topology::Rank;
use crate::watch::run::Watched;

/// A run of a server and two trainers with so many steps in so many seconds, from its lines.
fn watched(steps: u64, seconds: f64) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    let mut line = |line: crate::runner::records::MetricsLine| {
        lines += &serde_json::to_string(&line).unwrap();
        lines.push('\n');
    };
    for rank in 0..3u32 {
        let parts: &[(Activity, f64)] = match rank {
            0 => &[(Activity::Forward, 0.5), (Activity::Backward, 0.4)],
            _ => &[(Activity::Wait, 0.85), (Activity::Loss, 0.1)],
        };
        line(crate::runner::records::MetricsLine::Rank(RankRecord {
            rank: Rank(rank),
            role: if rank == 0 { "server".into() } else { "trainer".into() },
            time_s: seconds,
            passed_s: seconds,
            resident_bytes: 1 << 20,
            cpu_pct: 90.0,
            gpu: None,
            seconds: parts.iter().map(|(of, share)| (*of, share * seconds)).collect(),
        }));
    }
    for rank in 1..3u32 {
        line(crate::runner::records::MetricsLine::Step(StepRecord {
            step: steps,
            epoch: 1,
            rank: Rank(rank),
            loss: 1.0,
            lr: 0.1,
            samples_per_s: 100.0,
            data_wait_pct: 2.0,
            staleness: None,
            time_s: seconds,
            grad_norm: None,
            loss_scale: None,
            metrics: std::collections::BTreeMap::new(),
        }));
    }
    std::fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
    let mut watched = Watched::new(folder.path(), 3);
    watched.read_on(|_| ()).unwrap();
    watched
}

fn job() -> JobFacts {
    JobFacts {
        trainer_role: "trainer".into(),
        data_threads: 1,
        batch_size: 64,
        hosting_roles: vec!["server".into()],
        local_steps: 1,
        ..JobFacts::default()
    }
}

#[test]
fn a_run_that_waits_for_its_server_is_told_so() {
    insta::assert_snapshot!(explain(&watched(1000, 5.0), &job(), None));
}

#[test]
fn a_short_run_says_nothing_but_that() {
    let told = explain(&watched(12, 0.4), &job(), None);
    assert!(told.advice.is_empty());
    let text = told.to_string();
    assert!(text.contains("too short to say what limits it: 12 steps of a trainer in 0.4 s"), "{text}");
    assert!(!text.contains("what limits:"), "{text}");
}
