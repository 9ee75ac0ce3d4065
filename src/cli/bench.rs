//! `pstrain bench`: what one process does with a job, to compare its ranks with, and what calls and collectives take.

use std::time::Duration;

use anyhow::Context as _;
use c10d::{Options, ProcessGroup, Store};
use serde::Serialize;

use super::args::{BenchCollectivesArgs, BenchCommand, BenchRpcArgs, BenchStepArgs};
use super::exit::{DONE, Failure};
use super::{job, logs, spawn, stdout};
use crate::files;
use crate::job::{Job, Resolved, Training};
use crate::rpc::{Mesh, MeshConfig, Token, Transports};
use crate::runner::launch::{self, Forked, Grace};
use crate::runner::{call_times, collective_times, devices, libtorch, one_process};
use crate::topology::{Rank, WorldSize};

pub fn command(command: BenchCommand, look: logs::Wanted) -> Result<u8, Failure> {
    match command {
        BenchCommand::Step(args) => step(&args, look),
        BenchCommand::Data(args) => data(&args, look),
        BenchCommand::Rpc(args) => rpc(&args, look),
        BenchCommand::Collectives(args) => collectives(&args, look),
    }
}

/// The job, read in a process that has libtorch.
fn read_job(args: &BenchStepArgs, look: logs::Wanted) -> Result<Resolved, Failure> {
    let resolved = job::load(args.job.as_deref(), &args.values)?;
    libtorch::ensure().map_err(Failure::usage)?;
    look.start_logs(None);
    Ok(resolved)
}

fn training(job: &Job) -> Result<&Training, Failure> {
    job.training().ok_or_else(|| {
        Failure::usage("this job trains no model\n  hint: `pstrain bench collectives` measures what it does")
    })
}

fn step(args: &BenchStepArgs, look: logs::Wanted) -> Result<u8, Failure> {
    let resolved = read_job(args, look)?;
    let job = &resolved.job;
    let training = training(job)?;
    let devices = devices::first(job.cluster.num_gpus, 0);
    let report = one_process::measure(training, &job::data_root(job)?, &devices, args.steps)?;
    let (steps_per_s, samples_per_s) = (report.steps_per_s, report.samples_per_s);
    let shown = format!(
        "one process  {steps_per_s:.1} steps/s, {samples_per_s:.0} samples/s over {} steps",
        report.steps
    );
    stdout::result(&report, shown, args.json)?;
    Ok(DONE)
}

/// What a data plug-in gives when nobody does anything with it.
#[derive(Serialize)]
struct DataRate {
    batches: u64,
    samples_per_s: f64,
    batches_per_s: f64,
}

fn data(args: &BenchStepArgs, look: logs::Wanted) -> Result<u8, Failure> {
    let resolved = read_job(args, look)?;
    let training = training(&resolved.job)?;
    let report = one_process::measure_data(training, &job::data_root(&resolved.job)?, args.steps)?;
    let rate = DataRate {
        batches: report.steps,
        samples_per_s: report.samples_per_s,
        batches_per_s: report.steps_per_s,
    };
    let shown = format!(
        "data  {:.0} samples/s in batches of {}, {:.0} batches/s over {}",
        rate.samples_per_s, training.train.batch_size, rate.batches_per_s, rate.batches
    );
    stdout::result(&rate, shown, args.json)?;
    Ok(DONE)
}

/// A rank that ends early ends the others' operations at once; this is for one that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn rpc(args: &BenchRpcArgs, look: logs::Wanted) -> Result<u8, Failure> {
    libtorch::ensure().map_err(Failure::usage)?;
    let listen = launch::bind_master("127.0.0.1", 0)?;
    let master = listen.local_addr().context("the socket that rank 0 listens at").map_err(Failure::from)?;
    let names = vec!["caller".to_owned(), "callee".to_owned()];
    let token = Token::random();
    let local = match launch::fork_ranks(names.clone(), Some(listen))? {
        Forked::Parent(supervisor) => {
            return spawn::supervise(supervisor, names, Grace::to_end(Duration::from_secs(5)), look);
        }
        Forked::Rank(local) => local,
    };
    look.start_logs(None);
    tch::set_num_threads(1);
    let usual = MeshConfig::new(local.rank, WorldSize(2), master.to_string());
    let transports = args.transport.map_or(usual.transports, Transports::only);
    let config = MeshConfig { listen: local.listen, transports, token: Some(token), ..usual };
    let mesh = Mesh::join(config, call_times::methods()).map_err(anyhow::Error::from)?;
    if local.rank == Rank(0) {
        let sizes: Vec<u64> = args.sizes.iter().map(|size| size.0).collect();
        let times = call_times::measure(&mesh, &sizes)?;
        stdout::result(&times, &times, args.json)?;
    }
    mesh.shutdown().map_err(|lost| anyhow::anyhow!("{lost}"))?;
    Ok(DONE)
}

fn collectives(args: &BenchCollectivesArgs, look: logs::Wanted) -> Result<u8, Failure> {
    libtorch::ensure().map_err(Failure::usage)?;
    // The ranks meet in a file: there is no port to be chosen, and nobody else to come.
    let folder =
        files::temporary_folder(&std::env::temp_dir()).context("no folder for the ranks to meet in")?;
    let names: Vec<String> = (0..args.world_size).map(|rank| format!("rank{rank}")).collect();
    let local = match launch::fork_ranks(names.clone(), None)? {
        Forked::Parent(supervisor) => {
            return spawn::supervise(supervisor, names, Grace::to_end(Duration::from_secs(5)), look);
        }
        Forked::Rank(local) => local,
    };
    // The parent's to delete.
    let meeting = folder.keep().join("meet");
    look.start_logs(None);
    tch::set_num_threads(1);
    let store = Store::file(&meeting, args.world_size).map_err(anyhow::Error::from)?;
    let options = Options { backend: args.backend, timeout: PATIENCE, ..Options::default() };
    let group =
        ProcessGroup::new(&store, local.rank.0, args.world_size, options).map_err(anyhow::Error::from)?;
    let operations =
        if args.operations.is_empty() { &collective_times::MEASURED[..] } else { &args.operations };
    let sizes: Vec<u64> = args.sizes.iter().map(|size| size.0).collect();
    let times = collective_times::measure(&group, operations, &args.dtypes, &sizes)?;
    if group.rank() == 0 {
        stdout::result(&times, &times, args.json)?;
    }
    // Nobody leaves while another still waits for it.
    group.barrier().map_err(anyhow::Error::from)?;
    Ok(DONE)
}
