//! A rank whose RPC thread hangs, as it does in a process that was stopped.

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::rpc::wait::park::park_on;
use crate::rpc::{Cause, LostRank, Mesh, MeshConfig, Methods};
use crate::topology::{Rank, WorldSize};

const LOST_AFTER: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);

fn world(size: u32) -> Vec<Mesh> {
    world_with(size, Duration::from_millis(100), LOST_AFTER)
}

fn world_with(size: u32, heartbeat: Duration, lost_after: Duration) -> Vec<Mesh> {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("bound").to_string();
    let mut socket = Some(socket);
    let joins: Vec<_> = (0..size)
        .map(|rank| {
            let mut config = MeshConfig::new(Rank(rank), WorldSize(size), address.clone());
            config.listen = socket.take();
            (config.heartbeat, config.lost_after) = (heartbeat, lost_after);
            let (done, wait) = mpsc::channel();
            thread::spawn(move || done.send(Mesh::join(config, Methods::new())));
            wait
        })
        .collect();
    joins.into_iter().map(|join| join.recv_timeout(LIMIT).expect("in time").expect("joins")).collect()
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
