//! Which devices a rank computes on.

use crate::job::Job;
use crate::topology::Rank;

/// The devices of one rank: its GPUs where it holds tensors and there are any, else the CPU.
///
/// The GPUs of a machine are dealt out in the order of the ranks that hold tensors, `cluster.num_gpus` to each.
/// `local_rank` is this rank's number among those of its machine, which have consecutive ranks; none: it is alone there.
pub fn of_rank(job: &Job, rank: Rank, local_rank: Option<u32>) -> Vec<tch::Device> {
    if !job.holds_tensors(rank) {
        return vec![tch::Device::Cpu];
    }
    first(job.cluster.num_gpus, before(job, rank, local_rank.unwrap_or(0)) * job.cluster.num_gpus)
}

/// `wanted` GPUs of this machine, from number `from` on: as many of them as there are, else the CPU.
pub fn first(wanted: u32, from: u32) -> Vec<tch::Device> {
    if wanted == 0 {
        return vec![tch::Device::Cpu];
    }
    let here = match c10d::cuda::load() {
        Ok(()) => tch::Cuda::device_count().max(0) as u32,
        Err(reason) => {
            tracing::warn!("no GPU can be used: {reason}");
            0
        }
    };
    let found = here.saturating_sub(from).min(wanted);
    if found < wanted {
        let instead = if found == 0 { "the CPU is used".into() } else { format!("{found} are used") };
        let besides = if from == 0 { String::new() } else { format!(", {from} for ranks before this one") };
        tracing::warn!("{wanted} GPUs were asked for, {here} are here{besides}: {instead}");
    }
    match found {
        0 => vec![tch::Device::Cpu],
        _ => (from..from + found).map(|index| tch::Device::Cuda(index as usize)).collect(),
    }
}

/// How many ranks before this one, on its machine, hold tensors too.
fn before(job: &Job, rank: Rank, local_rank: u32) -> u32 {
    let first = rank.0.saturating_sub(local_rank);
    (first..rank.0).filter(|&other| job.holds_tensors(Rank(other))).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Sources, load};

    #[test]
    fn gpus_are_dealt_out_to_the_ranks_of_a_machine_that_hold_tensors() {
        let file = |name| {
            let path = format!("{}/jobs/{name}.toml", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            load(&Sources { file: JobText { name, text: &text }, env: Vec::new(), overrides: &[] })
                .unwrap()
                .job
        };
        let replicas = file("ddp_mnist");
        assert_eq!(before(&replicas, Rank(1), 1), 1);
        assert_eq!(before(&replicas, Rank(1), 0), 0, "alone on its machine");
        let server = file("mnist_ps");
        assert!(server.holds_tensors(Rank(0)));
        assert!(!server.holds_tensors(Rank(1)), "a trainer that calls");
        let pulled = file("mnist_pull_push");
        assert!(!pulled.holds_tensors(Rank(1)), "a server of parameters, which computes no module");
        assert!(pulled.holds_tensors(Rank(2)));
        let cut = file("recommender");
        assert!(cut.holds_tensors(Rank(0)), "a trainer, for its replica");
        assert!(!cut.holds_tensors(Rank(2)), "a server of rows");
        assert_eq!(before(&server, Rank(2), 2), 1);
        assert_eq!(first(0, 0), [tch::Device::Cpu]);
    }
}
