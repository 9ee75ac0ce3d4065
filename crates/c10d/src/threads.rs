//! Ranks as threads.

use std::thread;
use std::time::Duration;

use crate::{Options, ProcessGroup, Result, Store};

/// Runs `body` once for each of `size` ranks, each a thread of this process with its group over Gloo. For tests and
/// examples: ranks that compute belong into processes of their own. Gives what each rank returned, in their order.
///
/// ```
/// let sums = c10d::threads(2, |group| {
///     let mut tensor = tch::Tensor::from(1.0 + f64::from(group.rank()));
///     group.all_reduce(&mut tensor, c10d::ReduceOp::Sum)?;
///     Ok(tensor.double_value(&[]))
/// });
/// assert_eq!(sums.unwrap(), [3.0, 3.0]);
/// ```
///
/// # Errors
/// That of the lowest rank that failed.
///
/// # Panics
/// Where one of the threads does.
pub fn threads<T: Send>(size: u32, body: impl Fn(&ProcessGroup) -> Result<T> + Sync) -> Result<Vec<T>> {
    let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
    threads_with(size, &options, body)
}

/// [`threads()`] with options for the group.
///
/// # Errors
/// As [`threads()`].
///
/// # Panics
/// As [`threads()`].
pub fn threads_with<T: Send>(
    size: u32,
    options: &Options,
    body: impl Fn(&ProcessGroup) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (store, body) = (Store::hash()?, &body);
    // A rank that is done keeps its group until all are: it may still be sending. One that failed lets go of it, so
    // that the others do not wait for it.
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (store, options) = (store.clone(), options.clone());
                scope.spawn(move || {
                    let group = ProcessGroup::new(&store, rank, size, options)?;
                    let result = body(&group)?;
                    Ok((group, result))
                })
            })
            .collect();
        let ended: Vec<Result<(ProcessGroup, T)>> = ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        ended.into_iter().map(|rank| rank.map(|(_, result)| result)).collect()
    })
}
