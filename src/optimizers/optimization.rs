//! An optimizer with other options for some of the parameters: torch's parameter groups, chosen by patterns of names.

use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

use super::OptimizerSpec;

/// What updates the parameters of a module. Travels in calls as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimization {
    pub spec: OptimizerSpec,
    /// The first that has a parameter is its group.
    pub groups: Vec<ParameterGroup>,
    /// Each number of a gradient is brought between minus this and this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_value: Option<f64>,
    /// The decay of the averages of the parameters that are kept beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
}

/// Parameters by patterns of their names, and the options of their own. The optimizer is that of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterGroup {
    /// Patterns of MODULE.PARAMETER: `*` stands for any letters, dots too, `?` for one.
    pub patterns: Vec<String>,
    pub spec: OptimizerSpec,
}

impl Optimization {
    /// The options for a parameter, by its whole name.
    pub fn of(&self, parameter: &str) -> &OptimizerSpec {
        self.group_of(parameter).map_or(&self.spec, |group| &self.groups[group].spec)
    }

    /// Its group, if it is in one.
    pub fn group_of(&self, parameter: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.has(parameter))
    }

    /// The options of all groups.
    pub fn specs(&self) -> impl Iterator<Item = &OptimizerSpec> {
        [&self.spec].into_iter().chain(self.groups.iter().map(|group| &group.spec))
    }

    /// Tensors of the size of a parameter that are kept for it; of groups that differ, for those with most.
    pub fn tensors_per_parameter(&self) -> u64 {
        let of_rule = self.specs().map(OptimizerSpec::tensors_per_parameter).max().unwrap_or(0);
        of_rule + u64::from(self.ema.is_some())
    }

    /// Multiplies all learning rates.
    pub fn scale_lr(&mut self, factor: f64) {
        for spec in [&mut self.spec].into_iter().chain(self.groups.iter_mut().map(|group| &mut group.spec)) {
            spec.set_lr(spec.lr() * factor);
        }
    }
}

impl From<OptimizerSpec> for Optimization {
    fn from(spec: OptimizerSpec) -> Optimization {
        Optimization { spec, groups: Vec::new(), clip_value: None, ema: None }
    }
}

impl ParameterGroup {
    fn has(&self, parameter: &str) -> bool {
        self.patterns.iter().any(|pattern| matches(pattern, parameter))
    }
}

/// Does a pattern have a name?
pub fn matches(pattern: &str, name: &str) -> bool {
    WildMatch::new(pattern).matches(name)
}
