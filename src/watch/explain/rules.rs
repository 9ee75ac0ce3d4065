//! The advice: for each a function that says nothing where its situation is not there, and else what to change, with the figure.

use serde::Serialize;

use super::facts::{Facts, WORK};
use crate::profile::Activity;

/// What may be changed, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    pub limit: Limit,
    /// What is the case, with the figure that says so.
    pub because: String,
    pub change: String,
    /// How much of a trainer's time it concerns, 0 to 1.
    pub share: f64,
}

/// What holds steps up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Data,
    Server,
    Network,
    Exchange,
    SlowestRank,
    Computing,
}

type Rule = fn(&Facts) -> Option<Advice>;

const RULES: [Rule; 7] = [
    data_is_late,
    server_is_busy,
    calls_take_long,
    tensors_take_long,
    exchange_takes_long,
    one_is_slow,
    computing,
];

/// Whatever there is, what concerns most of the time first.
pub fn all(facts: &Facts) -> Vec<Advice> {
    let mut advice: Vec<Advice> = RULES.iter().filter_map(|rule| rule(facts)).collect();
    advice.sort_by(|one, other| other.share.total_cmp(&one.share));
    advice
}

fn pct(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Trainers stand still for data.
fn data_is_late(facts: &Facts) -> Option<Advice> {
    let share = facts.data_wait_pct / 100.0;
    if share < 0.10 {
        return None;
    }
    // How many threads would have been at it all the time, had they been enough.
    let fetching = facts.trainers_share(&[Activity::Data]);
    let (threads, now) = (facts.job.data_threads, facts.job.data_threads as f64);
    let wanted = (fetching / (1.0 - share).max(0.05)).ceil() as usize;
    let busy = fetching / now.max(1.0);
    let change = if busy > 0.6 {
        format!(
            "data.threads = {} (it is {threads}), or a cheaper format of the data",
            wanted.max(threads + 1)
        )
    } else {
        "data.prefetch, if batches take unequally long; else the disk that the data lie on".into()
    };
    Some(Advice {
        limit: Limit::Data,
        because: format!(
            "trainers stand still for data for {} of their time, and their data threads are busy for {} of it",
            pct(share),
            pct(busy.min(1.0))
        ),
        change,
        share,
    })
}

/// Trainers wait, and a server computes.
fn server_is_busy(facts: &Facts) -> Option<Advice> {
    let (server, busy) = facts.busiest_server()?;
    let waits = facts.waits_for_ranks() + facts.trainers_share(&[Activity::Exchange]);
    if waits < 0.25 || busy < 0.6 {
        return None;
    }
    let (role, rank) = (&server.role, server.rank);
    let change = match facts.job.pulls {
        true => format!(
            "more ranks in role `{role}`, which cut the parameters into smaller parts; or train.local_steps"
        ),
        false => format!(
            "the model on the trainers (`run = \"caller\"`, or place it on `{}` as replicas); more ranks in role `{role}`; or fewer trainers",
            facts.job.trainer_role
        ),
    };
    Some(Advice {
        limit: Limit::Server,
        because: format!(
            "trainers wait for {} of their time, while rank {rank} (`{role}{rank}`) works all along: {:.1} threads of it on average",
            pct(waits),
            busy
        ),
        change,
        share: waits,
    })
}

/// Trainers wait, and those that they wait for do little: what is left is the way there and back, or one another.
fn calls_take_long(facts: &Facts) -> Option<Advice> {
    let waits = facts.waits_for_ranks();
    let (_, busy) = facts.busiest_server()?;
    if waits < 0.3 || busy >= 0.6 {
        return None;
    }
    if let Some(consistency) = facts.job.waits_for_others.filter(|_| facts.trainers().count() > 1) {
        return Some(Advice {
            limit: Limit::SlowestRank,
            because: format!(
                "trainers wait for {} of their time and no server is busy: under `{consistency}` they wait for one another",
                pct(waits)
            ),
            change: "train.consistency = \"async\", or \"ssp\" with a larger train.staleness".into(),
            share: waits,
        });
    }
    let batch = facts.job.batch_size;
    Some(Advice {
        limit: Limit::Network,
        because: format!(
            "trainers wait for {} of their time, and the busiest server works for {} of it",
            pct(waits),
            pct(busy)
        ),
        change: format!(
            "a larger train.batch_size (it is {batch}), so that a step is worth its calls; or the model on the trainers (`run = \"caller\"` \
             with train.local_steps)"
        ),
        share: waits,
    })
}

/// Much of the time goes into moving bytes.
fn tensors_take_long(facts: &Facts) -> Option<Advice> {
    let of_servers = facts.servers().map(|rank| rank.share(&[Activity::Payload])).fold(0.0, f64::max);
    let share = facts.trainers_share(&[Activity::Payload]).max(of_servers);
    if share < 0.2 {
        return None;
    }
    let change = if facts.job.pulls {
        "pull_push.filter = \"fp16\" or \"int8\", and train.local_steps: fewer and smaller pushes"
    } else {
        "between machines a faster network; on one cluster.payload = \"auto\", which reads tensors where they lie; a place for the modules \
         that lets less pass (`pstrain check` has the bytes of each link)"
    };
    Some(Advice {
        limit: Limit::Network,
        because: format!("{} of the time goes into bytes of tensors on their way", pct(share)),
        change: change.into(),
        share,
    })
}

/// Replicas wait for averages, or trainers for pushes and pulls.
fn exchange_takes_long(facts: &Facts) -> Option<Advice> {
    let share = facts.trainers_share(&[Activity::Exchange]);
    if share < 0.2 {
        return None;
    }
    let mut changes = Vec::new();
    if facts.job.has_replicas && !facts.job.overlaps {
        changes.push("replicas.average = \"ddp\", which averages while the backward runs");
    }
    if facts.job.has_replicas && facts.job.is_uncompressed {
        changes.push("replicas.hook = \"bf16\" for half of the bytes");
    }
    if facts.job.has_replicas {
        changes.push("train.accumulate for fewer averages, or a larger train.batch_size");
    }
    if facts.job.pulls && facts.job.local_steps == 1 {
        changes.push("train.local_steps for fewer pushes");
    }
    let what = if facts.job.has_replicas { "the averages of replicas" } else { "pushes and pulls" };
    Some(Advice {
        limit: Limit::Exchange,
        because: format!("trainers wait for {what} for {} of their time", pct(share)),
        change: if changes.is_empty() { "a larger train.batch_size".into() } else { changes.join("; ") },
        share,
    })
}

/// A trainer takes much longer than the one in the middle, and the others wait for it.
fn one_is_slow(facts: &Facts) -> Option<Advice> {
    let slowest = facts.slowest().filter(|slowest| slowest.times() >= 1.25)?;
    let rank = facts.trainers().find(|rank| rank.rank == slowest.rank)?;
    let held_up = facts.job.has_replicas || facts.job.waits_for_others.is_some();
    let share = (1.0 - 1.0 / slowest.times()) * rank.share(&WORK).min(1.0) * if held_up { 1.0 } else { 0.3 };
    // One that works on one core and gets less than one shares it.
    let starved = rank.cpu_pct < 80.0 && rank.share(&WORK) > 0.6;
    let change = match (starved, facts.job.waits_for_others) {
        (true, _) => format!(
            "fewer ranks, or other work, on its machine: it gets {:.0} % of a core on average",
            rank.cpu_pct
        ),
        (false, Some("bsp")) => {
            "a faster place for this rank, or train.consistency = \"async\": nobody waits for it then".into()
        }
        (false, _) => "a faster place for this rank: its machine, its device, or how many share them".into(),
    };
    Some(Advice {
        limit: Limit::SlowestRank,
        because: format!(
            "rank {} (`{}{}`) works {:.1} ms for a step, {:.1} times as long as the trainer in the middle ({:.1} ms)",
            slowest.rank,
            slowest.role,
            slowest.rank,
            slowest.works_ms,
            slowest.times(),
            slowest.median_ms
        ),
        change,
        share,
    })
}

/// The trainers compute nearly all the time: that is what there is to be faster at.
fn computing(facts: &Facts) -> Option<Advice> {
    let share = facts.trainers_share(&WORK);
    if share < 0.7 {
        return None;
    }
    let parts = WORK.map(|of| (facts.trainers_share(&[of]), of));
    let (most, of) = parts.into_iter().max_by(|one, other| one.0.total_cmp(&other.0))?;
    let name = format!("{of:?}").to_lowercase();
    let change = match (of, facts.job.on_gpu, facts.job.autocast) {
        (Activity::Loss, ..) => "the loss plug-in: `pstrain plugin check` says what a call takes".to_owned(),
        (_, true, false) => "precision.autocast = \"bf16\", or more trainers".into(),
        (_, false, _) => format!(
            "more ranks in role `{}` on more cores, or a GPU (cluster.num_gpus)",
            facts.job.trainer_role
        ),
        _ => format!("more ranks in role `{}`, or a faster device", facts.job.trainer_role),
    };
    Some(Advice {
        limit: Limit::Computing,
        because: format!(
            "trainers compute for {} of their time, {} of it in {name}",
            pct(share.min(1.0)),
            pct(most / share)
        ),
        change,
        share: share.min(1.0),
    })
}

#[cfg(test)]
mod tests;
