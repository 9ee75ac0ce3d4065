//! What the others see when a rank is lost, and how a mesh ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    config, echo, error, eventually, join_later, later, listener, lost, message, one, shut_down, times,
    within, world,
};
use pstrain::rpc::{CallErrorKind, Cause, Mesh, Message, Methods, Transport, Transports};
use pstrain::topology::Rank;

fn never() -> Methods {
    let mut methods = echo();
    methods.add("never", async |_| std::future::pending().await);
    methods
}

#[test]
fn a_rank_that_leaves_without_a_word_is_named_to_all_with_what_it_did() {
    let mut meshes = world(3, |_| never());
    meshes[2].doing("training, step 312");
    let waiting: Vec<_> = [(0, 2), (1, 2), (0, 1), (1, 1)]
        .map(|(from, to): (usize, u32)| meshes[from].call(Rank(to), "never", Message::default()))
        .into();
    let barrier = meshes[1].barrier("epoch");
    drop(meshes.pop());
    for pending in waiting.into_iter().chain([barrier]) {
        let error = error(pending);
        assert_eq!(error.kind, CallErrorKind::Lost, "{error}");
        let lost =
            "rank 2 (`tester2`) was lost while training, step 312: it left without waiting for the others";
        assert_eq!(error.message, lost);
    }
    for mesh in &meshes {
        let lost = lost(mesh);
        assert_eq!((lost.rank, lost.cause), (Rank(2), Cause::Disconnected));
        assert_eq!(error(mesh.call(Rank(0), "echo", Message::default())).kind, CallErrorKind::Lost);
        assert_eq!(mesh.shutdown().expect_err("too late").rank, Rank(2));
    }
}

#[test]
fn an_abort_gives_its_reason_to_everybody() {
    let meshes = world(3, |_| never());
    meshes[1].doing("evaluating");
    let waiting = meshes[0].call(Rank(2), "never", Message::default());
    meshes[1].abort("NaN in the loss at step 7");
    let aborted = error(waiting);
    assert_eq!(aborted.kind, CallErrorKind::Aborted);
    assert_eq!(
        aborted.message,
        "rank 1 (`tester1`) ended the job while evaluating: NaN in the loss at step 7"
    );
    for mesh in &meshes {
        let lost = lost(mesh);
        assert_eq!(
            (lost.rank, lost.cause, &*lost.why),
            (Rank(1), Cause::Aborted, "NaN in the loss at step 7")
        );
    }
}

#[test]
fn shutting_down_waits_for_everyone_and_serves_meanwhile() {
    let mut meshes = world(3, |_| echo());
    let last = meshes.pop().expect("three");
    let others: Vec<_> = meshes.into_iter().map(|mesh| later(move || mesh.shutdown())).collect();
    // For so long that the others would have gone.
    for _ in 0..500 {
        for rank in 0..2 {
            assert_eq!(one(last.call(Rank(rank), "echo", message([5.into()]))).into_int(), Ok(5));
        }
        assert!(others.iter().all(|other| other.try_recv().is_err()));
    }
    last.shutdown().expect("in order");
    for other in others {
        within(other).expect("in order");
    }
    assert_eq!(last.lost().now(), None);
    assert_eq!(error(last.call(Rank(0), "echo", Message::default())).kind, CallErrorKind::Shutdown);
    last.shutdown().expect("once more");
}

#[test]
fn a_shutdown_that_cannot_be_agreed_on_ends_the_job_instead_of_waiting_for_ever() {
    let meshes = world(3, |_| echo());
    // Rank 1 waits at so many barriers that rank 0 does not let it come to one more.
    (0..1024).for_each(|number| drop(meshes[1].barrier(&format!("barrier {number}"))));
    let all: Vec<_> = meshes.into_iter().map(|mesh| later(move || mesh.shutdown())).collect();
    for one in all {
        let lost = within(one).expect_err("not in order");
        assert_eq!((lost.rank, lost.cause), (Rank(1), Cause::Aborted));
        let why = "it could not shut down: rank 1 waits at 1024 other barriers, which is the limit";
        assert_eq!(lost.why, why);
    }
}

#[test]
fn worlds_end_in_order_whoever_is_first() {
    for round in 0..times(9, 51) {
        let mut meshes = world(3, |_| echo());
        meshes.rotate_left(round % 3);
        for mesh in &meshes {
            drop(mesh.call(Rank(round as u32 % 3), "echo", message([5.into()])));
        }
        shut_down(meshes);
    }
}

#[test]
fn dropping_a_mesh_that_waits_for_others_does_not_hang() {
    let meshes = world(2, |_| never());
    let kept = meshes[0].call(Rank(1), "never", Message::default());
    let lost = meshes[1].lost();
    within(later(move || drop(meshes)));
    assert_eq!(error(kept).kind, CallErrorKind::Lost);
    drop(lost);
}

/// Set when the future that owns it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn handlers_that_wait_are_dropped_with_the_mesh() {
    let gone = Arc::new(AtomicBool::new(false));
    let started = Arc::new(AtomicBool::new(false));
    let meshes = world(2, |_| {
        let (gone, started) = (gone.clone(), started.clone());
        let mut methods = Methods::new();
        methods.add("wait", move |_| {
            let guard = Dropped(gone.clone());
            started.store(true, Ordering::SeqCst);
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        });
        methods
    });
    let waiting = meshes[0].call(Rank(1), "wait", Message::default());
    eventually("it starts", || started.load(Ordering::SeqCst));
    meshes[0].abort("enough");
    assert_eq!(error(waiting).kind, CallErrorKind::Aborted);
    eventually("it is dropped", || gone.load(Ordering::SeqCst));
}

/// Stands between a rank and rank 0, and can be cut or frozen.
struct Proxy {
    address: SocketAddr,
    frozen: Arc<AtomicBool>,
    ends: std::sync::mpsc::Receiver<[TcpStream; 2]>,
}

impl Proxy {
    fn to(target: SocketAddr) -> Proxy {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = socket.local_addr().expect("bound");
        let frozen = Arc::new(AtomicBool::new(false));
        let (give, ends) = std::sync::mpsc::channel();
        let freeze = frozen.clone();
        thread::spawn(move || {
            let (near, _) = socket.accept().expect("a rank");
            let far = TcpStream::connect(target).expect("rank 0");
            let _ = give.send([near.try_clone().expect("cloned"), far.try_clone().expect("cloned")]);
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
                let freeze = freeze.clone();
                thread::spawn(move || pump(from, to, &freeze));
            }
        });
        Proxy { address, frozen, ends }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, frozen: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        while frozen.load(Ordering::SeqCst) {
            thread::park();
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
}

fn proxied_world(lost_after: Duration) -> (Vec<Mesh>, Proxy) {
    let (socket, address) = listener();
    let proxy = Proxy::to(address);
    let mut rank0 = config(0, 2, address);
    rank0.listen = Some(socket);
    let mut rank1 = config(1, 2, proxy.address);
    for config in [&mut rank0, &mut rank1] {
        config.heartbeat = Duration::from_millis(100);
        config.lost_after = lost_after;
        // They stay at TCP, and so at the proxy.
        config.transports = Transports::only(Transport::Bulk);
    }
    let (rank0, rank1) = (join_later(rank0, never()), join_later(rank1, never()));
    (vec![within(rank0).expect("complete"), within(rank1).expect("let in")], proxy)
}

#[test]
fn a_broken_connection_is_noticed_at_once() {
    let (meshes, proxy) = proxied_world(Duration::from_secs(30));
    let pending = meshes[0].call(Rank(1), "never", Message::default());
    for end in proxy.ends.recv().expect("both ends") {
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
    let cut = Instant::now();
    let error = error(pending);
    assert!(cut.elapsed() < Duration::from_secs(5), "{:?}", cut.elapsed());
    assert_eq!(error.kind, CallErrorKind::Lost);
    assert!(error.message.starts_with("rank 1 (`tester1`) was lost while "), "{error}");
    assert_eq!(lost(&meshes[1]).rank, Rank(0));
}

#[test]
fn a_connection_that_falls_silent_is_noticed_after_lost_after() {
    let lost_after = Duration::from_secs(1);
    let (meshes, proxy) = proxied_world(lost_after);
    meshes[1].doing("computing");
    let pending = meshes[0].call(Rank(1), "never", Message::default());
    // As long as bytes come, nobody is lost.
    assert_eq!(meshes[0].lost().wait(Some(lost_after * 2)), None);
    proxy.frozen.store(true, Ordering::SeqCst);
    let frozen = Instant::now();
    let error = error(pending);
    let took = frozen.elapsed();
    assert!(took > lost_after / 2 && took < lost_after + Duration::from_secs(4), "{took:?}");
    assert!(error.message.contains("was lost while computing: nothing came from it for"), "{error}");
    for (mesh, other) in meshes.iter().zip([1, 0]) {
        let lost = lost(mesh);
        assert_eq!((lost.rank, lost.cause), (Rank(other), Cause::Silent));
    }
}

#[test]
fn methods_that_own_the_mesh_do_not_keep_it_alive() {
    let held = Arc::new(std::sync::OnceLock::<Mesh>::new());
    let inside = Arc::downgrade(&held);
    let meshes = world(2, |rank| {
        let mut methods = Methods::new();
        let held = held.clone();
        methods.add("uses", move |_| {
            let _ = (&held, rank);
            async { Ok(Message::default()) }
        });
        methods
    });
    held.set(meshes[0].clone()).ok().expect("first");
    drop(held);
    shut_down(meshes);
    eventually("the methods are dropped", || inside.upgrade().is_none());
}
