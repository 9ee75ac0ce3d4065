//! With how many threads libtorch computes one operation.

use std::thread::available_parallelism;

/// MACs. (784-128-10 with 64 samples has 6.5 million: two threads made its step 1.6 times as long.)
const WORK_OF_A_THREAD: u64 = 16_000_000;

/// Gives each of `sharing` its share of this machine's cores: the trainers for which a server works at once, each on its own
/// thread, or replicas beside one another. A forward of so much `work` (in MACs, if that is known) has use for
/// no more threads: waking them would take longer.
///
/// `OMP_NUM_THREADS` says of how many cores a job makes use: whoever runs several jobs side by side gives each a share.
pub(super) fn share_cores(sharing: usize, work: Option<u64>) {
    let cores = available_parallelism().map_or(1, usize::from);
    let cores = cores_of_job(cores, std::env::var("OMP_NUM_THREADS").ok().as_deref());
    tch::set_num_threads(threads(cores, sharing, work));
}

fn cores_of_job(cores: usize, share: Option<&str>) -> usize {
    let share = share.and_then(|share| share.trim().parse().ok()).filter(|share| *share > 0);
    cores.min(share.unwrap_or(usize::MAX))
}

fn threads(cores: usize, sharing: usize, work: Option<u64>) -> i32 {
    let share = cores / sharing.max(1);
    let useful = work.map_or(share, |work| usize::try_from(work / WORK_OF_A_THREAD).unwrap_or(share) + 1);
    share.min(useful).max(1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_shares_the_cores_gets_one_at_least() {
        assert_eq!(threads(8, 2, None), 4);
        assert_eq!(threads(8, usize::MAX, None), 1);
        assert_eq!(threads(1, 2, None), 1);
        assert_eq!(threads(8, 1, None), 8);
    }

    #[test]
    fn a_job_makes_use_of_its_share_of_the_cores() {
        assert_eq!(["2", " 16 ", "0", "", "two"].map(|share| cores_of_job(8, Some(share))), [2, 8, 8, 8, 8]);
        assert_eq!(cores_of_job(8, None), 8);
    }

    #[test]
    fn little_work_is_not_spread_over_threads() {
        assert_eq!(threads(8, 1, Some(6_500_000)), 1);
        assert_eq!(threads(8, 1, Some(40_000_000)), 3);
        assert_eq!(threads(8, 1, Some(u64::MAX)), 8);
        assert_eq!(threads(8, usize::MAX, Some(u64::MAX)), 1);
    }
}
