//! How a command ends when it does not succeed.

use crate::human::printable;
use crate::job::JobErrors;
use crate::rpc::{Cause, JoinError, RefusalReason};
use crate::runner::rank::RankError;
use crate::runner::run_folder::FolderInUse;

pub use crate::runner::launch::{DONE, FAILED, INTERRUPTED, LOST, TERMINATED, USAGE};

/// An exit code, and what to say; nothing when it has been said.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: Option<String>,
}

impl Failure {
    /// Bad usage: the message gets `error: ` in front.
    pub fn usage(message: impl std::fmt::Display) -> Failure {
        Failure { code: USAGE, message: Some(format!("error: {message}")) }
    }

    /// Says it, and returns the exit code. What others wrote may stand in it: names in files, refusals, errors of other ranks.
    pub fn report(self) -> u8 {
        if let Some(message) = self.message {
            eprintln!("{}", printable(message.trim_end()));
        }
        self.code
    }
}

/// What a command came upon that has no code of its own, but where it named a folder that it may not use.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let code = if error.is::<FolderInUse>() { USAGE } else { FAILED };
        Failure { code, message: Some(format!("error: {error:#}")) }
    }
}

impl From<JobErrors> for Failure {
    fn from(errors: JobErrors) -> Failure {
        Failure { code: USAGE, message: Some(errors.to_string()) }
    }
}

impl From<RankError> for Failure {
    fn from(error: RankError) -> Failure {
        let code = match &error {
            RankError::Join(join) => code_of_join(join),
            RankError::Lost(lost) if lost.cause == Cause::Aborted => FAILED,
            RankError::Lost(_) => LOST,
            RankError::Interrupted => INTERRUPTED,
            RankError::Terminated => TERMINATED,
            RankError::BadJob(_) => USAGE,
            RankError::Failed(_) => FAILED,
        };
        Failure { code, message: Some(format!("error: {error}")) }
    }
}

fn code_of_join(error: &JoinError) -> u8 {
    match error {
        JoinError::Missing { .. }
        | JoinError::Unreachable { .. }
        | JoinError::CoordinatorLeft { .. }
        | JoinError::PeerLeft { .. }
        | JoinError::GivenUp { .. }
        // Rank 0 gave up waiting for others, and told this rank.
        | JoinError::Refused { reason: RefusalReason::Timeout, .. }
        | JoinError::Unconnected { .. } => LOST,
        JoinError::Config(_)
        | JoinError::Refused { .. }
        | JoinError::RefusedUnproven { .. }
        | JoinError::OtherUser { .. }
        | JoinError::Unproven { .. }
        | JoinError::NoToken { .. }
        | JoinError::NotPstrain { .. } => USAGE,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Rank;

    #[test]
    fn a_rank_that_others_did_not_reach_is_lost_and_one_that_is_not_wanted_is_bad_usage() {
        let refused = |reason| {
            code_of_join(&JoinError::Refused {
                by: "rank 0".into(),
                rank: Rank(1),
                reason,
                message: String::new(),
            })
        };
        assert_eq!(refused(RefusalReason::Timeout), LOST);
        assert_eq!(refused(RefusalReason::Token), USAGE);
        assert_eq!(refused(RefusalReason::Job), USAGE);
        assert_eq!(code_of_join(&JoinError::Unconnected { missing: Vec::new() }), LOST);
    }
}
