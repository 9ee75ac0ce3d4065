//! How ranks find one another, and who is not let in.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::{
    LIMIT, config, echo, join_later, later, listener, message, one, shut_down, within, world_with,
};
use pstrain::rpc::{JobKeys, JoinError, Mesh, MeshConfig, Methods, RefusalReason, Token, Waiting};
use pstrain::topology::{Rank, WorldSize};

const SECRET: &str = "correct horse battery";

fn token(text: &str) -> Token {
    Token::new(text).expect("good enough")
}

type Joining = mpsc::Receiver<Result<Mesh, JoinError>>;

/// A world of two whose rank 0 waits for rank 1.
fn waiting_rank0(adjust: impl FnOnce(&mut MeshConfig)) -> (Joining, SocketAddr) {
    let (socket, address) = listener();
    let mut rank0 = config(0, 2, address);
    rank0.listen = Some(socket);
    adjust(&mut rank0);
    (join_later(rank0, echo()), address)
}

/// Rank 1 as changed is refused; the proper one gets in all the same.
#[track_caller]
fn refused(token: Option<Token>, change: impl FnOnce(&mut MeshConfig)) -> JoinError {
    let (rank0, address) = waiting_rank0(|rank0| rank0.token = token.clone());
    let proper = || {
        let mut rank1 = config(1, 2, address);
        rank1.token = token.clone();
        rank1
    };
    let mut wrong = proper();
    change(&mut wrong);
    let error = within(join_later(wrong, Methods::new())).map(|_| ()).expect_err("refused");
    let rank1 = within(join_later(proper(), echo())).expect("let in");
    let rank0 = within(rank0).expect("complete");
    assert_eq!(one(rank0.call(Rank(1), "echo", message([5.into()]))).into_int(), Ok(5));
    shut_down(vec![rank0, rank1]);
    error
}

#[track_caller]
fn reason(error: &JoinError) -> RefusalReason {
    match error {
        JoinError::Refused { reason, .. } | JoinError::RefusedUnproven { reason, .. } => *reason,
        other => panic!("another error: {other}"),
    }
}

#[test]
fn a_wrong_token_is_refused() {
    for wrong in [Some(token("a guess that is as long")), None] {
        let error = refused(Some(token(SECRET)), |rank1| rank1.token = wrong.clone());
        assert_eq!(reason(&error), RefusalReason::Token);
        let text = error.to_string();
        assert!(
            text.contains("PSTRAIN_TOKEN") && !text.contains(SECRET) && !text.contains("guess"),
            "{text}"
        );
        // Whoever says so has proven nothing, either.
        assert!(
            text.contains("did not prove that it knows the join token; it says: its join token"),
            "{text}"
        );
    }
    let unasked = refused(None, |rank1| rank1.token = Some(token(SECRET)));
    assert_eq!(reason(&unasked), RefusalReason::Token);
}

#[test]
fn another_job_is_refused_with_both_hashes() {
    let error = refused(None, |rank1| rank1.job_hash = [0xab; 32]);
    assert_eq!(reason(&error), RefusalReason::Job);
    let text = error.to_string();
    assert!(text.contains("it runs job abababab, here runs job 00000000"), "{text}");
}

#[test]
fn another_job_is_refused_with_the_keys_that_differ() {
    let keys = |lr: &str, more: &[&str]| {
        let all = [("optimizer.lr", lr), ("seed", "7")].into_iter().chain(more.iter().map(|key| (*key, "1")));
        JobKeys::new(all.map(|(key, value)| (key.to_owned(), value.to_owned())))
    };
    let (rank0, address) = waiting_rank0(|rank0| rank0.job_keys = keys("0.1", &["eval.every_steps"]));
    let mut rank1 = config(1, 2, address);
    (rank1.job_hash, rank1.job_keys) = ([0xab; 32], keys("0.2", &["\u{1b}[2Jtrain.mine"]));
    let error = within(join_later(rank1, Methods::new())).map(|_| ()).expect_err("refused");
    assert_eq!(reason(&error), RefusalReason::Job);
    let expected = "refused rank 1: it runs job abababab, here runs job 00000000 (different: `optimizer.lr`; only here: \
                    `eval.every_steps`; 1 key only there)";
    assert!(error.to_string().contains(expected), "{error}");
    drop(within(join_later(config(1, 2, address), echo())));
    drop(within(rank0));
}

#[test]
fn while_ranks_join_they_say_whom_they_wait_for() {
    let (socket, address) = listener();
    let (said, wait) = mpsc::channel();
    let join = |rank: u32, listen: Option<TcpListener>| {
        let (mut config, said) = (config(rank, 3, address), said.clone());
        config.listen = listen;
        later(move || Mesh::join_saying(config, echo(), |waiting| drop(said.send((rank, waiting)))))
    };
    let (rank0, rank1) = (join(0, Some(socket)), join(1, None));
    let mut heard = (false, false);
    while heard != (true, true) {
        match wait.recv_timeout(LIMIT).expect("every few seconds") {
            (0, waiting) => heard.0 |= waiting == Waiting::For(vec![Rank(2)]),
            (_, waiting) => heard.1 |= waiting == Waiting::ForOthers,
        }
    }
    let rank2 = within(join(2, None)).expect("joins");
    let others = [rank0, rank1].map(|rank| within(rank).expect("complete"));
    shut_down(others.into_iter().chain([rank2]).collect());
}

#[test]
fn another_world_size_is_refused() {
    let error = refused(None, |rank1| rank1.world_size = WorldSize(5));
    assert_eq!(reason(&error), RefusalReason::WorldSize);
    assert!(error.to_string().contains("its world has 5 ranks, here are 2"), "{error}");
}

#[test]
fn a_rank_outside_the_world_does_not_even_try() {
    let (_socket, address) = listener();
    let error = Mesh::join(config(2, 2, address), Methods::new()).map(|_| ()).expect_err("outside");
    assert!(error.to_string().starts_with("rank 2 is not in a world of 2"), "{error}");
}

#[test]
fn of_two_ranks_of_one_number_the_second_is_refused() {
    let (socket, address) = listener();
    let mut rank0 = config(0, 3, address);
    rank0.listen = Some(socket);
    let rank0 = join_later(rank0, Methods::new());
    // Both at once: which comes second is open.
    let twins = [(); 2].map(|()| join_later(config(1, 3, address), Methods::new()));
    let deadline = Instant::now() + crate::support::LIMIT;
    let (error, other) = loop {
        assert!(Instant::now() < deadline);
        let [first, second] = &twins;
        match (first.recv_timeout(Duration::from_millis(5)), second.try_recv()) {
            (Ok(outcome), _) => break (outcome, second),
            (_, Ok(outcome)) => break (outcome, first),
            _ => {}
        }
    };
    let error = error.map(|_| ()).expect_err("refused");
    assert_eq!(reason(&error), RefusalReason::RankTaken);
    assert!(error.to_string().contains("rank 1 has come already"), "{error}");
    let rank2 = within(join_later(config(2, 3, address), Methods::new())).expect("let in");
    let rank1 = other.recv_timeout(crate::support::LIMIT).expect("in time").expect("let in");
    // Too late for a third one: nobody listens any more.
    let mut late = config(1, 3, address);
    late.join_timeout = Duration::from_millis(300);
    let late = within(join_later(late, Methods::new())).map(|_| ()).expect_err("late");
    assert!(late.to_string().contains("a job that all ranks have joined listens no more"), "{late}");
    shut_down(vec![within(rank0).expect("complete"), rank1, rank2]);
}

#[test]
fn a_port_in_use_is_said() {
    let (_socket, address) = listener();
    let error = within(join_later(config(0, 2, address), Methods::new())).map(|_| ()).expect_err("in use");
    assert!(matches!(error, JoinError::PortInUse { .. }), "{error}");
    assert!(error.to_string().contains("--master-port"), "{error}");
}

#[test]
fn without_a_token_rank_0_does_not_listen_to_other_machines() {
    let mut rank0 = config(0, 2, "0.0.0.0:0".parse().expect("an address"));
    rank0.join_timeout = Duration::from_secs(1);
    let error = within(join_later(rank0, Methods::new())).map(|_| ()).expect_err("no token");
    assert!(matches!(error, JoinError::NoToken { .. }), "{error}");
}

#[test]
fn rank_0_says_who_did_not_come_and_those_who_did_hear_it_too() {
    let (socket, address) = listener();
    let short = |rank| {
        let mut config = config(rank, 4, address);
        config.join_timeout = Duration::from_millis(700);
        config
    };
    let mut rank0 = short(0);
    rank0.listen = Some(socket);
    let (rank0, rank2) = (join_later(rank0, Methods::new()), join_later(short(2), Methods::new()));
    let error = within(rank0).map(|_| ()).expect_err("incomplete");
    assert!(error.to_string().starts_with("ranks 1, 3 did not come within 700ms"), "{error}");
    let told = within(rank2).map(|_| ()).expect_err("incomplete");
    assert_eq!(reason(&told), RefusalReason::Timeout);
    assert!(told.to_string().contains("ranks 1, 3 did not come"), "{told}");
}

#[test]
fn a_rank_waits_for_rank_0_to_start_and_gives_up_in_time() {
    let (socket, address) = listener();
    drop(socket);
    let mut lonely = config(1, 2, address);
    lonely.join_timeout = Duration::from_millis(300);
    let error = within(join_later(lonely, Methods::new())).map(|_| ()).expect_err("nobody there");
    assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");

    // The port was free a moment ago; another test may have it by now, then this says nothing.
    let early = join_later(config(1, 2, address), Methods::new());
    if let Ok(socket) = TcpListener::bind(address) {
        let mut rank0 = config(0, 2, address);
        rank0.listen = Some(socket);
        let rank0 = within(join_later(rank0, Methods::new())).expect("complete");
        shut_down(vec![rank0, within(early).expect("let in")]);
    }
}

#[test]
fn a_rank_that_leaves_while_it_waits_can_come_again() {
    let (socket, address) = listener();
    let mut rank0 = config(0, 3, address);
    rank0.listen = Some(socket);
    let rank0 = join_later(rank0, Methods::new());
    // It gives up before rank 2 comes, and its place becomes free.
    let mut hasty = config(1, 3, address);
    hasty.join_timeout = Duration::from_millis(1);
    let _ = within(join_later(hasty, Methods::new()));
    let rank1 = loop_until_let_in(|| config(1, 3, address), || config(2, 3, address));
    let mut all = vec![within(rank0).expect("complete")];
    all.extend(rank1);
    shut_down(all);
}

/// A rank whose predecessor has just left may still be told that its place is taken.
fn loop_until_let_in(rank1: impl Fn() -> MeshConfig, rank2: impl Fn() -> MeshConfig) -> Vec<Mesh> {
    let two = join_later(rank2(), Methods::new());
    let deadline = Instant::now() + crate::support::LIMIT;
    loop {
        match within(join_later(rank1(), Methods::new())) {
            Ok(one) => return vec![one, within(two).expect("let in")],
            Err(JoinError::Refused { reason: RefusalReason::RankTaken, .. }) if Instant::now() < deadline => {
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_is_no_rank_does_not_disturb_the_others() {
    let (rank0, address) = waiting_rank0(|rank0| rank0.token = Some(token(SECRET)));
    let mut strangers = Vec::new();
    let floods: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 4096],
        &[8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        b"",
        &[0; 64],
    ];
    for bytes in floods {
        let mut stranger = TcpStream::connect(address).expect("connects");
        let _ = stranger.write_all(bytes);
        strangers.push(stranger);
    }
    let mut rank1 = config(1, 2, address);
    rank1.token = Some(token(SECRET));
    let rank1 = within(join_later(rank1, echo())).expect("let in");
    let rank0 = within(rank0).expect("complete");
    assert_eq!(one(rank0.call(Rank(1), "echo", message([5.into()]))).into_int(), Ok(5));
    // Each of them saw the challenge, and at most a refusal after it.
    for mut stranger in strangers {
        let _ = stranger.shutdown(std::net::Shutdown::Write);
        stranger.set_read_timeout(Some(crate::support::LIMIT)).expect("a timeout");
        let mut heard = Vec::new();
        let _ = stranger.read_to_end(&mut heard);
        assert!(heard.len() < 400, "{} bytes", heard.len());
    }
    shut_down(vec![rank0, rank1]);
}

#[test]
fn another_service_at_the_masters_address_is_recognised() {
    let (socket, address) = listener();
    let service = crate::support::later(move || {
        let (mut client, _) = socket.accept().expect("a connection");
        let _ = client.write_all(b"220 mail.example.org ESMTP\r\n");
        client
    });
    let error =
        within(join_later(config(1, 2, address), Methods::new())).map(|_| ()).expect_err("not pstrain");
    assert!(matches!(error, JoinError::NotPstrain { .. }), "{error}");
    drop(within(service));
}

#[test]
fn a_world_with_a_token_works_like_one_without() {
    let meshes = world_with(3, |_| echo(), |config| config.token = Some(token(SECRET)));
    for mesh in &meshes {
        assert_eq!(one(mesh.call(Rank(2), "echo", message([5.into()]))).into_int(), Ok(5));
    }
    shut_down(meshes);
}

#[test]
fn a_world_of_one_rank_calls_itself() {
    let meshes = world_with(1, |_| echo(), |_| ());
    assert_eq!(one(meshes[0].call(Rank(0), "echo", message([5.into()]))).into_int(), Ok(5));
    meshes[0].barrier("alone").wait().expect("open");
    shut_down(meshes);
}

#[test]
fn the_token_is_in_no_debug_output() {
    let mut config = config(0, 1, "127.0.0.1:1".parse().expect("an address"));
    config.token = Some(token(SECRET));
    assert!(!format!("{config:?}").contains(SECRET));
}
