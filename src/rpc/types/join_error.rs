//! Why a rank does not get into a mesh.

use std::time::Duration;

use crate::topology::Rank;

/// Why a rank did not become part of the mesh.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("{0}")]
    Config(String),
    #[error(
        "rank 0 cannot listen at {address}: the port is in use\n  hint: another job may run there; choose another --master-port on all ranks"
    )]
    PortInUse { address: String },
    #[error(
        "cannot listen at {address}: {source}\n  hint: rank 0 listens at the master's address, so it must run on that machine"
    )]
    Listen { address: String, source: std::io::Error },
    #[error(
        "{address} can be reached from other machines, and there is no token to keep unauthenticated connections out\n  \
         hint: set PSTRAIN_TOKEN to the same secret on all ranks (`pstrain token` prints one), or use 127.0.0.1 as the master's address"
    )]
    NoToken { address: String },
    #[error(
        "no rank 0 at {address} within {waited:?}: {last}\n  hint: start rank 0, and check --master-addr and --master-port; a job that all ranks have joined listens no more"
    )]
    Unreachable { address: String, waited: Duration, last: String },
    #[error("what listens at {address} is not pstrain\n  hint: check --master-addr and --master-port")]
    NotPstrain { address: String },
    #[error("{by} refused rank {rank}: {message}\n  hint: {}", reason.hint())]
    Refused { by: String, rank: Rank, reason: RefusalReason, message: String },
    /// By something that may be anything.
    #[error(
        "what listens at {address} refused rank {rank}, and did not prove that it knows the join token; it says: {message}\n  \
         hint: {}; or another program listens there",
        reason.hint()
    )]
    RefusedUnproven { address: String, rank: Rank, reason: RefusalReason, message: String },
    #[error(
        "what listens at {address} is not known to be of this user, and there is no token to tell whether it is rank 0\n  \
         hint: set PSTRAIN_TOKEN to the same secret on all ranks; `pstrain token` prints one"
    )]
    OtherUser { address: String },
    #[error(
        "what listens at {address} does not know the join token\n  hint: set PSTRAIN_TOKEN to the same secret on all ranks"
    )]
    Unproven { address: String },
    #[error(
        "{} did not come within {waited:?}\n  hint: start the missing ranks, or look there why they ended; \
         `cluster.join_timeout_ms` is how long to wait",
        ranks(missing)
    )]
    Missing { missing: Vec<Rank>, waited: Duration },
    #[error(
        "rank 0 at {address} went away before the world was complete: {why}\n  hint: its own output says why"
    )]
    CoordinatorLeft { address: String, why: String },
    #[error("rank {rank} went away before the world was complete: {why}\n  hint: its own output says why")]
    PeerLeft { rank: Rank, why: String },
    #[error(
        "the other ranks gave this one up before the world was complete: {why}\n  hint: their own output says which did"
    )]
    GivenUp { why: String },
    #[error(
        "{}\n  hint: each rank must be able to connect to each other one; is there a firewall?",
        unconnected(missing)
    )]
    Unconnected { missing: Vec<Rank> },
    #[error("cannot start the RPC thread: {0}")]
    Thread(std::io::Error),
}

fn ranks(ranks: &[Rank]) -> String {
    let list: Vec<_> = ranks.iter().map(Rank::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

fn unconnected(missing: &[Rank]) -> String {
    match missing {
        [] => "not all ranks reached one another in time".into(),
        missing => format!("{} did not reach this rank in time", ranks(missing)),
    }
}

/// Why an acceptor sends somebody away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    Version,
    Token,
    Job,
    WorldSize,
    RankOutOfRange,
    RankTaken,
    NotExpected,
    Timeout,
    OtherUser,
}

impl RefusalReason {
    fn hint(self) -> &'static str {
        match self {
            RefusalReason::Version => "run the same version of pstrain on all ranks",
            RefusalReason::Token => "set PSTRAIN_TOKEN to the same secret on all ranks",
            RefusalReason::Job => {
                "start all ranks with the same job file, plug-in files and --set options; `pstrain check` prints the job as resolved"
            }
            RefusalReason::WorldSize => "give all ranks the same --world-size",
            RefusalReason::RankOutOfRange => "ranks count from 0 to one less than --world-size",
            RefusalReason::RankTaken => "give every process its own --rank; an old process may still run",
            RefusalReason::NotExpected => {
                "something else may be connecting to this port; try again, or choose another --master-port"
            }
            RefusalReason::Timeout => "start the missing ranks, or look there why they ended",
            RefusalReason::OtherUser => {
                "set PSTRAIN_TOKEN to the same secret on all ranks; `pstrain token` prints one"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_rank_out_is_said_with_a_hint() {
        let (address, waited) = (|| "node1:29500".to_owned(), Duration::from_secs(60));
        let refused = |reason, message: &str| JoinError::Refused {
            by: format!("rank 0 at {}", address()),
            rank: Rank(2),
            reason,
            message: message.into(),
        };
        let all = [
            JoinError::PortInUse { address: address() },
            JoinError::NoToken { address: address() },
            JoinError::Unreachable { address: address(), waited, last: "connection refused".into() },
            JoinError::NotPstrain { address: address() },
            refused(RefusalReason::Token, "its join token is not the one of this job"),
            refused(RefusalReason::Job, "it runs job 1a2b3c4d, here runs job 5e6f7a8b"),
            refused(RefusalReason::RankTaken, "rank 2 has come already"),
            JoinError::RefusedUnproven {
                address: address(),
                rank: Rank(2),
                reason: RefusalReason::Token,
                message: "its join token is not the one of this job".into(),
            },
            JoinError::OtherUser { address: address() },
            JoinError::Missing { missing: vec![Rank(1), Rank(3)], waited },
            JoinError::CoordinatorLeft { address: address(), why: "early eof".into() },
            JoinError::GivenUp { why: "its connection closed".into() },
            JoinError::Unconnected { missing: Vec::new() },
            JoinError::Unconnected { missing: vec![Rank(2)] },
        ];
        let text = all.map(|error| error.to_string()).join("\n");
        insta::assert_snapshot!(text, @r"
        rank 0 cannot listen at node1:29500: the port is in use
          hint: another job may run there; choose another --master-port on all ranks
        node1:29500 can be reached from other machines, and there is no token to keep unauthenticated connections out
          hint: set PSTRAIN_TOKEN to the same secret on all ranks (`pstrain token` prints one), or use 127.0.0.1 as the master's address
        no rank 0 at node1:29500 within 60s: connection refused
          hint: start rank 0, and check --master-addr and --master-port; a job that all ranks have joined listens no more
        what listens at node1:29500 is not pstrain
          hint: check --master-addr and --master-port
        rank 0 at node1:29500 refused rank 2: its join token is not the one of this job
          hint: set PSTRAIN_TOKEN to the same secret on all ranks
        rank 0 at node1:29500 refused rank 2: it runs job 1a2b3c4d, here runs job 5e6f7a8b
          hint: start all ranks with the same job file, plug-in files and --set options; `pstrain check` prints the job as resolved
        rank 0 at node1:29500 refused rank 2: rank 2 has come already
          hint: give every process its own --rank; an old process may still run
        what listens at node1:29500 refused rank 2, and did not prove that it knows the join token; it says: its join token is not the one of this job
          hint: set PSTRAIN_TOKEN to the same secret on all ranks; or another program listens there
        what listens at node1:29500 is not known to be of this user, and there is no token to tell whether it is rank 0
          hint: set PSTRAIN_TOKEN to the same secret on all ranks; `pstrain token` prints one
        ranks 1, 3 did not come within 60s
          hint: start the missing ranks, or look there why they ended; `cluster.join_timeout_ms` is how long to wait
        rank 0 at node1:29500 went away before the world was complete: early eof
          hint: its own output says why
        the other ranks gave this one up before the world was complete: its connection closed
          hint: their own output says which did
        not all ranks reached one another in time
          hint: each rank must be able to connect to each other one; is there a firewall?
        rank 2 did not reach this rank in time
          hint: each rank must be able to connect to each other one; is there a firewall?
        ");
    }
}
