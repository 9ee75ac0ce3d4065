//! The figures that advice rests on.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::job::{Average, Consistency, Hook, Job, Placement, Training};
use crate::profile::Activity;
use crate::topology::Rank;
use crate::watch::run::{RankUse, Trainer, Watched};

/// What of a job matters here.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobFacts {
    pub trainer_role: String,
    pub data_threads: usize,
    pub batch_size: u64,
    /// `bsp` or `ssp`: trainers wait for one another at the servers.
    pub waits_for_others: Option<&'static str>,
    pub has_replicas: bool,
    /// Averages travel while the backward runs.
    pub overlaps: bool,
    /// Gradients of replicas travel as they are.
    pub is_uncompressed: bool,
    /// Roles that modules lie on which trainers call.
    pub hosting_roles: Vec<String>,
    pub pulls: bool,
    pub local_steps: u32,
    pub autocast: bool,
    pub on_gpu: bool,
}

impl JobFacts {
    pub fn of(job: &Job, training: &Training) -> JobFacts {
        let train = &training.train;
        let is =
            |kind: fn(&Placement) -> bool| training.modules.iter().any(move |module| kind(&module.placement));
        let mut hosting_roles: Vec<String> = training
            .modules
            .iter()
            .filter(|module| !matches!(module.placement, Placement::Replicas))
            .filter_map(|module| module.place.ranks.first())
            .map(|rank| job.role_of(*rank).name.clone())
            .collect();
        hosting_roles.sort_unstable();
        hosting_roles.dedup();
        JobFacts {
            trainer_role: train.trainers.name.clone(),
            data_threads: training.data.threads,
            batch_size: train.batch_size,
            waits_for_others: match train.consistency {
                Consistency::Bsp => Some("bsp"),
                Consistency::Ssp { .. } => Some("ssp"),
                _ => None,
            },
            has_replicas: is(|placement| matches!(placement, Placement::Replicas)),
            overlaps: training.replicas.average == Average::Ddp,
            is_uncompressed: training.replicas.hook == Hook::None,
            hosting_roles,
            pulls: is(|placement| matches!(placement, Placement::Caller)),
            local_steps: train.local_steps,
            autocast: training.modules.iter().any(|module| module.autocast.is_some()),
            on_gpu: false,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    pub job: JobFacts,
    /// The most that a trainer has taken in this run.
    pub steps: u64,
    /// The longest that a rank has told of.
    pub seconds: f64,
    /// Of the time of trainers, how much they stand still for data; 0 to 100.
    pub data_wait_pct: f64,
    pub roles: Vec<RoleFacts>,
    pub ranks: Vec<RankFacts>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RankFacts {
    pub rank: u32,
    pub role: String,
    pub is_trainer: bool,
    /// Of a trainer.
    pub steps: u64,
    /// Seconds that the rank has told of.
    pub passed_s: f64,
    /// Seconds of its threads by what they went into.
    pub seconds: BTreeMap<Activity, f64>,
    /// 100 is a core.
    pub cpu_pct: f64,
}

/// The ranks of a role: milliseconds of a rank for a step of a trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RoleFacts {
    pub role: String,
    pub ranks: usize,
    pub is_trainer: bool,
    /// Of a step, from its beginning to its end.
    pub step_ms: f64,
    pub ms: BTreeMap<Activity, f64>,
}

impl RankFacts {
    fn of((rank, used): (u32, &RankUse), watched: &Watched, job: &JobFacts) -> RankFacts {
        let trainer = watched.trainers.get(&Rank(rank));
        let series = used.figures.get("processor").map_or(&[][..], |series| series.points());
        let cpu_pct = series.iter().map(|point| point.mean).sum::<f64>() / series.len().max(1) as f64;
        RankFacts {
            rank,
            role: used.role.clone(),
            is_trainer: used.role == job.trainer_role,
            steps: trainer.map_or(0, Trainer::taken),
            passed_s: used.time_s(),
            seconds: used.seconds.clone(),
            cpu_pct,
        }
    }

    pub fn spent(&self, activity: Activity) -> f64 {
        self.seconds.get(&activity).copied().unwrap_or(0.0)
    }

    /// Of its time, in threads: 1 is one thread all the time.
    pub fn share(&self, activities: &[Activity]) -> f64 {
        if self.passed_s > 0.0 {
            activities.iter().map(|of| self.spent(*of)).sum::<f64>() / self.passed_s
        } else {
            0.0
        }
    }

    /// Milliseconds of a step in which it works itself.
    pub fn works_ms(&self) -> f64 {
        WORK.iter().map(|of| self.spent(*of)).sum::<f64>() * 1e3 / self.steps.max(1) as f64
    }
}

/// What a rank computes.
pub const WORK: [Activity; 4] = [Activity::Forward, Activity::Loss, Activity::Backward, Activity::Step];

impl Facts {
    pub fn of(watched: &Watched, job: &JobFacts) -> Facts {
        let of_rank = |(rank, used): (&Rank, &RankUse)| RankFacts::of((rank.0, used), watched, job);
        let ranks: Vec<RankFacts> = watched.ranks.iter().map(of_rank).collect();
        let waits: Vec<f64> = watched
            .trainers
            .values()
            .filter_map(|trainer| trainer.figures.get("data_wait_pct"))
            .flat_map(|series| series.points().iter().map(|point| point.mean))
            .filter(|wait| wait.is_finite())
            .collect();
        let mut facts = Facts {
            job: job.clone(),
            steps: watched.trainers.values().map(Trainer::taken).max().unwrap_or(0),
            seconds: ranks.iter().map(|rank| rank.passed_s).fold(0.0, f64::max),
            data_wait_pct: waits.iter().sum::<f64>() / waits.len().max(1) as f64,
            roles: Vec::new(),
            ranks,
        };
        facts.job.on_gpu = watched.ranks.values().any(|used| used.last.gpu.is_some());
        facts.roles = facts.by_role();
        facts
    }

    pub(super) fn by_role(&self) -> Vec<RoleFacts> {
        let mut roles: BTreeMap<&str, Vec<&RankFacts>> = BTreeMap::new();
        for rank in &self.ranks {
            roles.entry(&rank.role).or_default().push(rank);
        }
        let role = |(role, ranks): (&str, Vec<&RankFacts>)| {
            let is_trainer = ranks.iter().any(|rank| rank.is_trainer);
            let ms = |seconds: f64, rank: &RankFacts| {
                // Others than trainers have no steps of their own.
                let steps = if is_trainer { rank.steps } else { self.steps };
                seconds * 1e3 / steps.max(1) as f64 / ranks.len() as f64
            };
            RoleFacts {
                role: role.into(),
                ranks: ranks.len(),
                is_trainer,
                step_ms: ranks.iter().map(|rank| ms(rank.passed_s, rank)).sum(),
                ms: Activity::ALL
                    .into_iter()
                    .map(|of| (of, ranks.iter().map(|rank| ms(rank.spent(of), rank)).sum::<f64>()))
                    // The main thread of those that only serve waits for the end of the run, whatever else they do.
                    .filter(|(of, ms)| *ms > 0.0 && (is_trainer || *of != Activity::Wait))
                    .collect(),
            }
        };
        let mut all: Vec<RoleFacts> = roles.into_iter().map(role).collect();
        all.sort_by_key(|role| !role.is_trainer);
        all
    }

    pub fn trainers(&self) -> impl Iterator<Item = &RankFacts> {
        self.ranks.iter().filter(|rank| rank.is_trainer)
    }

    /// Those that trainers call and nothing else.
    pub fn servers(&self) -> impl Iterator<Item = &RankFacts> {
        self.ranks.iter().filter(|rank| !rank.is_trainer && self.job.hosting_roles.contains(&rank.role))
    }

    /// Of the time of trainers on average, how much goes into these.
    pub fn trainers_share(&self, activities: &[Activity]) -> f64 {
        mean(self.trainers().map(|rank| rank.share(activities)))
    }

    /// Of the time of trainers, how much they wait for other ranks, and not for data.
    pub fn waits_for_ranks(&self) -> f64 {
        (self.trainers_share(&[Activity::Wait]) - self.data_wait_pct / 100.0).max(0.0)
    }

    /// How much of the time the busiest server computes, in threads.
    pub fn busiest_server(&self) -> Option<(&RankFacts, f64)> {
        let busy = self.servers().map(|rank| (rank, rank.share(&WORK) + rank.share(&[Activity::Payload])));
        busy.max_by(|one, other| one.1.total_cmp(&other.1))
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    if count > 0 { sum / f64::from(count) } else { 0.0 }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slowest {
    pub rank: u32,
    pub role: String,
    /// Milliseconds of a step in which it works itself.
    pub works_ms: f64,
    /// The same of the trainer in the middle.
    pub median_ms: f64,
}

impl Slowest {
    /// How many times as long.
    pub fn times(&self) -> f64 {
        self.works_ms / self.median_ms
    }
}

impl Facts {
    /// The trainer that works longest for a step, where there are others.
    pub fn slowest(&self) -> Option<Slowest> {
        let mut works: Vec<(f64, &RankFacts)> =
            self.trainers().filter(|rank| rank.steps > 0).map(|rank| (rank.works_ms(), rank)).collect();
        works.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (&(works_ms, rank), others) = works.split_last()?;
        let median_ms = others.get(others.len() / 2)?.0;
        (median_ms > 0.0).then(|| Slowest { rank: rank.rank, role: rank.role.clone(), works_ms, median_ms })
    }
}
