//! From the options to a validated job; `check` and `init`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::args::{CheckArgs, JobArgs};
use super::exit::{DONE, Failure};
use super::{stderr, stdout};
use crate::job::{
    self, Cluster, DataRoot, Job, JobError, JobErrors, JobText, Override, Resolved, ScriptHolds, Source,
    Sources, Training, Work,
};
use crate::runner::libtorch::NoLibtorch;
use crate::runner::model_files::Tried;
use crate::runner::{builtin, inputs, libtorch, model_files, try_data};

/// The job that runs where none is named: it trains on data inside the binary.
const BUILTIN: JobText<'static> =
    JobText { name: "digits_ps.toml (built in)", text: include_str!("../../jobs/digits_ps.toml") };

/// The job at `path`, or the built-in one, for a command that is not a rank of it.
pub fn load(path: Option<&Path>, args: &JobArgs) -> Result<Resolved, Failure> {
    let env = job::environment_of_all_ranks();
    match path {
        Some(path) => with_inputs(&path.display().to_string(), read(path, env, args, &[])?),
        None => with_inputs(BUILTIN.name, validate(BUILTIN, env, args, &[], (job::load, as_it_is))?),
    }
}

/// The job at `path`, for the rank that this process is.
pub fn load_for_rank(path: &Path, args: &JobArgs, rank: Option<u32>) -> Result<Resolved, Failure> {
    let rank: Vec<Override> =
        rank.map(|rank| Override::option("--rank", "cluster.rank", rank)).into_iter().collect();
    with_inputs(&path.display().to_string(), read(path, job::environment(), args, &rank)?)
}

/// The job at `path` for ranks that others start, with what `more` says of them. Its data may be where they run and not here.
pub fn load_to_launch(path: &Path, args: &JobArgs, more: &[Override]) -> Result<Resolved, Failure> {
    read(path, job::environment_of_all_ranks(), args, more)
}

/// The job of a run whose model is to be used. `adjust` makes of it what is to be done.
pub fn load_to_use(
    path: &Path,
    args: &JobArgs,
    adjust: impl FnOnce(&mut Job) -> Result<(), Failure>,
) -> Result<Resolved, Failure> {
    let (name, text) = text(path)?;
    let how = (job::load_to_use as Load, adjust);
    validate(JobText { name: &name, text: &text }, job::environment_of_all_ranks(), args, &[], how)
}

/// A job whose data and plug-ins are there.
fn with_inputs(name: &str, resolved: Resolved) -> Result<Resolved, Failure> {
    let missing = inputs::missing(&resolved.job, resolved.rank);
    if missing.is_empty() { Ok(resolved) } else { Err(JobErrors::new(name, missing).into()) }
}

fn read(
    path: &Path,
    env: Vec<(String, String)>,
    args: &JobArgs,
    more: &[Override],
) -> Result<Resolved, Failure> {
    let (name, text) = text(path)?;
    validate(JobText { name: &name, text: &text }, env, args, more, (job::load, as_it_is))
}

/// The job at `path`, or the built-in one, once with each of `variants` on top of `args`. What is wrong with several of them is
/// told once.
pub fn load_each(
    path: Option<&Path>,
    args: &JobArgs,
    variants: &[Vec<Override>],
) -> Result<Vec<Resolved>, Failure> {
    let given = path.map(text).transpose()?;
    let file = given.as_ref().map_or(BUILTIN, |(name, text)| JobText { name, text });
    let env = job::environment_of_all_ranks();
    let (mut loaded, mut wrong) = (Vec::new(), Vec::new());
    for variant in variants {
        let (mut overrides, unreadable) = settings(&args.set);
        overrides.extend(options(args).into_iter().chain(variant.iter().cloned()));
        let sources = Sources { file, env: env.clone(), overrides: &overrides };
        let errors = match prove(&sources, unreadable, (job::load, as_it_is))? {
            Ok(resolved) => {
                let missing = inputs::missing(&resolved.job, None);
                loaded.push(resolved);
                missing
            }
            Err(errors) => errors,
        };
        for error in errors {
            if !wrong.contains(&error) {
                wrong.push(error);
            }
        }
    }
    if wrong.is_empty() { Ok(loaded) } else { Err(JobErrors::new(file.name, wrong).into()) }
}

/// The name of a job file in messages, and what is in it.
pub fn text(path: &Path) -> Result<(String, String), Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "cannot read the job `{name}`: {error}\n  hint: `pstrain init {name}` writes a starter job"
        ))
    })?;
    Ok((name, text))
}

fn as_it_is(_: &mut Job) -> Result<(), Failure> {
    Ok(())
}

type Load = fn(&Sources<'_>) -> Result<Resolved, JobErrors>;

/// `load` reads it, and `adjust` changes it before its files are looked at. `more` is given beside the options, and later.
fn validate(
    file: JobText<'_>,
    env: Vec<(String, String)>,
    args: &JobArgs,
    more: &[Override],
    (load, adjust): (Load, impl FnOnce(&mut Job) -> Result<(), Failure>),
) -> Result<Resolved, Failure> {
    let (mut overrides, wrong) = settings(&args.set);
    overrides.extend(options(args).into_iter().chain(more.iter().cloned()));
    let proven = prove(&Sources { file, env, overrides: &overrides }, wrong, (load, adjust))?;
    proven.map_err(|wrong| JobErrors::new(file.name, wrong).into())
}

/// `wrong`: what is known to be wrong already.
fn prove(
    sources: &Sources<'_>,
    mut wrong: Vec<JobError>,
    (load, adjust): (Load, impl FnOnce(&mut Job) -> Result<(), Failure>),
) -> Result<Result<Resolved, Vec<JobError>>, Failure> {
    match load(sources) {
        Ok(mut resolved) => {
            adjust(&mut resolved.job)?;
            wrong.extend(model_files::open(&mut resolved.job, resolved.rank));
            if wrong.is_empty() {
                return Ok(Ok(resolved));
            }
        }
        Err(more) => wrong.extend(more.errors),
    }
    Ok(Err(wrong))
}

/// What `--set` gives, and what of it is not a setting.
fn settings(set: &[String]) -> (Vec<Override>, Vec<JobError>) {
    let (mut settings, mut wrong) = (Vec::new(), Vec::new());
    for setting in set {
        match Override::set(setting) {
            Ok(setting) => settings.push(setting),
            Err(error) => wrong.push(error),
        }
    }
    (settings, wrong)
}

/// What the options with names of their own give.
fn options(args: &JobArgs) -> Vec<Override> {
    let JobArgs { world_size, master_addr, master_port, num_gpus, set: _, profile } = args;
    let mut options = Vec::new();
    let mut number = |option: &str, key: &str, value: Option<u32>| {
        options.extend(value.map(|value| Override::option(option, key, value)));
    };
    number("--world-size", "cluster.world_size", *world_size);
    number("--master-port", "cluster.master_port", master_port.map(u32::from));
    number("--num-gpus", "cluster.num_gpus", *num_gpus);
    options.extend(
        master_addr.as_ref().map(|addr| Override::text("--master-addr", "cluster.master_addr", addr)),
    );
    options.extend(profile.then(|| Override::flag("--profile", "log.profile")));
    options
}

pub fn check(args: &CheckArgs) -> Result<u8, Failure> {
    let resolved = read(&args.job, job::environment_of_all_ranks(), &args.values, &[])?;
    match &resolved.job.work {
        Work::Train(training) => {
            let no_libtorch = libtorch::ensure().err();
            let scripts = look_into_scripts(args, training, &no_libtorch)?;
            let found = look_at_inputs(&resolved.job, training, no_libtorch.is_none())?;
            let mut plan = job::plan(&resolved.job, training, &scripts, found.steps);
            let unseen = not_looked_at(args, &resolved.job, training, no_libtorch.is_none());
            plan.notes.extend(unseen.into_iter().map(|what| format!("not looked at: {what}")));
            // The plan needs no data: it is told also where they are still to be fetched.
            stdout::result(&plan, &plan, args.json)?;
            if !found.wrong.is_empty() {
                return Err(JobErrors::new(&args.job.display().to_string(), found.wrong).into());
            }
        }
        Work::Collectives(demo) => {
            let plan = job::collectives_plan(&resolved.job, demo);
            stdout::result(&plan, &plan, args.json)?;
        }
    }
    Ok(DONE)
}

fn look_at_inputs(
    job: &Job,
    training: &Training,
    has_libtorch: bool,
) -> Result<inputs::DataFindings, Failure> {
    match inputs::missing(job, None) {
        missing if missing.is_empty() => Ok(inputs::look(training, &data_root(job)?, has_libtorch)),
        missing => Ok(inputs::DataFindings { wrong: missing, steps: None }),
    }
}

/// Refuses a job that is about to run and whose data or loss do not fit, as [`check`] does. `root`: the folder that data are
/// read from. For a process without threads.
pub fn try_inputs(path: Option<&Path>, job: &Job, root: &Path) -> Result<(), Failure> {
    let Some(training) = job.training() else { return Ok(()) };
    let wrong = try_data::unfit(training, root)?;
    let name = path.map_or(BUILTIN.name.into(), |path| path.display().to_string());
    if wrong.is_empty() { Ok(()) } else { Err(JobErrors::new(&name, wrong).into()) }
}

/// What a check cannot find out, here or as it was asked for.
fn not_looked_at(args: &CheckArgs, job: &Job, training: &Training, has_libtorch: bool) -> Vec<String> {
    let mut unseen = Vec::new();
    let why = match (args.no_scripts, has_libtorch) {
        (true, _) => Some("`--no-scripts`"),
        (false, false) => Some("there is no libtorch"),
        (false, true) => None,
    };
    let scripts = training.modules.iter().filter_map(|module| module.torchscript());
    for script in scripts.map(|script| script.file.display().to_string()).collect::<BTreeSet<_>>() {
        unseen.extend(why.map(|why| format!("what TorchScript `{script}` computes: {why}")));
    }
    if !has_libtorch {
        unseen.push("the loss of the first samples: there is no libtorch".into());
    }
    if training.loss.from.iter().any(|source| matches!(source, Source::Field(_))) {
        unseen.push("the loss of the first samples: it takes a field of the data as an output".into());
    }
    if meets_others(&job.cluster) {
        unseen.push(
            "data, weights and plug-ins on other machines: each rank looks at its own when it starts".into(),
        );
    }
    unseen
}

/// Whether ranks of other machines can reach rank 0.
fn meets_others(cluster: &Cluster) -> bool {
    let addr = &cluster.master_addr;
    let here = addr == "localhost" || addr.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback());
    cluster.world_size.0 > 1 && !here
}

/// What the job's TorchScript holds; nothing where it is not to be run, or where libtorch, which alone can open it, is not to
/// be had.
fn look_into_scripts(
    args: &CheckArgs,
    training: &Training,
    no_libtorch: &Option<NoLibtorch>,
) -> Result<BTreeMap<PathBuf, ScriptHolds>, Failure> {
    if args.no_scripts || training.modules.iter().all(|module| module.torchscript().is_none()) {
        return Ok(BTreeMap::new());
    }
    if let Some(error) = no_libtorch {
        stderr::line(format_args!("warning: {error}"));
        return Ok(BTreeMap::new());
    }
    let name = args.job.display().to_string();
    let limit = Duration::from_secs(args.script_timeout);
    let found = model_files::look_into_scripts(training, limit, Tried::Apart);
    let found = found.map_err(|wrong| JobErrors::new(&name, wrong))?;
    let wrong = job::beside_scripts(training, &found);
    if wrong.is_empty() { Ok(found) } else { Err(JobErrors::new(&name, wrong).into()) }
}

/// The folder that the dataset plug-in may read.
pub fn data_root(job: &Job) -> Result<PathBuf, Failure> {
    let Work::Train(training) = &job.work else { return Ok(PathBuf::new()) };
    Ok(match &training.data.root {
        DataRoot::Folder(folder) => folder.clone(),
        DataRoot::Builtin(name) => builtin::unpack(name)?,
        DataRoot::Nothing => builtin::empty()?,
    })
}

pub fn init(path: &Path) -> Result<u8, Failure> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| {
        Failure::usage(format!("cannot write `{}`: {error}\n  hint: name another file", path.display()))
    })?;
    file.write_all(job::starter().as_bytes())
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    // Generated, and so written anew where an earlier version has left one.
    let schema = path.with_file_name(job::SCHEMA_FILE);
    std::fs::write(&schema, format!("{:#}\n", job::schema()))
        .with_context(|| format!("cannot write `{}`", schema.display()))?;
    let (path, schema) = (path.display(), schema.display());
    stdout::line(format_args!(
        "wrote {path}, and {schema}, by which an editor completes and checks it\n\n  pstrain check {path}\n  pstrain spawn {path}"
    ))?;
    Ok(DONE)
}

pub fn schema(reference: bool) -> Result<u8, Failure> {
    match reference {
        true => stdout::line(job::reference().trim_end())?,
        false => stdout::as_it_is(format_args!("{:#}", job::schema()))?,
    }
    Ok(DONE)
}
