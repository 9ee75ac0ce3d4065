//! How a command ends when it does not succeed.

use crate::job::JobErrors;
use crate::rpc::{Cause, JoinError};
use crate::runner::worker::RankError;

pub use crate::runner::launch::{DONE, FAILED, INTERRUPTED, LOST, USAGE};

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

    /// Says it, and returns the exit code.
    pub fn report(self) -> u8 {
        if let Some(message) = self.message {
            eprintln!("{}", message.trim_end());
        }
        self.code
    }
}

/// What a command came upon that has no code of its own.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure { code: FAILED, message: Some(format!("error: {error:#}")) }
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
            RankError::Failed(_) => FAILED,
        };
        Failure { code, message: Some(format!("error: {error}")) }
    }
}

fn code_of_join(error: &JoinError) -> u8 {
    match error {
        JoinError::Missing { .. }
        | JoinError::Unreachable { .. }
        | JoinError::MasterLeft { .. }
        | JoinError::PeerLeft { .. } => LOST,
        JoinError::Config(_)
        | JoinError::Refused { .. }
        | JoinError::Unproven { .. }
        | JoinError::NoToken { .. }
        | JoinError::NotPstrain { .. } => USAGE,
        _ => FAILED,
    }
}
