//! What travels between roles in one step of one trainer.

use super::super::size::BYTES_PER_PARAMETER;
use super::super::validated::{Placement, Training};
use super::{Link, Load, ModulePlan, ranges, sum};
use crate::layers::Signal;

/// Modules on other ranks that follow one another pass their outputs on without the trainer; gradients go the same ways
/// back. Replicas exchange gradients; of modules that trainers compute, gradients and parameters travel.
pub(super) fn links(job: &Training, modules: &[ModulePlan]) -> Vec<Link> {
    let trainers = &job.train.trainers.name;
    let samples = job.train.batch_size.saturating_mul(u64::from(job.train.accumulate));
    let batch = |signal: &Signal| signal.bytes().saturating_mul(samples);
    let place = |module: Option<&ModulePlan>| match module {
        Some(module) if module.placement == Placement::Remote => module.role.clone(),
        _ => trainers.clone(),
    };
    let mut links = Vec::new();
    for index in 0..=modules.len() {
        let (before, after) = (index.checked_sub(1).map(|index| &modules[index]), modules.get(index));
        let (from, to) = (place(before), place(after));
        let (what, signal) = match (before, after) {
            (Some(module), _) if module.placement == Placement::Remote => {
                (format!("output of {}", module.name), &module.output)
            }
            (_, Some(module)) => (format!("input of {}", module.name), &module.input),
            _ => continue,
        };
        if from != to {
            // Data need no gradient; what a module gave does.
            if before.is_some() {
                add(&mut links, &to, &from, format!("gradient of the {what}"), batch(signal));
            }
            add(&mut links, &from, &to, what, batch(signal));
        }
    }
    for module in modules {
        match module.placement {
            Placement::Shards(_) => rows(&mut links, trainers, module, samples),
            Placement::Caller => ranges::pull_and_push(&mut links, job, module),
            Placement::Remote | Placement::Replicas => exchange(&mut links, module),
        }
    }
    links
}

/// What a table that is cut over ranks is asked for, at most: when no id comes twice in a batch. Its layer runs at the
/// trainers.
fn rows(links: &mut Vec<Link>, trainers: &str, module: &ModulePlan, samples: u64) {
    let ids = module.input.elements().saturating_mul(samples);
    let dim = module.output.shape.last().map_or(1, |dim| *dim as u64);
    let bytes = ids.saturating_mul(dim).saturating_mul(BYTES_PER_PARAMETER);
    let name = &module.name;
    add(links, trainers, &module.role, format!("ids of {name}"), ids.saturating_mul(8));
    add(links, &module.role, trainers, format!("rows of {name}"), bytes);
    add(links, trainers, &module.role, format!("gradient of the rows of {name}"), bytes);
}

/// What one of `n` replicas sends in an all-reduce of its gradients, which is `2 (n - 1) / n` of them whatever the
/// algorithm (Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms", 2009).
fn exchange(links: &mut Vec<Link>, module: &ModulePlan) {
    let replicas = module.ranks.len() as u64;
    // How large TorchScript is comes out when somebody has loaded it.
    if let Some(bytes) = module.parameter_bytes.filter(|_| replicas > 1) {
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
