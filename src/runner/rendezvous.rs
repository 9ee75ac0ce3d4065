//! How a rank that was started by itself learns where rank 0 listens: from the job, from a file, or from a launcher's
//! store.
//!
//! Under `torchrun` the launcher itself listens at MASTER_ADDR:MASTER_PORT, with c10d's store, so rank 0 takes another
//! port and tells it there. A file holds the same store. The mesh then works as ever, token and all: the store tells
//! an address and nothing else.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context as _, Result};
use c10d::{Store, TcpOptions};
use nix::unistd::gethostname;

use crate::job::{Cluster, Init};
use crate::topology::Rank;

/// Where the ranks meet.
pub struct Meeting {
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
pub fn meet(cluster: &Cluster, rank: Rank, far: bool, agent: Option<Agent>) -> Result<Meeting> {
    let store = match (&cluster.init, agent) {
        (Init::File(path), _) => {
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
            return Ok(Meeting { master: cluster.master(), listen: None, _store: None });
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

const MASTER: &str = "rank 0";

fn through(store: Store, rank: Rank, far: bool, limit: Duration) -> Result<Meeting> {
    if rank != Rank(0) {
        store.wait(&[MASTER], limit)?;
        let master = String::from_utf8(store.get(MASTER)?).context("the address of rank 0")?;
        return Ok(Meeting { master, listen: None, _store: Some(store) });
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
    Ok(Meeting { master, listen: Some(listen), _store: Some(store) })
}

#[cfg(test)]
mod tests {
    use super::*;

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
