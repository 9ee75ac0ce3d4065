use std::collections::BTreeMap;

use super::*;
use crate::watch::explain::facts::{JobFacts, RankFacts};

fn rank(number: u32, is_trainer: bool, spent: &[(Activity, f64)]) -> RankFacts {
    RankFacts {
        rank: number,
        role: if is_trainer { "trainer".into() } else { "server".into() },
        is_trainer,
        steps: if is_trainer { 1000 } else { 0 },
        passed_s: 10.0,
        seconds: spent.iter().map(|(of, share)| (*of, share * 10.0)).collect::<BTreeMap<_, _>>(),
        cpu_pct: 100.0,
    }
}

/// A server and two trainers, whose threads spend these parts of their time.
fn facts(server: &[(Activity, f64)], trainer: &[(Activity, f64)]) -> Facts {
    Facts {
        job: JobFacts {
            trainer_role: "trainer".into(),
            data_threads: 1,
            batch_size: 32,
            hosting_roles: vec!["server".into()],
            is_uncompressed: true,
            overlaps: true,
            local_steps: 1,
            ..JobFacts::default()
        },
        steps: 1000,
        seconds: 10.0,
        ranks: vec![rank(0, false, server), rank(1, true, trainer), rank(2, true, trainer)],
        ..Facts::default()
    }
}

use Activity::{Backward, Data, Exchange, Forward, Payload, Wait};

#[test]
fn late_data_ask_for_as_many_threads_as_would_do() {
    let mut late = facts(&[], &[(Data, 0.95), (Wait, 0.6), (Forward, 0.3)]);
    late.data_wait_pct = 60.0;
    let advice = data_is_late(&late).unwrap();
    assert_eq!(advice.limit, Limit::Data);
    assert!(
        advice.because.contains("60 %") && advice.change.starts_with("data.threads = 3 (it is 1)"),
        "{advice:?}"
    );
    // Threads that are not busy do not become faster by being more.
    for rank in &mut late.ranks {
        rank.seconds.insert(Data, 1.0);
    }
    assert!(data_is_late(&late).unwrap().change.starts_with("data.prefetch"));
    late.data_wait_pct = 4.0;
    assert_eq!(data_is_late(&late), None);
}

#[test]
fn a_server_that_works_all_along_while_trainers_wait_is_named() {
    let busy = facts(&[(Forward, 0.4), (Backward, 0.4)], &[(Wait, 0.8)]);
    let advice = server_is_busy(&busy).unwrap();
    assert!(advice.because.contains("rank 0 (`server0`)") && advice.because.contains("80 %"), "{advice:?}");
    assert!(advice.change.contains("run = \"caller\""), "{advice:?}");
    assert_eq!(server_is_busy(&facts(&[(Forward, 0.2)], &[(Wait, 0.8)])), None);
    assert_eq!(server_is_busy(&facts(&[(Forward, 0.9)], &[(Wait, 0.1), (Forward, 0.9)])), None);
}

#[test]
fn calls_that_take_long_though_nobody_is_busy_ask_for_larger_steps() {
    let mut idle = facts(&[(Forward, 0.2)], &[(Wait, 0.7), (Forward, 0.1)]);
    let advice = calls_take_long(&idle).unwrap();
    assert!(
        advice.limit == Limit::Network && advice.change.contains("train.batch_size (it is 32)"),
        "{advice:?}"
    );
    idle.job.waits_for_others = Some("bsp");
    let advice = calls_take_long(&idle).unwrap();
    assert!(
        advice.limit == Limit::SlowestRank && advice.change.starts_with("train.consistency"),
        "{advice:?}"
    );
    // Waiting for data is not waiting for ranks.
    idle.data_wait_pct = 60.0;
    assert_eq!(calls_take_long(&idle), None);
    assert_eq!(calls_take_long(&facts(&[(Forward, 0.8)], &[(Wait, 0.7)])), None);
}

#[test]
fn bytes_on_their_way_ask_for_fewer() {
    let mut heavy = facts(&[(Payload, 0.4)], &[(Wait, 0.5)]);
    assert!(tensors_take_long(&heavy).unwrap().change.contains("cluster.payload"));
    heavy.job.pulls = true;
    assert!(tensors_take_long(&heavy).unwrap().change.starts_with("pull_push.filter"));
    assert_eq!(tensors_take_long(&facts(&[(Payload, 0.05)], &[(Payload, 0.1)])), None);
}

#[test]
fn averages_that_take_long_ask_for_overlap_and_fewer_bytes() {
    let mut replicas = facts(&[], &[(Exchange, 0.4), (Backward, 0.3)]);
    replicas.job.has_replicas = true;
    let advice = exchange_takes_long(&replicas).unwrap();
    assert!(advice.because.contains("40 %") && advice.change.starts_with("replicas.hook"), "{advice:?}");
    replicas.job.overlaps = false;
    assert!(exchange_takes_long(&replicas).unwrap().change.starts_with("replicas.average = \"ddp\""));
    assert_eq!(exchange_takes_long(&facts(&[], &[(Exchange, 0.1)])), None);
}

#[test]
fn a_trainer_that_is_slower_than_the_others_is_named_with_how_much() {
    let mut uneven = facts(&[], &[(Forward, 0.3), (Wait, 0.5)]);
    uneven.job.has_replicas = true;
    assert_eq!(one_is_slow(&uneven), None);
    uneven.ranks.push(rank(3, true, &[(Forward, 0.9)]));
    let advice = one_is_slow(&uneven).unwrap();
    assert!(
        advice.because.contains("rank 3 (`trainer3`) works 9.0 ms") && advice.because.contains("3.0 times"),
        "{advice:?}"
    );
    uneven.ranks.last_mut().unwrap().cpu_pct = 40.0;
    assert!(one_is_slow(&uneven).unwrap().change.contains("40 % of a core"));
}

#[test]
fn trainers_that_compute_all_the_time_need_more_to_compute_with() {
    let advice = computing(&facts(&[], &[(Forward, 0.3), (Backward, 0.6)])).unwrap();
    assert!(
        advice.because.contains("90 %") && advice.because.contains("67 % of it in backward"),
        "{advice:?}"
    );
    assert!(advice.change.contains("GPU"), "{advice:?}");
    assert_eq!(computing(&facts(&[], &[(Forward, 0.3), (Wait, 0.6)])), None);
}

#[test]
fn what_concerns_most_of_the_time_comes_first() {
    let mut both = facts(&[(Forward, 0.9)], &[(Wait, 0.9), (Data, 0.9)]);
    both.data_wait_pct = 15.0;
    let limits: Vec<Limit> = all(&both).iter().map(|advice| advice.limit).collect();
    assert_eq!(limits, [Limit::Server, Limit::Data]);
}
