//! The options of commands that run jobs, or check them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::runner::model_files::SCRIPT_LIMIT;

/// This machine, and a port that is free.
pub(super) const HERE: &str = "127.0.0.1:0";

/// What `run`, `spawn` and `check` take; each is a value of the job, given later than the file and the environment.
#[derive(Args, Clone)]
pub struct JobArgs {
    /// Ranks in the whole job [job key: cluster.world_size]
    #[arg(long, value_name = "N")]
    pub world_size: Option<u32>,
    /// Where rank 0 listens [job key: cluster.master_addr]
    #[arg(long, value_name = "ADDR")]
    pub master_addr: Option<String>,
    /// The port that rank 0 listens on [default: 29500; `spawn` finds a free one] [job key: cluster.master_port]
    #[arg(long, value_name = "PORT")]
    pub master_port: Option<u16>,
    /// GPUs that a rank may use [job key: cluster.num_gpus]
    #[arg(long, value_name = "G")]
    pub num_gpus: Option<u32>,
    /// Set any key of the job; VALUE is TOML, or a bare word
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Write what every rank did when to trace.json in the run folder, for ui.perfetto.dev [job key: log.profile]
    #[arg(long)]
    pub profile: bool,
}

/// Where the results of a run go.
#[derive(Args)]
pub struct OutputArgs {
    /// Folder for metrics, summary and model [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Remove what an earlier run has left in the folder of --run-dir
    #[arg(long, requires = "run_dir")]
    pub overwrite: bool,
    /// Go on from a checkpoint, or from the newest of a run or in s3://BUCKET/PREFIX; `auto`: from that of this job's newest run (or
    /// of --run-dir), or in the bucket that the job saves to, if there is one
    #[arg(long, value_name = "DIR|auto", conflicts_with = "overwrite")]
    pub resume: Option<String>,
    /// Have rank 0 serve a page of the run while it goes on, at this address [default: 127.0.0.1 and a free port]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = HERE)]
    pub dashboard: Option<SocketAddr>,
    /// Print the summary as JSON on stdout, with the run folder and the whole job
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct RunArgs {
    /// The job file
    pub job: PathBuf,
    /// This process's rank; 0 is where the others meet
    #[arg(long, value_name = "R")]
    pub rank: Option<u32>,
    /// Progress goes among the lines of stderr to whoever started this rank and others, and draws for all of them.
    #[arg(long, hide = true)]
    pub merged: bool,
    #[command(flatten)]
    pub values: JobArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args)]
pub struct SpawnArgs {
    /// The job file; without one, the built-in `digits_ps` on the data inside the binary
    pub job: Option<PathBuf>,
    #[command(flatten)]
    pub values: JobArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub restarts: RestartArgs,
    /// Ends in order when this process, which has started it, is gone
    #[arg(long, value_name = "PID", hide = true)]
    pub with_parent: Option<i32>,
}

/// What becomes of a job that has lost a rank.
#[derive(Args)]
pub struct RestartArgs {
    /// Begin again from the last checkpoint when a rank is lost, so many times at most
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub restarts: u32,
    /// Which attempt this is
    #[arg(long, default_value_t = 1, hide = true)]
    pub attempt: u32,
}

#[derive(Args)]
pub struct CheckArgs {
    /// The job file
    pub job: PathBuf,
    #[command(flatten)]
    pub values: JobArgs,
    /// Print the plan as JSON
    #[arg(long)]
    pub json: bool,
    /// How long a TorchScript module may take to load and to compute a batch of two
    #[arg(long, value_name = "SECONDS", default_value_t = SCRIPT_LIMIT.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    pub script_timeout: u64,
    /// Do not run the job's TorchScript: it is code, and may be somebody else's
    #[arg(long)]
    pub no_scripts: bool,
}
