//! What a run has measured, beside what `pstrain check` foresees: bytes between roles, the pipeline's bubble.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::{Job, Plan, Training};
use crate::parallel::Traffic;
use crate::rpc::Mesh;
use crate::topology::Rank;

/// What each rank tells of its part in the training steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankMeasured {
    pub rank: Rank,
    /// How long a trainer took from the first forward to the end of the last backward, over all steps.
    pub passing: Duration,
    /// Forwards and backwards on this rank, the loss among them.
    pub computing: Duration,
    /// The most micro-batches whose activations it kept at one time.
    pub peak_activations: usize,
    /// In training steps, by the rank that they went to; without what is pushed and pulled.
    pub bytes_sent: Vec<u64>,
}

/// A rank's part in the training steps, as it knows it itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worked {
    pub passing: Duration,
    pub computing: Duration,
    pub peak_activations: usize,
}

impl Worked {
    pub fn measured(self, mesh: &Mesh) -> RankMeasured {
        let Worked { passing, computing, peak_activations } = self;
        let bytes_sent = mesh.context_bytes_sent();
        RankMeasured { rank: mesh.rank(), passing, computing, peak_activations, bytes_sent }
    }
}

/// In `summary.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// One step of one trainer. Collectives between replicas are not measured.
    pub links: Vec<MeasuredLink>,
    /// Where a sample passes several roles.
    pub pipeline: Option<MeasuredPipeline>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLink {
    pub from: String,
    pub to: String,
    pub bytes: u64,
    /// As planned; less travels in steps whose batch is not full.
    pub planned_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPipeline {
    /// The part of the time between a step's first forward and last backward in which a rank of a stage computed nothing.
    pub bubble: f64,
    /// Were all stages alike and messages there at once.
    pub planned_bubble: f64,
    /// The most micro-batches whose activations a rank kept, by stage.
    pub peak_activations: Vec<usize>,
    /// The limit that the schedule gives.
    pub planned_peak_activations: usize,
}

impl Measured {
    /// `steps` are those of all trainers together, and so is what was `pulled`, by module.
    pub fn of(
        job: &Job,
        training: &Training,
        plan: &Plan,
        ranks: &[RankMeasured],
        pulled: &[(String, Traffic)],
        steps: u64,
    ) -> Measured {
        let mut sent = bytes_between_roles(job, ranks);
        let trainers = training.train.trainers.name.as_str();
        for (name, traffic) in pulled {
            // By the name it has in the job: trainers pull no other.
            let module = training.modules.iter().find(|module| module.name == *name);
            let servers = module.map_or("", |module| module.place.name.as_str());
            *sent.entry((trainers, servers)).or_default() += traffic.pushed_bytes;
            *sent.entry((servers, trainers)).or_default() += traffic.pulled_bytes;
        }
        Measured { links: links(plan, &sent, steps), pipeline: pipeline(training, plan, ranks) }
    }
}

/// By the names of two roles.
type Sent<'a> = BTreeMap<(&'a str, &'a str), u64>;

fn bytes_between_roles<'a>(job: &'a Job, ranks: &[RankMeasured]) -> Sent<'a> {
    let role = |rank: usize| {
        let role = job.roles.iter().find(|role| role.ranks.contains(&Rank(rank as u32)));
        role.map_or("", |role| role.name.as_str())
    };
    let mut sent = Sent::new();
    for rank in ranks {
        for (to, bytes) in rank.bytes_sent.iter().enumerate() {
            *sent.entry((role(rank.rank.index()), role(to))).or_default() += bytes;
        }
    }
    sent
}

fn links(plan: &Plan, sent: &Sent<'_>, steps: u64) -> Vec<MeasuredLink> {
    let measured = plan.links.iter().filter(|link| link.from != link.to).map(|link| MeasuredLink {
        from: link.from.clone(),
        to: link.to.clone(),
        bytes: sent.get(&(link.from.as_str(), link.to.as_str())).copied().unwrap_or(0) / steps.max(1),
        planned_bytes: link.bytes,
    });
    measured.collect()
}

fn pipeline(training: &Training, plan: &Plan, ranks: &[RankMeasured]) -> Option<MeasuredPipeline> {
    let plan = plan.pipeline.as_ref()?;
    let stages: Vec<&[Rank]> = training.stages().into_iter().map(|role| role.ranks.as_slice()).collect();
    let measured = |rank: &&RankMeasured| stages.iter().any(|stage| stage.contains(&rank.rank));
    let passings = ranks.iter().map(|rank| rank.passing).filter(|passing| !passing.is_zero());
    let (sum, trainers) = passings.fold((0.0, 0.0), |sum, next| (sum.0 + next.as_secs_f64(), sum.1 + 1.0));
    let (computing, count) = ranks
        .iter()
        .filter(measured)
        .fold((0.0, 0.0), |sum, rank| (sum.0 + rank.computing.as_secs_f64(), sum.1 + 1.0));
    let available: f64 = sum / trainers * count;
    let peak_activations = |stage: &&[Rank]| {
        let kept = ranks.iter().filter(|rank| stage.contains(&rank.rank)).map(|rank| rank.peak_activations);
        kept.max().unwrap_or(0)
    };
    Some(MeasuredPipeline {
        bubble: if available > 0.0 { (1.0 - computing / available).max(0.0) } else { 0.0 },
        planned_bubble: plan.timeline.bubble,
        peak_activations: stages.iter().map(peak_activations).collect(),
        planned_peak_activations: plan.timeline.held,
    })
}
