//! The files that modules are made of or start from: whether they are there and fit, before anything runs. Needs no
//! libtorch but to tell what TorchScript holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::job::size::BYTES_PER_PARAMETER;
use crate::job::{self, Job, JobError, ModuleSize, ModuleSpec, Placement, Training, weights};
use crate::model::{self, ModelError, Module};
use crate::topology::Rank;

/// Everything that is wrong with the files of `job`'s modules. Weights are needed where the module is, and where it is
/// computed: on `rank` only, if there is one. TorchScript is part of the job, which all ranks have to agree on.
pub fn problems(job: &Job, rank: Option<Rank>) -> Vec<JobError> {
    let training = job.training();
    let modules = training.map_or(&[][..], |training| training.modules.as_slice());
    let trainers = training.map_or(&[][..], |training| training.train.trainers.ranks.as_slice());
    let (mut problems, mut seen) = (Vec::new(), BTreeSet::new());
    for module in modules {
        if let Some(script) = module.torchscript() {
            problems.extend(torchscript(&key(module, "torchscript", &script.file), &script.file));
        }
        let pulled = module.placement == Placement::Caller;
        let held = rank
            .is_none_or(|rank| module.place.ranks.contains(&rank) || (pulled && trainers.contains(&rank)));
        // The stages of a module have one file.
        if let Some(file) = module.weights.as_ref().filter(|_| held && seen.insert(module.written_name())) {
            problems.extend(weights(&key(module, "weights", file), file, module));
        }
    }
    problems
}

/// What the job's TorchScript holds, by file. Needs libtorch.
///
/// # Errors
/// Files that are no TorchScript or do not do what the job says; too few parameters for the servers that hold them.
pub fn script_sizes(training: &Training) -> Result<BTreeMap<PathBuf, ModuleSize>, Vec<JobError>> {
    let (mut sizes, mut problems) = (BTreeMap::new(), Vec::new());
    for (module, script) in training.modules.iter().filter_map(|module| Some((module, module.torchscript()?)))
    {
        match Module::build(module, &[tch::Device::Cpu], 0) {
            Ok(built) => {
                let pulled = module.placement == Placement::Caller;
                problems.extend(pulled.then(|| unpullable(module, built.size())).flatten());
                sizes.insert(script.file.clone(), built.size());
            }
            Err(error) => {
                let key = key(module, "torchscript", &script.file);
                problems.push(match error {
                    ModelError::Script { problem, hint, .. } => {
                        JobError::new(format!("{key}: {problem}")).hint(hint)
                    }
                    error => JobError::new(format!("{key}: {error}")),
                });
            }
        }
    }
    if problems.is_empty() { Ok(sizes) } else { Err(problems) }
}

/// Why trainers cannot pull what the module holds.
fn unpullable(module: &ModuleSpec, size: ModuleSize) -> Option<JobError> {
    let name = module.written_name();
    let wrong = |problem, hint| JobError::new(format!("`modules.{name}` {problem}")).hint(hint);
    if size.parameter_bytes != size.parameters * BYTES_PER_PARAMETER {
        let problem = "has parameters that are not float32, and run = \"caller\" takes no others";
        return Some(wrong(problem.into(), "save module.float() as TorchScript".into()));
    }
    job::unservable(module, size.parameters).map(|(problem, hint)| wrong(problem, hint))
}

fn key(module: &ModuleSpec, key: &str, file: &Path) -> String {
    format!("`modules.{}.{key}` = {:?}", module.written_name(), file.display().to_string())
}

fn torchscript(key: &str, file: &Path) -> Option<JobError> {
    let hint = "torch.jit.script(module).save(\"model.pt\") writes one";
    match is_zip(file) {
        Ok(true) => None,
        Ok(false) => Some(JobError::new(format!("{key} is no TorchScript file")).hint(hint)),
        Err(error) => Some(unreadable(key, file, &error.to_string())),
    }
}

/// TorchScript's files are zip archives.
fn is_zip(file: &Path) -> io::Result<bool> {
    let mut first = [0; 4];
    match File::open(file)?.read_exact(&mut first) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(first == *b"PK\x03\x04"),
    }
}

fn weights(key: &str, file: &Path, module: &ModuleSpec) -> Vec<JobError> {
    let header = match model::header(file) {
        Ok(header) => header,
        Err(ModelError::File { message, .. }) => return vec![unreadable(key, file, &message)],
        Err(error) => return vec![unreadable(key, file, &error.to_string())],
    };
    if module.torchscript().is_some() {
        return Vec::new();
    }
    let wanted = weights::wanted_by_layers(&module.whole_layers());
    let problems = weights::fit(module.written_name(), &wanted, &[], &header).err().unwrap_or_default();
    problems
        .into_iter()
        .map(|problem| JobError::new(format!("{key}: {}", problem.message)).hint(problem.hint))
        .collect()
}

fn unreadable(key: &str, file: &Path, message: &str) -> JobError {
    let hint = match file.exists() {
        true if message.contains("safetensors") => {
            "safetensors.torch.save_file(module.state_dict(), \"start.safetensors\") writes one".into()
        }
        true => "see what the file is".into(),
        false => {
            let found = std::path::absolute(file).unwrap_or_else(|_| file.into());
            format!("paths are relative to the current folder: this one is {}", found.display())
        }
    };
    JobError::new(format!("{key} cannot be read: {message}")).hint(hint)
}
