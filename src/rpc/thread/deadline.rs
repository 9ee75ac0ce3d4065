//! Work that must not take for ever.

use std::time::{Duration, Instant};

use tokio::time::timeout_at;

use crate::rpc::types::error::{CallError, CallErrorKind};

/// What `work` gives, or `Timeout` at `deadline`, which is `within` from the beginning.
pub(super) async fn within_deadline<T>(
    deadline: Instant,
    within: Duration,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    timeout_at(deadline.into(), work).await.unwrap_or_else(|_| {
        Err(CallError::of_kind(
            CallErrorKind::Timeout,
            format_args!(
                "no answer within {within:?}\n  hint: `cluster.rpc_timeout_ms` is the deadline of a call"
            ),
        ))
    })
}
