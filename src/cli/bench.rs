//! `pstrain bench`.

use super::args::{BenchCommand, BenchStepArgs};
use super::exit::{DONE, Failure};
use super::run::data_root;
use super::{job, logs, stdout};
use crate::runner::worker::devices;
use crate::runner::{libtorch, one_process};

pub fn command(command: BenchCommand, look: logs::Wanted) -> Result<u8, Failure> {
    let BenchCommand::Step(args) = command;
    step(&args, look)
}

fn step(args: &BenchStepArgs, look: logs::Wanted) -> Result<u8, Failure> {
    let resolved = job::load(args.job.as_deref(), &args.values)?;
    libtorch::ensure().map_err(Failure::usage)?;
    look.start_logs(None);
    let job = &resolved.job;
    let report = one_process::measure(job, &data_root(job)?, &devices(job), args.steps)?;
    let (steps_per_s, samples_per_s) = (report.steps_per_s, report.samples_per_s);
    let shown = format!(
        "one process  {steps_per_s:.1} steps/s, {samples_per_s:.0} samples/s over {} steps",
        report.steps
    );
    stdout::result(&report, shown, args.json)?;
    Ok(DONE)
}
