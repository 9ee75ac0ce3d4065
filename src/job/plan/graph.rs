//! What passes between the fields of the data, the modules and the loss.

use std::fmt;

use serde::Serialize;

use super::super::validated::{ModuleSpec, Source, Training};
use super::Wire;

/// Who takes what; a model that is a chain needs no drawing of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphPlan {
    pub nodes: Vec<Node>,
}

/// A module, or the loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    pub name: String,
    /// The role that computes it.
    pub role: String,
    pub takes: Vec<Wire>,
    /// The fields that the loss compares with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

pub(super) fn graph(job: &Training) -> Option<GraphPlan> {
    let module = |spec: &ModuleSpec| Node {
        name: spec.name.clone(),
        role: job.computed_on(spec).name.clone(),
        takes: inputs(job, spec),
        targets: Vec::new(),
    };
    let mut nodes: Vec<Node> = job.modules.iter().map(module).collect();
    nodes.push(Node {
        name: "loss".into(),
        role: job.train.trainers.name.clone(),
        takes: job.loss.from.iter().filter_map(|source| wire(job, source)).collect(),
        targets: job.loss.targets.iter().map(|&field| job.fields[field].name.shown()).collect(),
    });
    (!job.is_chain()).then_some(GraphPlan { nodes })
}

/// What a module takes.
pub(super) fn inputs(job: &Training, module: &ModuleSpec) -> Vec<Wire> {
    module.sources.iter().filter_map(|source| wire(job, source)).collect()
}

/// What a module gives.
pub(super) fn outputs(module: &ModuleSpec) -> Vec<Wire> {
    let outputs = module.outputs().into_iter().enumerate();
    outputs.map(|(nth, signal)| Wire { name: module.output_name(nth), signal }).collect()
}

fn wire(job: &Training, source: &Source) -> Option<Wire> {
    match source {
        Source::Field(field) => {
            let field = &job.fields[*field];
            let signal = field.taken.as_ref()?.signal.clone();
            Some(Wire { name: field.name.shown(), signal })
        }
        Source::Output { module, output } => outputs(&job.modules[*module]).into_iter().nth(*output),
    }
}

impl fmt::Display for GraphPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph")?;
        let width = self.nodes.iter().map(|node| node.name.len()).max().unwrap_or(0);
        for Node { name, role, takes, targets } in &self.nodes {
            let takes: Vec<String> =
                takes.iter().map(|wire| format!("{} {}", wire.name, wire.signal)).collect();
            write!(f, "\n  {name:<width$}  on {role} takes {}", takes.join(" and "))?;
            if !targets.is_empty() {
                write!(f, ", beside {}", targets.join(" and "))?;
            }
        }
        Ok(())
    }
}
