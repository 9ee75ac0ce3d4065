//! What can go wrong with a call.

use std::fmt;

use crate::rpc::wait::park::WouldBlock;
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

/// A call or message that the RPC system itself gave up.
impl From<capnp::Error> for CallError {
    fn from(error: capnp::Error) -> CallError {
        match error.kind {
            capnp::ErrorKind::Disconnected => {
                CallError::of_kind(CallErrorKind::Lost, format_args!("the connection broke: {}", error.extra))
            }
            capnp::ErrorKind::Failed => CallError::failed(error.extra),
            _ => CallError::of_kind(CallErrorKind::BadValue, format_args!("malformed message: {error}")),
        }
    }
}

impl From<capnp::NotInSchema> for CallError {
    fn from(error: capnp::NotInSchema) -> CallError {
        CallError::of_kind(CallErrorKind::BadValue, format_args!("malformed message: {error}"))
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

impl From<WouldBlock> for CallError {
    fn from(_: WouldBlock) -> CallError {
        CallError::of_kind(
            CallErrorKind::WouldBlock,
            "a thread that serves calls must not block on one\n  hint: `.await` the answer in the handler",
        )
    }
}

/// What libtorch says, without the fifty lines of its stack that follow (also as a panic's message quotes them).
pub(crate) fn without_frames(text: &str) -> &str {
    let ends = ["\nException raised from", "\nframe #", "\\nException raised from", "\\nframe #"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..end].trim_end()
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
