//! How the values of a micro-batch pass through a model's modules: what of the job's graph a trainer needs for it.

use crate::job::{Placement, Source, Training};

/// The graph, as walks through it need it.
pub struct Walk {
    pub(super) modules: Vec<Step>,
    /// Modules that are calls from here, each behind those that it takes from.
    pub(super) calls: Vec<usize>,
    /// Modules that are computed here, in the order in which they are: always the same, so that gradients add up in the same
    /// order. Those that wait for fewer calls one after the other come first.
    pub(super) here: Vec<usize>,
    /// What the loss takes.
    pub(super) ends: Vec<Source>,
}

pub(super) struct Step {
    pub sources: Vec<Source>,
    /// The owner of the module that takes its output calls it; the trainer does not.
    pub nested: bool,
    /// How often its outputs are taken at the trainer.
    pub uses: usize,
    /// It begins with nothing but a call to ranks that this one steps itself, so it may leave ahead of its turn: they know which
    /// steps come before it. A module behind another one is called from there, and cannot know.
    pub may_begin_ahead: bool,
    /// It is computed here, from fields of the data.
    begins_here: bool,
}

impl Walk {
    pub fn new(job: &Training) -> Walk {
        let step = |(at, spec): (usize, &crate::job::ModuleSpec)| {
            let of_fields = spec.sources.iter().all(|source| matches!(source, Source::Field(_)));
            let nested = job.is_nested(at);
            let remote = is_call(job, at);
            Step {
                sources: spec.sources.clone(),
                nested,
                uses: job.takers(at).count(),
                may_begin_ahead: of_fields && remote && !nested,
                begins_here: of_fields && spec.placement != Placement::Remote,
            }
        };
        let modules: Vec<Step> = job.modules.iter().enumerate().map(step).collect();
        let is_own_call = |at: &usize| is_call(job, *at) && !modules[*at].nested;
        let calls = (0..modules.len()).filter(is_own_call).collect();
        Walk { modules, calls, here: here(job), ends: job.loss.from.clone() }
    }

    /// Does a walk begin with a call that may leave ahead of its turn?
    pub fn may_begin_ahead(&self) -> bool {
        self.modules.iter().any(|step| step.may_begin_ahead)
    }

    /// Does this rank keep activations of a micro-batch from its start?
    pub fn begins_here(&self) -> bool {
        self.modules.iter().any(|step| step.begins_here)
    }
}

/// Is the module computed by other ranks?
fn is_call(job: &Training, module: usize) -> bool {
    matches!(job.modules[module].placement, Placement::Remote | Placement::Shards(_))
}

fn here(job: &Training) -> Vec<usize> {
    let mut calls = vec![0; job.modules.len()];
    for (at, spec) in job.modules.iter().enumerate() {
        let behind = spec.sources.iter().filter_map(Source::module);
        calls[at] = behind.map(|before| calls[before] + usize::from(is_call(job, before))).max().unwrap_or(0);
    }
    let mut here: Vec<usize> = (0..job.modules.len()).filter(|&module| !is_call(job, module)).collect();
    here.sort_by_key(|&module| calls[module]);
    here
}
