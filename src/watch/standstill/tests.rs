use proptest::prelude::*;

use super::*;
use crate::recorder::{Flight, GroupNoted};
use crate::runner::flight::{Lost, RankProcess};

fn open(what: &str, with: u32, ago_s: f64) -> Noted {
    Noted { what: what.into(), with: Some(with), ago_s, ..Noted::default() }
}

fn ended(what: &str, with: u32, ago_s: f64, took_s: f64) -> Noted {
    Noted { took_s: Some(took_s), ..open(what, with, ago_s) }
}

fn rank(number: u32, flight: Flight) -> Found {
    let role = if number == 0 { "server" } else { "trainer" };
    let process = RankProcess {
        rank: Rank(number),
        role: role.into(),
        host: "here".into(),
        machine: "this".into(),
        pid: 100 + number as i32,
        started: 1,
    };
    let flight = RankFlight {
        process,
        written_ms: 1,
        why: "asked for".into(),
        doing: "training, step 7".into(),
        lost: None,
        flight,
    };
    Found { rank: Rank(number), role: role.into(), process: Process::Runs, flight: Some(flight) }
}

impl Found {
    fn noted(&mut self) -> &mut Flight {
        &mut self.flight.as_mut().unwrap().flight
    }
}

/// A parameter server and `trainers` that have called it all the time until `still_s` ago, with a rhythm of some milliseconds.
/// Only the server's main thread waits: at a barrier.
fn world(trainers: u32, still_s: f64) -> Vec<Found> {
    let before = |nth: u32| still_s + 0.01 * f64::from(nth + 1);
    let mut server = Flight { calls: vec![open("barrier trained", 0, 60.0)], ..Flight::default() };
    let mut ranks = Vec::new();
    for trainer in 1..=trainers {
        let calls = (0..20).rev().map(|nth| ended("net.compute", 0, before(nth), 0.004)).collect();
        let plugins = (0..20)
            .rev()
            .map(|nth| Noted { of: Some("nll".into()), ..ended("compute", 0, before(nth) - 0.005, 0.001) })
            .collect();
        server.served.extend((0..20).rev().map(|nth| ended("net.compute", trainer, before(nth), 0.003)));
        let batches = (0..2).rev().map(|nth| ended("batch", 1, before(nth), 0.001)).collect();
        ranks.push(rank(trainer, Flight { calls, plugins, batches, ..Flight::default() }));
    }
    ranks.insert(0, rank(0, server));
    ranks
}

/// All trainers but one wait for the server, which serves them and waits, as in a round.
fn round_without(ranks: &mut [Found], missing: usize, for_s: f64) {
    for at in (1..ranks.len()).filter(|at| *at != missing) {
        ranks[at].noted().calls.push(open("net.update", 0, for_s));
        let served = Noted { computes: Some(false), ..open("net.update", at as u32, for_s) };
        ranks[0].noted().served.push(served);
    }
}

/// Replicas that have done as many averages each.
fn replicas(size: u32, still_s: f64) -> Vec<Found> {
    let members: Vec<u32> = (0..size).collect();
    let of = |number| {
        let collectives = (0..20u64)
            .map(|nth| Noted {
                of: Some("trainers".into()),
                number: Some(nth + 1),
                with: None,
                ..ended("all_reduce", 0, still_s + 0.01 * (20 - nth) as f64, 0.005)
            })
            .collect();
        let groups = vec![GroupNoted { name: "trainers".into(), members: members.clone(), begun: 20 }];
        rank(number, Flight { collectives, groups, ..Flight::default() })
    };
    (0..size).map(of).collect()
}

fn joins(rank: &mut Found, for_s: f64) {
    let noted = rank.noted();
    noted.groups[0].begun += 1;
    let (of, number) = (Some("trainers".to_owned()), Some(noted.groups[0].begun));
    noted.collectives.push(Noted { of, number, with: None, ..open("all_reduce", 0, for_s) });
}

fn named(ranks: &[Found]) -> (u32, Cause) {
    let culprit = verdict(ranks, Some(1 << 30)).culprit.expect("somebody is at fault");
    (culprit.rank.0, culprit.cause)
}

#[test]
fn ranks_that_move_are_left_alone() {
    assert_eq!(verdict(&world(3, 0.002), Some(1 << 30)).culprit, None);
    assert_eq!(verdict(&replicas(4, 0.1), None).culprit, None);
}

#[test]
fn what_always_takes_long_does_not_stand() {
    let mut ranks = world(2, 1.5);
    let slow = |ago_s, took_s| Noted { took_s, computes: Some(true), ..open("net.compute", 1, ago_s) };
    ranks[0].noted().served = vec![slow(4.0, Some(2.0)), slow(1.5, None)];
    ranks[1].noted().calls = vec![ended("net.compute", 0, 4.0, 2.1), open("net.compute", 0, 1.5)];
    ranks[2].noted().calls = ranks[1].noted().calls.clone();
    assert_eq!(verdict(&ranks, None).culprit, None, "{}", verdict(&ranks, None));
    // And in the end it does.
    ranks[0].noted().served[1].ago_s = 7.0;
    let cause = Cause::Handler { method: "net.compute".into(), of: Rank(1) };
    assert_eq!(named(&ranks), (0, cause));
}

#[test]
fn what_a_person_reads_names_rank_cause_and_who_waits() {
    let mut ranks = replicas(3, 4.0);
    joins(&mut ranks[0], 3.9);
    joins(&mut ranks[2], 3.8);
    ranks[1].process = Process::Stopped;
    insta::assert_snapshot!(verdict(&ranks, None), @r"
    rank 0    server0      runs      training, step 7; in `all_reduce` of group `trainers`, its 21. collective, for 3.9 s without rank 1, nothing new for 3.9 s
    rank 1    trainer1     STOPPED   training, step 7, nothing new for 4.0 s
    rank 2    trainer2     runs      training, step 7; in `all_reduce` of group `trainers`, its 21. collective, for 3.8 s without rank 1, nothing new for 3.8 s
    the run stands because of rank 1 (`trainer1`): its process is stopped, by a signal or a debugger
      hint: `kill -CONT` has it go on
    ");
}

#[test]
fn how_the_job_ended_is_told_when_it_has() {
    let mut ranks = world(2, 3.0);
    for found in &mut ranks {
        found.process = Process::Gone;
    }
    let why = "rank 2 (`trainer2`) was lost while training, step 7: its connection closed";
    ranks[0].flight.as_mut().unwrap().lost = Some(Lost { rank: Rank(2), why: why.into() });
    assert_eq!(named(&ranks), (2, Cause::Lost { why: why.into() }));
    assert!(verdict(&ranks, None).to_string().ends_with(&format!("\nthe run ended: {why}")));
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Stopped,
    Gone,
    PlugIn,
    Handler,
    NotInCollective,
    FullDisk,
    Silent,
    AtWork,
}

/// A world in which rank `at` of `size` has stood for `for_s`, and who is to be named with what.
fn made_up(fault: Fault, size: u32, at: u32, for_s: f64) -> (Vec<Found>, Option<u64>, u32, &'static str) {
    let victim = at as usize;
    // Somebody has to wait for a rank that is at work.
    let size = if matches!(fault, Fault::AtWork) { size.max(3) } else { size };
    let (mut ranks, mut free) = (world(size - 1, for_s), Some(1 << 30));
    match fault {
        Fault::Handler => {
            let of = at.max(1);
            let served = Noted { computes: Some(true), ..open("net.compute", of, for_s) };
            ranks[0].noted().served.push(served);
            ranks[of as usize].noted().calls.push(open("net.compute", 0, for_s));
            return (ranks, free, 0, "computes `net.compute`");
        }
        Fault::NotInCollective => {
            ranks = replicas(size, for_s);
            (0..size as usize)
                .filter(|other| *other != victim)
                .for_each(|other| joins(&mut ranks[other], for_s));
            return (ranks, free, at, "has not come to `all_reduce`, the 21. collective");
        }
        Fault::FullDisk => {
            free = Some(0);
            round_without(&mut ranks, 0, for_s);
            return (ranks, free, 0, "the disk of the run folder is full");
        }
        _ => {}
    }
    // These may happen to the server, too: then all trainers wait for it.
    if at == 0 {
        for trainer in &mut ranks[1..] {
            trainer.noted().calls.push(open("net.compute", 0, for_s));
        }
    } else {
        round_without(&mut ranks, victim, for_s);
    }
    let said = match fault {
        Fault::Stopped => {
            ranks[victim].process = Process::Stopped;
            "is stopped"
        }
        Fault::Gone => {
            ranks[victim].process = Process::Gone;
            "is gone"
        }
        Fault::Silent => {
            (ranks[victim].process, ranks[victim].flight) = (Process::Silent { state: 'D' }, None);
            "waits in the system"
        }
        Fault::PlugIn => {
            let call = Noted { of: Some("mine".into()), with: None, ..open("batch", 0, for_s) };
            ranks[victim].noted().plugins.push(call);
            "`batch` of plug-in `mine` does not come back"
        }
        _ if at == 0 => {
            // A server that computes for nobody: of the two things that may be said, which it is depends on what it did before.
            return (ranks, free, 0, "does not answer `net.compute`|is at work of its own");
        }
        _ => "is at work of its own",
    };
    (ranks, free, at, said)
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Stopped),
        Just(Fault::Gone),
        Just(Fault::PlugIn),
        Just(Fault::Handler),
        Just(Fault::NotInCollective),
        Just(Fault::FullDisk),
        Just(Fault::Silent),
        Just(Fault::AtWork),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens to whichever rank of worlds of any size, that rank is named with that cause.
    #[test]
    fn in_a_hundred_made_up_standstills_rank_and_cause_are_named(
        fault in faults(), size in 2u32..12, at in 0u32..12, for_s in 1.2f64..500.0,
    ) {
        let (ranks, free, culprit, said) = made_up(fault, size, at % size, for_s);
        let told = verdict(&ranks, free);
        let named = told.culprit.as_ref().map(|named| (named.rank.0, named.cause.to_string()));
        prop_assert!(named.as_ref().is_some_and(|(rank, cause)| *rank == culprit && said.split('|').any(|said| cause.contains(said))),
            "{:?}: {:?}, not rank {} with `{}`\n{}", fault, named, culprit, said, told);
    }
}

#[test]
fn before_the_first_step_it_is_said_that_what_takes_long_may_be_done_once() {
    let mut ranks =
        vec![rank(0, Flight { calls: vec![open("barrier trained", 0, 9.0)], ..Flight::default() })];
    let plugins = vec![Noted { of: Some("images".into()), ..open("open", 0, 8.0) }];
    ranks.push(rank(1, Flight { plugins, ..Flight::default() }));
    let told = verdict(&ranks, None);
    assert!(told.starting && !told.stands(), "{told:?}");
    let said = told.to_string();
    let wanted = "the run has taken no step yet, and waits for 8.0 s for rank 1 (`trainer1`), which may be preparing its first: `open`";
    assert!(said.contains(wanted), "{said}");
    // After two minutes it is no start any more.
    ranks[1].noted().plugins[0].ago_s = 121.0;
    assert!(verdict(&ranks, None).stands());
    // A process that is gone does not come back.
    ranks[1].process = Process::Gone;
    assert!(verdict(&ranks, None).stands());
}

#[test]
fn of_a_run_whose_processes_are_all_gone_none_is_at_fault() {
    let mut ranks = world(2, 5.0);
    ranks.iter_mut().for_each(|rank| rank.process = Process::Gone);
    let told = verdict(&ranks, None);
    assert!(told.culprit.is_none() && told.is_killed(), "{told:?}");
}
