//! Parameter groups: each pattern of one is to match a parameter that its optimizer updates.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::parse::patterns::unmatched;
use super::size::ScriptHolds;
use super::validated::{MadeOf, ModuleSpec, Training};
use super::weights::wanted_by_layers;
use crate::config::JobError;
use crate::optimizers::Optimization;

/// A pattern that matches nothing.
pub(super) struct Unmatched {
    /// Which group has it.
    pub group: usize,
    pub problem: String,
    pub hint: String,
}

/// What is wrong with the groups of a job with TorchScript, of which somebody knows now what it holds. Where nobody does, and of
/// layers alone, nothing: those were looked at with the job.
pub fn beside_scripts(training: &Training, scripts: &BTreeMap<PathBuf, ScriptHolds>) -> Vec<JobError> {
    let error = |key: String, wrong: Unmatched| {
        JobError::new(format!("`{key}.groups[{}]` {}", wrong.group, wrong.problem)).hint(wrong.hint)
    };
    let common = unmatched_in_groups(&training.optimizer, &updated_by(training, None), scripts);
    let mut all: Vec<_> = common.into_iter().map(|wrong| error("optimizer".into(), wrong)).collect();
    for (name, own) in &training.own_optimizers {
        let wrong = unmatched_in_groups(own, &updated_by(training, Some(name)), scripts);
        all.extend(wrong.into_iter().map(|wrong| error(format!("modules.{name}.optimizer"), wrong)));
    }
    all
}

/// The modules with this optimizer: their own, or the job's.
pub(super) fn updated_by<'a>(training: &'a Training, own: Option<&str>) -> Vec<&'a ModuleSpec> {
    let is_updated = |module: &&ModuleSpec| match own {
        Some(name) => module.written_name() == name,
        None => !training.own_optimizers.contains_key(module.written_name()),
    };
    training.modules.iter().filter(is_updated).collect()
}

/// Nothing, where one of the modules is TorchScript of which is not known what it holds.
pub(super) fn unmatched_in_groups(
    optimization: &Optimization,
    modules: &[&ModuleSpec],
    scripts: &BTreeMap<PathBuf, ScriptHolds>,
) -> Vec<Unmatched> {
    let mut names = Vec::new();
    for module in modules {
        match &module.made_of {
            MadeOf::Layers(layers) => {
                let own = wanted_by_layers(layers)
                    .into_iter()
                    .filter(|tensor| tensor.required && !module.is_frozen(&tensor.name));
                names.extend(own.map(|tensor| module.whole_parameter_name(&tensor.name)));
            }
            MadeOf::TorchScript(script) => match scripts.get(&script.file) {
                Some(holds) => names.extend_from_slice(&holds.parameters),
                None => return Vec::new(),
            },
        }
    }
    let mut all = Vec::new();
    for (group, patterns) in optimization.groups.iter().map(|group| &group.patterns).enumerate() {
        let wrong = patterns.iter().filter_map(|pattern| {
            let hint = unmatched(pattern, &names, "no module is updated by this optimizer")?;
            let problem = format!("has a pattern that no parameter matches: \"{pattern}\"");
            Some(Unmatched { group, problem, hint })
        });
        all.extend(wrong);
    }
    all
}
