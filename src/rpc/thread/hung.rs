//! A rank whose RPC thread hangs, as it does in a process that was stopped; and ranks that live and do not move on.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::testing;
use crate::rpc::wait::park::park_on;
use crate::rpc::{Cause, LostRank, Mesh, Message, Methods};
use crate::topology::Rank;

const LOST_AFTER: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);

fn world(size: u32) -> Vec<Mesh> {
    world_with(size, Duration::from_millis(100), LOST_AFTER)
}

fn world_with(size: u32, heartbeat: Duration, lost_after: Duration) -> Vec<Mesh> {
    testing::world(size, |_| (), |rank| (rank.heartbeat, rank.lost_after) = (heartbeat, lost_after))
}

/// Three ranks whose progress is watched.
fn world_watched(register: impl Fn(&mut Methods)) -> Vec<Mesh> {
    testing::world(3, register, |rank| {
        (rank.heartbeat, rank.lost_after) = (Duration::from_millis(100), LOST_AFTER);
        rank.stalled_after = Some(STALLED_AFTER);
    })
}

/// Waits for the heartbeat that says so.
fn hear(mesh: &Mesh, rank: Rank, doing: &str) {
    let deadline = Instant::now() + LIMIT;
    while mesh.heard_doing(rank) != doing {
        assert!(Instant::now() < deadline, "nothing from rank {rank}");
        thread::yield_now();
    }
}

/// How the mesh ends.
fn lost(mesh: &Mesh) -> LostRank {
    park_on(mesh.lost().ended(), Some(LIMIT)).expect("in time").expect("not in order")
}

#[test]
fn a_rank_that_hangs_is_named_by_all_others_and_learns_of_it_itself() {
    let meshes = world(3);
    meshes[1].doing("hanging");
    for mesh in [&meshes[0], &meshes[2]] {
        hear(mesh, Rank(1), "hanging");
    }
    let start = Instant::now();
    meshes[1].stall(LOST_AFTER * 4);
    for mesh in [&meshes[0], &meshes[2]] {
        let lost = lost(mesh);
        assert_eq!((lost.rank, lost.cause, &*lost.doing), (Rank(1), Cause::Silent, "hanging"));
    }
    let took = start.elapsed();
    assert!(took < LOST_AFTER * 4, "{took:?}");
    assert_eq!(lost(&meshes[1]).rank, Rank(1));
}

#[test]
fn what_a_rank_does_is_known_long_before_its_next_heartbeat() {
    let meshes = world_with(2, LIMIT, LIMIT * 2);
    let start = Instant::now();
    for step in [25, 100] {
        let doing = format!("training, step {step}");
        meshes[1].doing(&doing);
        hear(&meshes[0], Rank(1), &doing);
    }
    assert!(start.elapsed() < LIMIT / 2);
}

#[test]
fn a_report_says_how_old_it_is() {
    let meshes = world(2);
    meshes[1].doing("hanging");
    hear(&meshes[0], Rank(1), "hanging");
    meshes[1].stall(LOST_AFTER * 4);
    let lost = lost(&meshes[0]);
    let before = lost.said_before.expect("it did not end the job itself");
    assert!(before >= LOST_AFTER, "{before:?}");
    let text = lost.to_string();
    assert!(text.contains("was lost while hanging: nothing came from it for"), "{text}");
    assert!(
        text.ends_with(&format!("(what it was doing it said {:.1} s before)", before.as_secs_f64())),
        "{text}"
    );
}

#[test]
fn a_rank_that_hangs_for_less_than_that_goes_on_and_blames_nobody() {
    let meshes = world(3);
    for _ in 0..2 {
        meshes[1].stall(LOST_AFTER / 3);
        assert_eq!(meshes[0].lost().wait(Some(LOST_AFTER / 2)), None);
    }
    assert_eq!(meshes[0].lost().wait(Some(LOST_AFTER)), None);
    assert!(meshes.iter().all(|mesh| mesh.lost().now().is_none()));
}

const STALLED_AFTER: Duration = Duration::from_millis(1500);

/// `wait` answers never, `compute` does not return, and `pass` asks rank 2 for what never comes.
fn endless(methods: &mut Methods) {
    methods.add("wait", async |_| std::future::pending().await);
    methods.add("compute", async |_| {
        let (_kept, never) = mpsc::channel::<()>();
        let _ = never.recv_timeout(LIMIT);
        Ok(Message::default())
    });
    methods.add("pass", async |incoming| {
        incoming.mesh.call_within(Rank(2), "wait", Message::default(), LIMIT * 2).await
    });
}

/// Rank 0 asks rank 1 for something, while rank 2 waits at a barrier; how the mesh ends.
fn ends_of(method: &'static str) -> LostRank {
    let meshes = world_watched(endless);
    let _barrier = meshes[2].barrier("never");
    let _answer = meshes[0].call_within(Rank(1), method, Message::default(), LIMIT * 2);
    let ends: Vec<_> = meshes.iter().map(lost).collect();
    assert!(ends.iter().all(|end| end.cause == Cause::Stalled && end.rank == ends[0].rank), "{ends:?}");
    ends[0].clone()
}

#[test]
fn an_answer_that_never_comes_ends_the_job_with_the_call() {
    let end = ends_of("wait");
    assert_eq!(end.rank, Rank(1));
    let text = end.to_string();
    assert!(text.contains("rank 1 (`rank1`) stands still while starting: no sign of progress for"), "{text}");
    assert!(
        text.contains("it serves `wait` of rank 0 for") && text.contains("rank 1 to answer `wait`"),
        "{text}"
    );
    assert!(text.contains("rank 2 waits") && text.contains("at barrier `never`"), "{text}");
}

#[test]
fn a_handler_that_computes_for_ever_is_named() {
    let end = ends_of("compute");
    assert_eq!(end.rank, Rank(1));
    assert!(end.why.contains("it computes `compute` of rank 0 for"), "{}", end.why);
}

#[test]
fn of_calls_behind_one_another_the_last_is_named() {
    let end = ends_of("pass");
    assert_eq!(end.rank, Rank(2), "{end}");
    assert!(end.why.contains("it serves `wait` of rank 1 for"), "{}", end.why);
}

#[test]
fn a_job_that_moves_is_left_alone() {
    let meshes = world_watched(|methods| {
        endless(methods);
        methods.add("echo", async |incoming| Ok(incoming.message));
    });
    let _barriers = [meshes[1].barrier("never"), meshes[2].barrier("never")];
    let began = Instant::now();
    while began.elapsed() < STALLED_AFTER * 2 {
        let answer = meshes[0].call(Rank(1), "echo", Message::default());
        park_on(answer, Some(LIMIT)).expect("in time").expect("an answer");
        assert_eq!(meshes[0].lost().wait(Some(STALLED_AFTER / 10)), None);
    }
}
