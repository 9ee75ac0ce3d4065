//! From the options to a proven job; `check` and `init`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

use super::args::{CheckArgs, JobArgs};
use super::exit::{DONE, Failure};
use super::stdout;
use crate::job::{self, JobText, Override, Resolved, Sources};

/// The job that runs where none is named: it trains on data inside the binary.
const BUILTIN: JobText<'static> =
    JobText { name: "digits_ps.toml (built in)", text: include_str!("../../jobs/digits_ps.toml") };

/// The job at `path`, or the built-in one, for a command that is no rank of it.
pub fn load(path: Option<&Path>, args: &JobArgs) -> Result<Resolved, Failure> {
    read(path, job::environment_of_all_ranks(), overrides(args, None)?)
}

/// The job at `path`, for the rank that this process is.
pub fn load_for_rank(path: &Path, args: &JobArgs, rank: Option<u32>) -> Result<Resolved, Failure> {
    read(Some(path), job::environment(), overrides(args, rank)?)
}

fn read(
    path: Option<&Path>,
    env: Vec<(String, String)>,
    overrides: Vec<Override>,
) -> Result<Resolved, Failure> {
    let Some(path) = path else {
        return Ok(job::load(&Sources { file: BUILTIN, env, overrides: &overrides })?);
    };
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "cannot read the job `{name}`: {error}\n  hint: `pstrain init {name}` writes a starter job"
        ))
    })?;
    Ok(job::load(&Sources { file: JobText { name: &name, text: &text }, env, overrides: &overrides })?)
}

fn overrides(args: &JobArgs, rank: Option<u32>) -> Result<Vec<Override>, Failure> {
    let JobArgs { world_size, master_addr, master_port, num_gpus, set } = args;
    let mut overrides = Vec::new();
    for setting in set {
        overrides.push(Override::set(setting).map_err(Failure::usage)?);
    }
    let mut number = |option: &str, key: &str, value: Option<u32>| {
        overrides.extend(value.map(|value| Override::option(option, key, value)));
    };
    number("--world-size", "cluster.world_size", *world_size);
    number("--master-port", "cluster.master_port", master_port.map(u32::from));
    number("--num-gpus", "cluster.num_gpus", *num_gpus);
    number("--rank", "cluster.rank", rank);
    overrides.extend(
        master_addr.as_ref().map(|addr| Override::text("--master-addr", "cluster.master_addr", addr)),
    );
    Ok(overrides)
}

pub fn check(args: &CheckArgs) -> Result<u8, Failure> {
    let resolved = load(Some(&args.job), &args.values)?;
    let plan = job::plan(&resolved.job);
    stdout::result(&plan, &plan, args.json)?;
    Ok(DONE)
}

pub fn init(path: &Path) -> Result<u8, Failure> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| {
        Failure::usage(format!("cannot write `{}`: {error}\n  hint: name another file", path.display()))
    })?;
    file.write_all(job::starter().as_bytes())
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    let path = path.display();
    stdout::line(format_args!("wrote {path}\n\n  pstrain check {path}\n  pstrain spawn {path}"))?;
    Ok(DONE)
}
