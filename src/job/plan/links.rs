//! What travels between roles in one step of one trainer.

use std::collections::BTreeSet;

use super::super::size::BYTES_PER_PARAMETER;
use super::super::validated::{Placement, Source, Training};
use super::{Link, Load, ModulePlan, Wire, ranges, sum};
use crate::layers::{InputDtype, Signal};

/// A module on another rank that one other alone takes from passes its output on without the trainer; what several take, or
/// the trainer, comes to the trainer once. Gradients go the same ways back. Replicas exchange gradients; of modules that
/// trainers compute, gradients and parameters travel.
pub(super) fn links(job: &Training, modules: &[ModulePlan]) -> Vec<Link> {
    let trainers = job.train.trainers.name.as_str();
    let samples = job.train.batch_size.saturating_mul(u64::from(job.train.accumulate));
    let remote = |module: usize| modules[module].placement == Placement::Remote;
    let place = |module: usize| if remote(module) { modules[module].role.as_str() } else { trainers };
    let reached = job.reached_by_gradients();
    let mut ways = Ways { links: Vec::new(), samples };
    let mut at_trainer = BTreeSet::new();
    let to_trainer =
        |ways: &mut Ways, at_trainer: &mut BTreeSet<(usize, usize)>, module: usize, output: usize| {
            if remote(module) && at_trainer.insert((module, output)) {
                let wire = &modules[module].outputs[output];
                let what = format!("output of {}", wire.name);
                ways.add(place(module), trainers, what, &wire.signal, reached[module]);
            }
        };
    for (at, module) in modules.iter().enumerate() {
        for (wire, source) in module.inputs.iter().zip(&job.modules[at].sources) {
            let Source::Output { module: before, output } = *source else {
                let what = input_of(module, wire);
                ways.add(trainers, place(at), what, &wire.signal, false);
                continue;
            };
            if job.is_nested(before) {
                let what = format!("output of {}", wire.name);
                ways.add(place(before), place(at), what, &wire.signal, reached[before]);
            } else {
                to_trainer(&mut ways, &mut at_trainer, before, output);
                ways.add(trainers, place(at), input_of(module, wire), &wire.signal, reached[before]);
            }
        }
    }
    for source in &job.loss.from {
        if let Source::Output { module, output } = *source {
            to_trainer(&mut ways, &mut at_trainer, module, output);
        }
    }
    let mut links = ways.links;
    for module in modules {
        match module.placement {
            Placement::Shards(_) => rows(&mut links, trainers, module, samples),
            Placement::Caller => ranges::pull_and_push(&mut links, job, module),
            Placement::Remote | Placement::Replicas => exchange(&mut links, module),
        }
    }
    links
}

fn input_of(module: &ModulePlan, wire: &Wire) -> String {
    match module.inputs.len() {
        1 => format!("input of {}", module.name),
        _ => format!("input {} of {}", wire.name, module.name),
    }
}

/// What has travelled so far.
struct Ways {
    links: Vec<Link>,
    /// The samples of one step.
    samples: u64,
}

impl Ways {
    /// Data need no gradient; what a module gave does, where it or one before it trains.
    fn add(&mut self, from: &str, to: &str, what: String, signal: &Signal, has_gradient: bool) {
        if from == to {
            return;
        }
        let bytes = signal.bytes().saturating_mul(self.samples);
        if has_gradient {
            add(&mut self.links, to, from, format!("gradient of the {what}"), bytes);
        }
        add(&mut self.links, from, to, what, bytes);
    }
}

/// What a table that is cut over ranks is asked for, at most: when no id comes twice in a batch. Its layer runs at the
/// trainers.
fn rows(links: &mut Vec<Link>, trainers: &str, module: &ModulePlan, samples: u64) {
    // What the rows of bags are multiplied by stays here.
    let of_ids = module.inputs.iter().filter(|input| input.signal.dtype == InputDtype::Int64);
    let elements = of_ids.map(|input| input.signal.elements()).fold(0, u64::saturating_add);
    let ids = elements.saturating_mul(samples);
    let dim =
        module.outputs.first().and_then(|output| output.signal.shape.last()).map_or(1, |dim| *dim as u64);
    let bytes = ids.saturating_mul(dim).saturating_mul(BYTES_PER_PARAMETER);
    let name = &module.name;
    add(links, trainers, &module.role, format!("ids of {name}"), ids.saturating_mul(8));
    add(links, &module.role, trainers, format!("rows of {name}"), bytes);
    if module.trained_parameters != Some(0) {
        add(links, trainers, &module.role, format!("gradient of the rows of {name}"), bytes);
    }
}

/// What one of `n` replicas sends in an all-reduce of its gradients, which is `2 (n - 1) / n` of them whatever the
/// algorithm (Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms", 2009).
fn exchange(links: &mut Vec<Link>, module: &ModulePlan) {
    let replicas = module.ranks.len() as u64;
    // How large TorchScript is comes out when somebody has loaded it.
    let trained_bytes = match module.torchscript {
        Some(_) => module.parameter_bytes,
        None => module.trained_parameters.map(|count| count.saturating_mul(BYTES_PER_PARAMETER)),
    };
    if let Some(bytes) = trained_bytes.filter(|bytes| replicas > 1 && *bytes > 0) {
        let bytes = bytes.saturating_mul(2).saturating_mul(replicas - 1) / replicas;
        let what = format!("gradients of {}, all-reduced", module.name);
        add(links, &module.role, &module.role, what, bytes);
    }
}

pub(super) fn add(links: &mut Vec<Link>, from: &str, to: &str, what: String, bytes: u64) {
    let found = links.iter().position(|link| link.from == from && link.to == to);
    let link = match found {
        Some(found) => &mut links[found],
        None => {
            links.push(Link { from: from.into(), to: to.into(), carries: Vec::new(), bytes: 0 });
            links.last_mut().expect("one was just added")
        }
    };
    link.carries.push(Load { what, bytes });
    link.bytes = sum(link.carries.iter().map(|load| load.bytes));
}
