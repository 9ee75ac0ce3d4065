//! How a rank that was started by itself learns where rank 0 listens: from the job, from a file, or from a launcher's
//! store.
//!
//! Under `torchrun` the launcher itself listens at MASTER_ADDR:MASTER_PORT, with c10d's store, so rank 0 takes another
//! port and tells it there. A file holds the same store. The mesh then works as ever, token and all: the store tells
//! an address and nothing else.

use std::fs::{OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, anyhow, bail};
use c10d::{Store, TcpOptions};
use nix::unistd::{Uid, gethostname};
use ownership::Untrusted;

use super::inputs::BadJob;
use crate::job::{Cluster, Init};
use crate::topology::Rank;

/// Where the ranks meet.
pub struct Rendezvous {
    /// `host:port` of rank 0.
    pub master: String,
    /// Rank 0's socket, if it is bound already.
    pub listen: Option<TcpListener>,
    /// Kept until the ranks have met: the last to leave a file deletes it.
    _store: Option<Store>,
}

/// A launcher that listens at the master's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Tells its starts apart, which share the store.
    pub attempt: String,
}

impl Agent {
    /// The `torchrun` that started this process, if one did and keeps the store.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Agent> {
        let keeps = variable("TORCHELASTIC_USE_AGENT_STORE")?;
        let part = |name| variable(name).unwrap_or_default();
        keeps.eq_ignore_ascii_case("true").then(|| Agent {
            attempt: format!("{}.{}", part("TORCHELASTIC_RUN_ID"), part("TORCHELASTIC_RESTART_COUNT")),
        })
    }
}

/// # Errors
/// When the store is not there, or rank 0 has not said in time where it is.
pub fn meet(cluster: &Cluster, rank: Rank, far: bool, agent: Option<Agent>) -> Result<Rendezvous> {
    let store = match (&cluster.init, agent) {
        (Init::File(path), _) => {
            look_at(path).map_err(BadJob)?;
            wait_for_lock(path, cluster.join_timeout)?;
            let store = Store::file(path, cluster.world_size.0)?;
            (store.prefix("pstrain")?, format!("the file `{}`", path.display()))
        }
        (Init::Env, Some(agent)) => {
            let options = TcpOptions {
                is_server: false,
                workers: None,
                wait_workers: false,
                timeout: cluster.join_timeout,
                ..TcpOptions::new(&cluster.master_addr, cluster.master_port, rank.0, cluster.world_size.0)
            };
            let store = Store::tcp(&options).context("the store of torchrun, which started this process")?;
            (store.prefix("pstrain")?.prefix(&agent.attempt)?, "torchrun's store".into())
        }
        (Init::Env | Init::Tcp, _) => {
            return Ok(Rendezvous { master: cluster.master(), listen: None, _store: None });
        }
    };
    let (store, named) = store;
    through(store, rank, far, cluster.join_timeout).with_context(|| {
        format!(
            "rank {rank} could not learn from {named} where rank 0 listens\n  \
             hint: start rank 0 too; a file that an earlier run has left must be deleted first"
        )
    })
}

/// A file that ranks meet in has a few short entries.
const MOST_BYTES: u64 = 1 << 20;

/// Who can read a file can lock it.
const FOR_ITS_USER: u32 = 0o600;

/// Another rank may be writing an entry.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Whether ranks can meet in the file at `path`, which is made if it is missing: c10d would read anything else for minutes. Nor may
/// it be somebody else's, who could send the ranks elsewhere, or lock it: c10d waits for a lock without end.
///
/// # Errors
/// It is something else, or somebody else could have made it or can write it.
fn look_at(path: &Path) -> Result<()> {
    let refused = |what: String| {
        Err(anyhow!(
            "`cluster.init`: ranks cannot meet in `{}`: {what}\n  hint: name a file that is not there yet, in a folder that all \
             ranks can write to",
            path.display()
        ))
    };
    for look in 1.. {
        let mut new = OpenOptions::new();
        let is_new = match new.write(true).create_new(true).mode(FOR_ITS_USER).open(path) {
            Err(there) if there.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return refused(error.to_string()),
            Ok(_) => true,
        };
        // Once it is there: in a folder that all may write to another user could make one at any moment.
        let untrusted = match ownership::check_code(path) {
            Ok(_) => break,
            // The last of an earlier run's ranks has deleted it.
            Err(Untrusted::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound && look < LOOKS => {
                continue;
            }
            Err(untrusted) => untrusted,
        };
        if is_new {
            let _ = fs::remove_file(path);
        }
        return Err(anyhow!(
            "`cluster.init`: the file that ranks meet in could be somebody else's: {untrusted}\n  hint: name one in a folder of \
             yours; {}",
            untrusted.hint()
        ));
    }
    let found = match fs::metadata(path) {
        Ok(found) => found,
        // The last of an earlier run's ranks has deleted it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return refused(error.to_string()),
    };
    if !found.is_file() {
        return refused("it is not a regular file".into());
    }
    for look in 1.. {
        let mut bytes = Vec::new();
        let read = fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) if bytes.len() as u64 <= MOST_BYTES && is_store(&bytes) => break,
            // The last of an earlier run's ranks has deleted it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return refused(error.to_string()),
            Ok(_) if look == LOOKS => return refused("there is something else in it".into()),
            Ok(_) => thread::sleep(BETWEEN_LOOKS),
        }
    }
    if found.mode() & 0o077 != 0 && found.uid() == Uid::effective().as_raw() {
        // Who can read it could lock it.
        if let Err(error) = fs::set_permissions(path, Permissions::from_mode(FOR_ITS_USER)) {
            return refused(error.to_string());
        }
    }
    Ok(())
}

/// Waits until c10d, which would wait without end, can have the lock.
///
/// # Errors
/// Somebody keeps it.
fn wait_for_lock(path: &Path, limit: Duration) -> Result<()> {
    let until = Instant::now() + limit;
    // Without one c10d makes it.
    let Ok(file) = fs::File::open(path) else { return Ok(()) };
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(BETWEEN_LOOKS),
            Err(TryLockError::WouldBlock) => bail!(
                "`cluster.init`: a process keeps the file `{}` locked, in which the ranks are to meet, for longer than {limit:?} \
                 (`cluster.join_timeout_ms`)\n  hint: is one of an earlier run stopped? `lslocks` names it",
                path.display()
            ),
            // It is let go of with the file. What has no locks is c10d's to tell.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
}

/// Whether these bytes are what c10d's FileStore writes: the length of each key and of each value, and then it.
fn is_store(mut bytes: &[u8]) -> bool {
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let len = u32::from_ne_bytes(*len) as usize;
        let Some((_, rest)) = rest.split_at_checked(len) else { return false };
        bytes = rest;
    }
    bytes.is_empty()
}

const MASTER: &str = "rank 0";

fn through(store: Store, rank: Rank, far: bool, limit: Duration) -> Result<Rendezvous> {
    if rank != Rank(0) {
        store.wait(&[MASTER], limit)?;
        let master = String::from_utf8(store.get(MASTER)?).context("the address of rank 0")?;
        return Ok(Rendezvous { master, listen: None, _store: Some(store) });
    }
    // Without a token nobody from elsewhere could join anyway.
    let host = if far { "0.0.0.0" } else { "127.0.0.1" };
    let listen = TcpListener::bind((host, 0)).context("cannot listen")?;
    let name = match far {
        true => gethostname().context("this machine's name")?.to_string_lossy().into_owned(),
        false => host.into(),
    };
    let master = format!("{name}:{}", listen.local_addr()?.port());
    store.set(MASTER, master.as_bytes())?;
    Ok(Rendezvous { master, listen: Some(listen), _store: Some(store) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_something_else_in_it_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        look_at(&at("new")).expect("not there yet");
        fs::write(at("empty"), "").expect("a file");
        look_at(&at("empty")).expect("nothing in it");
        let texts = ["a", "some words of an ordinary file\n", "\u{8}\0\0\0short"];
        for (number, text) in texts.into_iter().enumerate() {
            let path = at(&number.to_string());
            fs::write(&path, text).expect("a file");
            let error = look_at(&path).expect_err("something else").to_string();
            assert!(error.contains("there is something else in it"), "{error}");
        }
        let error = look_at(folder.path()).expect_err("a folder").to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
    }

    #[test]
    fn a_file_that_others_could_have_made_is_refused_and_one_of_ours_is_for_us_alone() {
        let mode = |path: &Path| fs::metadata(path).expect("a file").mode() & 0o777;
        let with_mode =
            |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("meet");
        look_at(&path).expect("not there yet");
        assert_eq!(mode(&path), 0o600);
        with_mode(&path, 0o644);
        look_at(&path).expect("ours");
        assert_eq!(mode(&path), 0o600);
        let refused = |path: &Path| look_at(path).expect_err("somebody else's").to_string();
        with_mode(&path, 0o666);
        assert!(refused(&path).contains("meet` can be written by everybody"), "{}", refused(&path));
        with_mode(&path, 0o600);
        with_mode(folder.path(), 0o777);
        assert!(refused(&path).contains("can be written by everybody"), "{}", refused(&path));
        // As in /tmp: nobody can take another one's file away there.
        with_mode(folder.path(), 0o1777);
        look_at(&path).expect("ours");
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&path, Some(4242), None).expect("root");
            assert!(refused(&path).contains("meet` belongs to the user"), "{}", refused(&path));
        }
    }

    #[test]
    fn a_lock_that_somebody_keeps_is_waited_for_only_so_long() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("meet");
        look_at(&path).expect("not there yet");
        let kept = fs::File::open(&path).expect("a file");
        kept.lock().expect("its lock");
        let error = wait_for_lock(&path, Duration::from_millis(20)).expect_err("kept").to_string();
        assert!(error.contains("keeps the file"), "{error}");
        drop(kept);
        wait_for_lock(&path, Duration::from_millis(20)).expect("free");
    }

    #[test]
    fn a_file_that_ranks_have_met_in_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("meet");
        let store = Store::file(&path, 2).expect("a store");
        store.set("key", b"value").expect("written");
        look_at(&path).expect("one that ranks meet in");
    }

    #[test]
    fn only_a_torchrun_that_keeps_the_store_is_asked() {
        let environment = |keeps: &'static str| {
            move |name: &str| match name {
                "TORCHELASTIC_USE_AGENT_STORE" => Some(keeps.to_owned()),
                "TORCHELASTIC_RUN_ID" => Some("abc".to_owned()),
                "TORCHELASTIC_RESTART_COUNT" => Some("1".to_owned()),
                _ => None,
            }
        };
        let agent = Agent { attempt: "abc.1".into() };
        assert_eq!(Agent::from_environment(environment("True")), Some(agent));
        assert_eq!(Agent::from_environment(environment("False")), None);
        assert_eq!(Agent::from_environment(|_| None), None);
    }
}
