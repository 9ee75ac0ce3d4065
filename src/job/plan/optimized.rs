//! What is optimised: which optimizer has which parameters, by which options, what stays as it starts, and how the learning
//! rate goes on.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::ModulePlan;
use super::rate::RatePlan;
use super::show::{Align::Left, Align::Right, Grid};
use crate::human::{counted, thousands};
use crate::job::validated::{LossScaling, MadeOf, ModuleSpec, Training};
use crate::layers::each_tensor;
use crate::optimizers::{Optimization, OptimizerSpec};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptimizedPlan {
    pub optimizers: Vec<OptimizerPlan>,
    /// The norm that the gradients of a step are scaled down to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// The largest number of a gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_value: Option<f64>,
    /// The decay of the weights' moving average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// How losses are scaled for gradients in float16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scaling: Option<LossScaling>,
    pub frozen: Vec<FrozenPlan>,
    /// None: nothing trains.
    pub learning_rate: Option<RatePlan>,
}

/// An optimizer, and what it updates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptimizerPlan {
    #[serde(rename = "type")]
    pub name: &'static str,
    pub modules: Vec<String>,
    /// The first that has a parameter is its group; the last has the others.
    pub groups: Vec<GroupPlan>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupPlan {
    /// None of those that no group before has.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub patterns: Option<Vec<String>>,
    /// None: among the modules is TorchScript, whose parameters nobody has named.
    pub tensors: Option<u64>,
    pub parameters: Option<u64>,
    /// In force, all of them.
    pub options: Map<String, Value>,
}

/// What a module keeps as it starts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrozenPlan {
    pub module: String,
    pub patterns: Vec<String>,
    /// None of TorchScript.
    pub tensors: Option<u64>,
    pub parameters: Option<u64>,
    /// None of its parameters trains.
    pub whole: bool,
}

/// Characters for options in a line: what fits a terminal beside the patterns of a group.
const OPTIONS: usize = 48;

/// `steps`: of a trainer, where they are known.
pub(super) fn optimized(job: &Training, plans: &[ModulePlan], steps: Option<u64>) -> OptimizedPlan {
    let trained: Vec<(&ModuleSpec, &ModulePlan)> = job
        .modules
        .iter()
        .zip(plans)
        .filter(|(module, plan)| module.trains() && plan.trained_parameters != Some(0))
        .collect();
    let has_own = |module: &ModuleSpec| job.own_optimizers.contains_key(module.written_name());
    let mut sets: Vec<Vec<(&ModuleSpec, &ModulePlan)>> = Vec::new();
    for (module, plan) in trained {
        let with = |set: &&mut Vec<(&ModuleSpec, &ModulePlan)>| {
            let (other, _) = set[0];
            let stages = other.written_name() == module.written_name();
            stages || !(has_own(other) || has_own(module))
        };
        match sets.iter_mut().find(with) {
            Some(set) => set.push((module, plan)),
            None => sets.push(vec![(module, plan)]),
        }
    }
    let lr = sets.first().map(|set| job.optimization(set[0].0).spec.lr());
    OptimizedPlan {
        optimizers: sets.iter().map(|set| optimizer(&job.optimization(set[0].0), set)).collect(),
        clip_norm: job.clip_norm,
        clip_value: job.clip_value,
        ema: job.ema,
        loss_scaling: job.loss_scaling,
        frozen: job.modules.iter().filter_map(frozen).collect(),
        learning_rate: lr.map(|lr| RatePlan::new(job, lr, sets.len() > 1, steps)),
    }
}

fn optimizer(optimization: &Optimization, set: &[(&ModuleSpec, &ModulePlan)]) -> OptimizerPlan {
    let mut modules: Vec<String> = set.iter().map(|(module, _)| module.written_name().to_owned()).collect();
    modules.dedup();
    // Of each group, and of the others.
    let mut counts = vec![(0u64, 0u64); optimization.groups.len() + 1];
    for (module, _) in set {
        each_parameter(module, |name, values| {
            if !module.is_frozen(name) {
                let group = optimization.group_of(&module.whole_parameter_name(name));
                let (tensors, parameters) = &mut counts[group.unwrap_or(optimization.groups.len())];
                (*tensors, *parameters) = (*tensors + 1, parameters.saturating_add(values));
            }
        });
    }
    let is_named = set.iter().all(|(module, _)| module.torchscript().is_none());
    let mut groups: Vec<GroupPlan> = Vec::new();
    let patterns = optimization.groups.iter().map(|group| (Some(group.patterns.clone()), &group.spec));
    for ((patterns, spec), (tensors, parameters)) in patterns.chain([(None, &optimization.spec)]).zip(counts)
    {
        groups.push(GroupPlan {
            patterns,
            tensors: is_named.then_some(tensors),
            parameters: is_named.then_some(parameters),
            options: options(spec),
        });
    }
    if let ([all], false) = (groups.as_mut_slice(), is_named) {
        all.parameters = super::sum_of_known(set.iter().map(|(_, plan)| plan.trained_parameters));
    }
    OptimizerPlan { name: optimization.spec.name(), modules, groups }
}

/// Without the type.
fn options(spec: &OptimizerSpec) -> Map<String, Value> {
    let Ok(Value::Object(mut options)) = serde_json::to_value(spec) else { return Map::new() };
    options.remove("type");
    options
}

fn frozen(module: &ModuleSpec) -> Option<FrozenPlan> {
    let (mut tensors, mut parameters) = (0u64, 0u64);
    each_parameter(module, |name, values| {
        if module.is_frozen(name) {
            (tensors, parameters) = (tensors + 1, parameters.saturating_add(values));
        }
    });
    let is_named = matches!(module.made_of, MadeOf::Layers(_));
    let freezes = if is_named { tensors > 0 } else { !module.freeze.is_empty() };
    freezes.then(|| FrozenPlan {
        module: module.name.clone(),
        patterns: module.freeze.clone(),
        tensors: is_named.then_some(tensors),
        parameters: is_named.then_some(parameters),
        whole: !module.trains(),
    })
}

/// The name within the module, and how many values. None of TorchScript.
fn each_parameter(module: &ModuleSpec, mut look: impl FnMut(&str, u64)) {
    each_tensor(module.layers(), &mut |name, shape, is_parameter| {
        if is_parameter {
            look(&name, shape.iter().fold(1, |values: u64, size| values.saturating_mul(*size as u64)));
        }
    });
}

impl fmt::Display for OptimizedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, optimizer) in self.optimizers.iter().enumerate() {
            write!(f, "{}{optimizer}", if nth == 0 { "" } else { "\n\n" })?;
        }
        if self.optimizers.is_empty() {
            write!(f, "optimizer\n  nothing trains")?;
        }
        if let Some(norm) = self.clip_norm {
            write!(f, "\n  gradients are scaled down to a norm of {norm} over all parameters of the job")?;
        }
        if let Some(most) = self.clip_value {
            write!(f, "\n  each number of a gradient is brought between -{most} and {most}")?;
        }
        if let Some(decay) = self.ema {
            write!(f, "\n  beside the weights is their moving average: each step leaves {decay} of it")?;
        }
        if let Some(LossScaling { init_scale, .. }) = self.loss_scaling {
            write!(f, "\n  losses are scaled, by {init_scale} at first; a step that overflows is left out")?;
        }
        for frozen in &self.frozen {
            write!(f, "\n  {frozen}")?;
        }
        match &self.learning_rate {
            Some(rate) => write!(f, "\n\n{rate}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for OptimizerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "optimizer {}, of {}", self.name, self.modules.join(", "))?;
        let mut grid = Grid::new(&[Left, Right, Left]);
        grid.row(["group", "parameters", "options"].map(String::from).to_vec());
        let common = self.groups.last().map(|others| &others.options);
        for group in &self.groups {
            let parameters = group.parameters.map_or("not known".into(), thousands);
            let name = match &group.patterns {
                Some(patterns) => patterns.join(" "),
                None if self.groups.len() == 1 => "all".into(),
                None => "the others".into(),
            };
            let shown = group.shown(common.filter(|_| group.patterns.is_some()));
            let mut lines = shown.into_iter();
            grid.row(vec![name, parameters, lines.next().unwrap_or_default()]);
            lines.for_each(|line| grid.row(vec![String::new(), String::new(), line]));
        }
        grid.write(f)
    }
}

impl GroupPlan {
    /// What differs from `common`, in lines; of the optimizer itself what is not off.
    fn shown(&self, common: Option<&Map<String, Value>>) -> Vec<String> {
        let is_off = |value: &Value| value.is_null() || value == false || value.as_f64() == Some(0.0);
        let told = |(name, value): &(&String, &Value)| match common {
            Some(common) => common.get(*name) != Some(value),
            None => *name == "lr" || !is_off(value),
        };
        let mut shown: Vec<_> = self.options.iter().filter(told).collect();
        shown.sort_by_key(|(name, _)| *name != "lr");
        let shown: Vec<String> =
            shown.into_iter().map(|(name, value)| format!("{name} {}", as_written(value))).collect();
        let mut lines: Vec<String> = Vec::new();
        for option in shown {
            match lines.last_mut().filter(|line| line.len() + ", ".len() + option.len() <= OPTIONS) {
                Some(line) => *line = format!("{line}, {option}"),
                None => lines.push(option),
            }
        }
        if lines.is_empty() { vec!["as the others".into()] } else { lines }
    }
}

fn as_written(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(as_written).collect::<Vec<_>>().join(", ")),
        Value::String(word) => word.clone(),
        value => value.to_string().trim_end_matches(".0").to_owned(),
    }
}

impl fmt::Display for FrozenPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrozenPlan { module, patterns, tensors, parameters, whole } = self;
        let patterns = patterns.join(" ");
        match (whole, tensors.zip(*parameters)) {
            (true, None) => write!(f, "{module} is frozen"),
            (false, None) => write!(f, "of {module} is frozen what has the name {patterns}"),
            (whole, Some((tensors, parameters))) => {
                let of = if *whole {
                    format!("{module} is frozen")
                } else {
                    format!("of {module} are frozen {patterns}")
                };
                write!(f, "{of}: {} in {}", counted(parameters, "parameter"), counted(tensors, "tensor"))
            }
        }
    }
}
