//! Copies of the program that run with another user's rights, and processes of other users. Only root can make some.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use nix::unistd::{Uid, setfsuid};
use pstrain::rpc::{JoinError, MeshConfig, RefusalReason, Transport, Transports};

use crate::support::{config, echo, join_later, later, listener, shut_down, within};

pub const TESTS: &[(&str, fn())] = tests![
    a_copy_with_rights_of_its_own_does_not_start,
    without_a_token_nobody_of_another_user_is_let_in,
    without_a_token_no_rank_joins_somebody_of_another_user,
    no_rank_comes_nearer_to_one_of_another_user,
];

const SOMEBODY_ELSE: u32 = 4242;

fn a_copy_with_rights_of_its_own_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (user, group, bits) in [(Some(SOMEBODY_ELSE), None, 0o4755), (None, Some(SOMEBODY_ELSE), 0o2755)] {
        let copy = folder.path().join(format!("pstrain-{bits:o}"));
        fs::copy(env!("CARGO_BIN_EXE_pstrain"), &copy).unwrap();
        chown(&copy, user, group).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(bits)).unwrap();
        let mut command = Command::new(&copy);
        command.args(["spawn", "--run-dir", "RUN"]).current_dir(folder.path()).env_remove("LD_PRELOAD");
        // A process that another test forks just then has the copy open for writing until it runs its own program.
        let run = move || loop {
            match command.stdin(Stdio::null()).output() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::yield_now(),
                output => break output.unwrap(),
            }
        };
        let output = within(later(run));
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("error: this program has rights that whoever starts it has not"), "{said}");
    }
}

/// Passes connections on to `target` by sockets of `user`'s, as a process of that user would.
fn relay(target: SocketAddr, user: Uid) -> SocketAddr {
    let (tell, address) = mpsc::channel();
    thread::spawn(move || {
        // Of this thread alone, and those that it starts; sockets belong to whom files would.
        setfsuid(user);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        tell.send(listener.local_addr().unwrap()).unwrap();
        for connector in listener.incoming().flatten() {
            let Ok(acceptor) = TcpStream::connect(target) else { continue };
            for (from, to) in [(&connector, &acceptor), (&acceptor, &connector)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    within(address)
}

/// Rank 1 by way of relays, the nearest last; then the proper one, which gets in all the same.
fn refused(users: [Uid; 2]) -> JoinError {
    let (socket, address) = listener();
    let rank0 = MeshConfig { listen: Some(socket), ..config(0, 2, address) };
    let rank0 = join_later(rank0, echo());
    let by_way = users.into_iter().fold(address, relay);
    let transports = Transports::only(Transport::Inline);
    let rank1 = MeshConfig { transports, ..config(1, 2, by_way) };
    let error = within(join_later(rank1, echo())).map(drop).expect_err("another user's");
    let proper = within(join_later(config(1, 2, address), echo())).unwrap();
    shut_down(vec![within(rank0).unwrap(), proper]);
    error
}

/// Also one that does not look whom it has come to.
fn without_a_token_nobody_of_another_user_is_let_in() {
    let error = refused([Uid::from_raw(SOMEBODY_ELSE), Uid::effective()]);
    let is_refused = matches!(error, JoinError::Refused { reason: RefusalReason::OtherUser, .. });
    assert!(is_refused, "{error:?}");
}

/// Also not where that one lets it in.
fn without_a_token_no_rank_joins_somebody_of_another_user() {
    let error = refused([Uid::effective(), Uid::from_raw(SOMEBODY_ELSE)]);
    assert!(matches!(error, JoinError::OtherUser { .. }), "{error:?}");
}

/// A rank of the built-in job as `user`, in a folder that all can read.
fn rank(folder: &Path, user: u32, port: u16, number: u32) -> Child {
    let own = folder.join(format!("of{number}"));
    fs::create_dir(&own).unwrap();
    chown(&own, Some(user), None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pstrain"));
    command.args(["run", "../job.toml", "--run-dir", "RUN", "--world-size", "3"]);
    command.args(["--rank", &number.to_string(), "--master-port", &port.to_string()]);
    command.args(["--set", "cluster.join_timeout_ms=12000", "--set", "train.steps=1"]);
    command.env_remove("LD_PRELOAD").env_remove("HOME").env_remove("XDG_CACHE_HOME").env("NO_COLOR", "1");
    command.uid(user).gid(user).current_dir(&own);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The program itself: ranks of one machine meet at Unix sockets where they can, and these say whose they are.
fn no_rank_comes_nearer_to_one_of_another_user() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("job.toml"), include_str!("../../jobs/digits_ps.toml")).unwrap();
    let me = Uid::effective().as_raw();
    for [first, second] in [[SOMEBODY_ELSE, me], [me, SOMEBODY_ELSE]] {
        let within_folder = folder.path().join(format!("{first}"));
        fs::create_dir(&within_folder).unwrap();
        fs::copy(folder.path().join("job.toml"), within_folder.join("job.toml")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ranks = [(first, 0), (second, 1)].map(|(user, number)| rank(&within_folder, user, port, number));
        let [_, second] = ranks.map(|rank| within(later(move || rank.wait_with_output().unwrap())));
        let Output { status, stderr, .. } = second;
        let said = String::from_utf8_lossy(&stderr).into_owned();
        assert!(said.contains("another user") || said.contains("is not known to be of this user"), "{said}");
        assert!(matches!(status.code(), Some(2 | 3)), "{said}");
    }
}
