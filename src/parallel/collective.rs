//! Collectives of replicas as those see them who ask where time goes, and who waits for whom.

use c10d::ProcessGroup;

use crate::profile::exchange;
use crate::recorder::RECORDER;

/// Does `work`, which is one collective of `group`; every member comes to it, in the same order among those of the group.
///
/// # Errors
/// Those of `work`.
pub(super) fn collective<T, E>(
    group: &ProcessGroup,
    operation: &'static str,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let _exchange = exchange();
    RECORDER.collective(group.name(), operation, work)
}
