//! The job: the file as parsed, the job as validated, and every error between with its key and a hint.
//!
//! [`load`] merges defaults, file, environment and options (`sources`), reads the whole with its types
//! (`config`, `parse`), validates it, shapes included (`layers`), and hands out a [`Job`] on which all floors
//! above rely. [`plan()`] tells what a validated job will do. Pure but for [`environment`]: no file is opened
//! here, so whether the data are there is for others to find out. Knows neither tokio nor libtorch.

mod groups;
pub mod hostlist;
mod keys;
mod launchers;
mod parse;
pub mod pipeline;
mod plan;
mod resolved;
mod schema;
pub mod shards;
pub(crate) mod shipped;
pub mod size;
mod sources;
pub mod split;
mod starter;
mod using;
mod validated;
pub mod weights;

pub use crate::config::{JobError, JobErrors, Origin, did_you_mean, one_of, suggest};
pub use groups::beside_scripts;
pub use plan::{CollectivesPlan, Plan, collectives_plan, plan};
pub use schema::{reference, schema};
pub use size::{ModuleSize, ScriptHolds};
pub use sources::{JobText, NOT_KEYS, Override, PREFIX, Sources, environment, environment_of_all_ranks};
pub use starter::{SCHEMA_FILE, starter};
pub use validated::*;

use crate::topology::Rank;

/// A validated job, with what belongs to this process.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub job: Job,
    /// The job as TOML with every source merged in: for the run folder. Loading it gives the same job.
    pub toml: String,
    /// SHA-256 over what all ranks have to agree on: neither the rank nor where the data lie, where rank 0
    /// listens, or how many GPUs there are. Of a plug-in that is a file only its name: `runner::agreement` adds its bytes.
    pub hash: [u8; 32],
    /// Whether the port of rank 0 is anybody's choice, not the default.
    pub master_port_is_given: bool,
    /// Who this process is, if an option or the environment says so.
    pub rank: Option<Rank>,
    /// The process's number on its machine, from the launcher.
    pub local_rank: Option<u32>,
}

/// What a job is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Train,
    UseModel,
}

/// Parses a job and validates it.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load(sources: &Sources<'_>) -> Result<Resolved, JobErrors> {
    load_for(Purpose::Train, sources)
}

/// As [`load`], of a run whose model is used: validations decide nothing there, so what they would decide by need not be
/// measured.
///
/// # Errors
/// As [`load`].
pub fn load_to_use(sources: &Sources<'_>) -> Result<Resolved, JobErrors> {
    load_for(Purpose::UseModel, sources)
}

fn load_for(purpose: Purpose, sources: &Sources<'_>) -> Result<Resolved, JobErrors> {
    let refused = |errors| JobErrors::new(sources.file.name, errors);
    let (merged, mut errors) = sources::merge(sources).map_err(|error| refused(vec![error]))?;
    let stem = std::path::Path::new(sources.file.name).file_stem().and_then(|stem| stem.to_str());
    let read = match parse::read(&merged, stem.filter(|stem| keys::is_name(stem)), purpose) {
        Ok(read) if errors.is_empty() => read,
        Ok(_) => return Err(refused(errors)),
        Err(more) => {
            errors.extend(more);
            return Err(refused(errors));
        }
    };
    let master_port_is_given = read.job.cluster.init == Init::Tcp || merged.is_given("cluster.master_port");
    Ok(Resolved {
        toml: resolved::toml(&read.job, &merged.dict, master_port_is_given),
        master_port_is_given,
        hash: resolved::hash(&read.job),
        job: read.job,
        rank: read.rank,
        local_rank: read.local_rank,
    })
}
