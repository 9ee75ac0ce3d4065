//! What can go wrong: when joining ([`JoinError`]), with a call ([`CallError`]), with a rank ([`LostRank`]).

use std::fmt;
use std::time::Duration;

use crate::topology::Rank;

/// Why a call gave no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallErrorKind {
    /// The method itself said so.
    Remote,
    /// The method panicked.
    Panicked,
    /// The callee has no method of this name.
    NoMethod,
    /// A limit on sizes or counts was passed.
    TooLarge,
    /// A value cannot be sent, or is not what was announced.
    BadValue,
    /// Too many calls to this rank wait for their answer.
    Busy,
    /// No answer came before the deadline. The method may have run all the same.
    Timeout,
    /// A rank was lost, and the mesh ended with it.
    Lost,
    /// Some rank ended the job.
    Aborted,
    /// The mesh has been shut down.
    Shutdown,
    /// The object does not exist any more, or lives on another rank.
    Gone,
    /// A thread that serves calls asked to block on one.
    WouldBlock,
}

/// A call that failed: where, which, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    pub kind: CallErrorKind,
    /// The rank that was called.
    pub rank: Rank,
    pub method: String,
    pub message: String,
}

/// A rank not yet known: the dispatcher fills it in.
const HERE: Rank = Rank(u32::MAX);

impl CallError {
    pub fn new(kind: CallErrorKind, rank: Rank, method: &str, message: impl fmt::Display) -> CallError {
        CallError { kind, rank, method: method.into(), message: message.to_string() }
    }

    /// What a handler returns when its method fails. Which rank and method that is, the dispatcher adds.
    pub fn failed(message: impl fmt::Display) -> CallError {
        CallError::of_kind(CallErrorKind::Remote, message)
    }

    /// The same, of another kind.
    pub fn of_kind(kind: CallErrorKind, message: impl fmt::Display) -> CallError {
        CallError::new(kind, HERE, "", message)
    }

    /// The error as the caller of `method` on `rank` gets it. One that already has a place came from a nested call,
    /// which then is the reason why this one failed.
    pub(crate) fn at(self, rank: Rank, method: &str) -> CallError {
        if self.rank == HERE {
            return CallError { rank, method: method.into(), ..self };
        }
        if self.rank == rank && self.method == method {
            return self;
        }
        let kind = match self.kind {
            kind @ (CallErrorKind::Lost | CallErrorKind::Aborted | CallErrorKind::Shutdown) => kind,
            _ => CallErrorKind::Remote,
        };
        CallError::new(kind, rank, method, &self)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rank != HERE {
            write!(f, "`{}` on rank {}: ", self.method, self.rank)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}

impl From<tch::TchError> for CallError {
    fn from(error: tch::TchError) -> CallError {
        CallError::failed(without_frames(&error.to_string()))
    }
}

/// One that a call has had keeps its kind, and what was said about it on its way up (which module) stands before it.
impl From<anyhow::Error> for CallError {
    fn from(error: anyhow::Error) -> CallError {
        let kind = match error.downcast_ref::<CallError>() {
            Some(own) if error.chain().len() == 1 => return own.clone(),
            Some(own) => own.kind,
            None => CallErrorKind::Remote,
        };
        CallError::of_kind(kind, without_frames(&format!("{error:#}")))
    }
}

/// What libtorch says, without the fifty lines of its stack that follow (also as a panic's message quotes them).
pub(crate) fn without_frames(text: &str) -> &str {
    let ends = ["\nException raised from", "\nframe #", "\\nException raised from", "\\nframe #"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..end].trim_end()
}

/// How a mesh ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The connection to a rank broke: it died, or left without a word.
    Disconnected,
    /// Nothing came from a rank for `lost_after`: it hangs, or the network does.
    Silent,
    /// A rank ended the job by [`abort`](super::Mesh::abort).
    Aborted,
}

/// The rank with which the mesh ended, the same on all the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRank {
    pub rank: Rank,
    pub name: String,
    /// What it was doing: as its last heartbeat said, or as it knows itself where it is the one that ended the job.
    pub doing: String,
    pub why: String,
    pub cause: Cause,
}

impl LostRank {
    pub(crate) fn call_error(&self, rank: Rank, method: &str) -> CallError {
        let kind = match self.cause {
            Cause::Aborted => CallErrorKind::Aborted,
            Cause::Disconnected | Cause::Silent => CallErrorKind::Lost,
        };
        CallError::new(kind, rank, method, self)
    }
}

impl fmt::Display for LostRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostRank { rank, name, doing, why, cause } = self;
        let what = match cause {
            Cause::Aborted => "ended the job",
            Cause::Disconnected | Cause::Silent => "was lost",
        };
        write!(f, "rank {rank} (`{name}`) {what} while {doing}: {why}")
    }
}

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
        "{address} can be reached from other machines, and there is no token to keep strangers out\n  \
         hint: set PSTRAIN_TOKEN to the same secret on all ranks, or use 127.0.0.1 as the master's address"
    )]
    NoToken { address: String },
    #[error(
        "no rank 0 at {address} within {waited:?}: {last}\n  hint: start rank 0, and check --master-addr and --master-port"
    )]
    Unreachable { address: String, waited: Duration, last: String },
    #[error("what listens at {address} is not pstrain\n  hint: check --master-addr and --master-port")]
    NotPstrain { address: String },
    #[error("{by} refused rank {rank}: {message}\n  hint: {}", reason.hint())]
    Refused { by: String, rank: Rank, reason: RefusalReason, message: String },
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
    MasterLeft { address: String, why: String },
    #[error("rank {rank} went away before the world was complete: {why}\n  hint: its own output says why")]
    PeerLeft { rank: Rank, why: String },
    #[error(
        "not all ranks reached one another in time\n  hint: each rank must be able to connect to each other one; is there a firewall?"
    )]
    Unconnected,
    #[error("cannot start the RPC thread: {0}")]
    Thread(std::io::Error),
}

fn ranks(ranks: &[Rank]) -> String {
    let list: Vec<_> = ranks.iter().map(Rank::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_place_gets_the_place_of_the_call() {
        let error = CallError::failed("no such row").at(Rank(2), "lookup");
        assert_eq!(error.to_string(), "`lookup` on rank 2: no such row");
        assert_eq!(error.kind, CallErrorKind::Remote);
    }

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
            JoinError::Missing { missing: vec![Rank(1), Rank(3)], waited },
            JoinError::MasterLeft { address: address(), why: "early eof".into() },
            JoinError::Unconnected,
        ];
        let text = all.map(|error| error.to_string()).join("\n");
        insta::assert_snapshot!(text, @r"
        rank 0 cannot listen at node1:29500: the port is in use
          hint: another job may run there; choose another --master-port on all ranks
        node1:29500 can be reached from other machines, and there is no token to keep strangers out
          hint: set PSTRAIN_TOKEN to the same secret on all ranks, or use 127.0.0.1 as the master's address
        no rank 0 at node1:29500 within 60s: connection refused
          hint: start rank 0, and check --master-addr and --master-port
        what listens at node1:29500 is not pstrain
          hint: check --master-addr and --master-port
        rank 0 at node1:29500 refused rank 2: its join token is not the one of this job
          hint: set PSTRAIN_TOKEN to the same secret on all ranks
        rank 0 at node1:29500 refused rank 2: it runs job 1a2b3c4d, here runs job 5e6f7a8b
          hint: start all ranks with the same job file, plug-in files and --set options; `pstrain check` prints the job as resolved
        rank 0 at node1:29500 refused rank 2: rank 2 has come already
          hint: give every process its own --rank; an old process may still run
        ranks 1, 3 did not come within 60s
          hint: start the missing ranks, or look there why they ended; `cluster.join_timeout_ms` is how long to wait
        rank 0 at node1:29500 went away before the world was complete: early eof
          hint: its own output says why
        not all ranks reached one another in time
          hint: each rank must be able to connect to each other one; is there a firewall?
        ");
    }

    #[test]
    fn an_error_keeps_its_kind_and_gets_its_context() {
        let ended = || CallError::of_kind(CallErrorKind::Gone, "autograd context 1.4 has ended");
        assert_eq!(CallError::from(anyhow::Error::from(ended())), ended());
        let within = CallError::from(anyhow::Error::from(ended()).context("module `embedding`"));
        assert_eq!(within.kind, CallErrorKind::Gone);
        assert_eq!(within.to_string(), "module `embedding`: autograd context 1.4 has ended");
        let plain = CallError::from(anyhow::anyhow!("no room").context("module `embedding`"));
        assert_eq!(plain.kind, CallErrorKind::Remote);
        assert_eq!(plain.to_string(), "module `embedding`: no room");
    }

    #[test]
    fn libtorchs_stack_is_left_out() {
        let wide = tch::Tensor::zeros([3], tch::kind::FLOAT_CPU);
        let error = wide.f_matmul(&tch::Tensor::zeros([4], tch::kind::FLOAT_CPU)).expect_err("shapes differ");
        let error = CallError::from(error).message;
        assert!(
            error.contains("[3]") && !error.contains("frame #") && !error.contains("Exception raised"),
            "{error}"
        );
    }

    #[test]
    fn an_error_of_a_nested_call_keeps_both_places() {
        let inner = CallError::new(CallErrorKind::Timeout, Rank(3), "pull", "no answer within 1s");
        let outer = inner.at(Rank(1), "step");
        assert_eq!(outer.to_string(), "`step` on rank 1: `pull` on rank 3: no answer within 1s");
        assert_eq!(outer.kind, CallErrorKind::Remote);
    }
}
