//! The options of every command, as clap reads them.

mod bench;
mod models;
mod running;
mod tools;
mod watching;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::launch::LaunchCommand;
use super::sweep::args::SweepArgs;
use crate::runner::progress::ColorChoice;
pub use bench::{BenchCollectivesArgs, BenchCommand, BenchRpcArgs, BenchStepArgs};
pub use models::{
    CheckpointCommand, CheckpointExportArgs, EvalArgs, ExportArgs, ExportFormat, ModelArgs, PredictArgs,
};
pub use running::{CheckArgs, JobArgs, OutputArgs, RestartArgs, RunArgs, SpawnArgs};
pub use tools::{DataCommand, DataSet, PluginCommand};
pub use watching::{DashboardArgs, FeedArgs, FollowArgs, ReportArgs};

/// What `init` writes where no other file is named.
pub const STARTER_FILE: &str = "job.toml";

/// Trains PyTorch-class models over many processes and machines from a TOML job file.
#[derive(Parser)]
#[command(
    name = "pstrain",
    version,
    long_version = super::version::LONG.as_str(),
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Examples:
  pstrain spawn --world-size 4                  train the built-in digits job
  pstrain init my_job.toml                      write a commented starter job
  pstrain check my_job.toml                     check it and print the plan
  pstrain spawn my_job.toml --world-size 4      all ranks on this machine
  pstrain run my_job.toml --rank 0              one rank; start the others elsewhere
  pstrain launch slurm my_job.toml --nodes 4    a script that starts all of them on a cluster
  pstrain plugin new my_data --lang rust        a data plug-in of your own"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// When to use colours and redrawn lines.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,

    /// More of what happens inside, on stderr (twice: everything).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run one rank of a job
    #[command(after_help = "\
Every rank is a process of its own, on this machine or on several:
  pstrain run jobs/mnist_ps.toml --world-size 2 --rank 0 --master-addr 10.0.0.1
  pstrain run jobs/mnist_ps.toml --world-size 2 --rank 1 --master-addr 10.0.0.1

Ranks on other machines need the same PSTRAIN_TOKEN everywhere (`pstrain token` prints one); without one, rank 0 listens on
this machine only, to processes of its own user.
RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and what mpirun, srun, indexed Jobs of Kubernetes, Kubeflow and SkyPilot set are
understood, too. `pstrain launch` writes what schedulers want.

Exit codes: 0 done; 1 the job failed; 2 bad usage or job file; 3 a rank was lost or never came; 130 interrupted;
143 stopped by SIGTERM, with a checkpoint")]
    Run(RunArgs),
    /// Run all ranks of a job on this machine
    #[command(after_help = "\
Examples:
  pstrain spawn --world-size 4
  pstrain spawn jobs/mnist_ps.toml --world-size 4 --set train.consistency=bsp
  pstrain spawn jobs/mnist_ps.toml --set data.root=/data/mnist --set optimizer.lr=0.01
  pstrain spawn jobs/mnist_ps.toml --set checkpoint.every_seconds=600 --resume auto --restarts 3

Exit codes: 0 done; 1 the job failed; 2 bad usage or job file; 3 a rank was lost or never came; 130 interrupted;
143 stopped by SIGTERM, with a checkpoint")]
    Spawn(SpawnArgs),
    /// Write what a scheduler wants to run a job on several machines, or hand it in
    #[command(subcommand)]
    Launch(LaunchCommand),
    /// Run a job many times, with many values of some of its keys, and tell which are best
    #[command(after_help = "\
Examples:
  pstrain sweep job.toml --grid optimizer.lr=0.1,0.01,0.001 --grid train.batch_size=32,64 --jobs 2
  pstrain sweep job.toml --random 20 optimizer.lr=1e-4..0.1:log train.batch_size=16..128 --jobs 4
  pstrain sweep job.toml --random 27 optimizer.lr=1e-4..0.1:log --set eval.every_epochs=1 --halving eval.accuracy
  pstrain sweep job.toml --grid optimizer.lr=0.1,0.01 --dir runs/lr --resume

Runs go to folders of their own in --dir; sweep.json there has what has become of each. Ctrl-C ends those under way, with a
checkpoint where the job saves any, and the table is printed all the same.

Exit codes: 0 done; 1 a run failed, the others went on; 2 bad usage or job file; 130 interrupted; 143 stopped by SIGTERM")]
    Sweep(SweepArgs),
    /// Measure the model of a run on its test data
    #[command(after_help = "\
The ranks of the job hold the model, as they did when it was trained, all of them on this machine.

Examples:
  pstrain eval runs/digits_ps-20261123-101500
  pstrain eval runs/digits_ps-20261123-101500 --best --json
  pstrain eval runs/clicks-20261123-101500 --set data.test.file=tuesday.csv --set 'eval.metrics=[\"auc\"]'")]
    Eval(EvalArgs),
    /// Write the outputs of a run's model for each sample of its test data
    #[command(after_help = "\
Examples:
  pstrain predict runs/digits_ps-20261123-101500 --out scores.csv --field label
  pstrain predict runs/clicks-20261123-101500 --out scores.npy --set data.test.file=tuesday.csv --one-rank

A row for each sample, in the order of the data: the fields that are asked for, then what the model gives to the loss.")]
    Predict(PredictArgs),
    /// Check a job, its data and its plug-ins without running it, and print the plan
    #[command(after_help = "\
Examples:
  pstrain check job.toml --world-size 8
  pstrain check job.toml --set optimizer.lr=0.01 --json")]
    Check(CheckArgs),
    /// Tell where the time of a run's steps goes, what limits it, and what to change
    #[command(after_help = "\
Examples:
  pstrain explain runs/digits_ps-20261123-101500
  pstrain explain runs/digits_ps-20261123-101500 --json

A run with --profile is told by step, too.")]
    Explain {
        /// The run folder
        run: PathBuf,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Look what this machine has of what jobs need, what is wrong, and how to mend it; or why a run stands still
    #[command(after_help = "\
Examples:
  pstrain doctor
  pstrain doctor --json
  pstrain doctor runs/digits_ps-20261123-101500      who waits for whom, and which rank and what is the cause

The ranks of a run that are on this machine write what they did last to flight/ in its folder, as after `kill -USR1`.

Exit codes: 0 jobs run here, or the run moves; 1 something has to be mended first, or a rank holds the run up")]
    Doctor {
        /// The folder of a run that stands still
        #[arg(conflicts_with = "inside")]
        run: Option<PathBuf>,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
        /// What a process finds that has libtorch.
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// Serve a page of a run, as it goes on or as it ended
    #[command(after_help = "\
Examples:
  pstrain dashboard runs/digits_ps-20261123-101500
  pstrain dashboard runs/digits_ps-20261123-101500 --at 127.0.0.1:8080
  pstrain spawn job.toml --dashboard              a run that is watched from its beginning

From another machine: `ssh -L 8080:127.0.0.1:8080 HOST`. At an address that others reach, the page is for those who have PSTRAIN_TOKEN.")]
    Dashboard(DashboardArgs),
    /// Serve a run and tell others of it, until stdin ends
    #[command(hide = true)]
    Follow(FollowArgs),
    /// Write the page of a run, or of several beside one another, as one file
    #[command(after_help = "\
Examples:
  pstrain report runs/digits_ps-20261123-101500
  pstrain report runs/sweep/* --out sweep.html

A run writes its own report.html when it ends. The file loads nothing from elsewhere.")]
    Report(ReportArgs),
    /// Print what completes commands and options in a shell
    #[command(after_help = "\
Examples:
  pstrain completions bash > ~/.local/share/bash-completion/completions/pstrain
  pstrain completions zsh > ~/.zfunc/_pstrain
  pstrain completions fish > ~/.config/fish/completions/pstrain.fish")]
    Completions { shell: clap_complete::Shell },
    /// Write the man pages, one for each command
    #[command(after_help = "\
Example:
  pstrain man ~/.local/share/man/man1 && man pstrain-spawn")]
    Man {
        /// The folder to write them to
        folder: PathBuf,
    },
    /// Write a commented starter job
    Init {
        /// The file to write; it must not exist yet.
        #[arg(default_value = STARTER_FILE)]
        path: PathBuf,
    },
    /// Write the model of a finished run as a program of its own, beside its weights
    #[command(after_help = "\
Examples:
  pstrain export runs/digits_ps-20261120-213305 --to python
  pstrain export runs/dlrm-20261120-213305 --to python --out dlrm --force

model.py has a class for each module of the job, and `Model` for all of them, in plain PyTorch.
Its `load(folder)` gives the model with its weights.")]
    Export(ExportArgs),
    /// Tell a run to TensorBoard, an OpenTelemetry collector or MLflow, or print it as Prometheus reads it
    #[command(after_help = "\
Examples:
  pstrain feed runs/digits_ps-20261123-101500 --set log.tensorboard=tensorboard
  pstrain feed runs/digits_ps-20261123-101500 --set log.mlflow=http://localhost:5000
  pstrain feed runs/digits_ps-20261123-101500 --prometheus

A run whose job names them tells them while it goes on.")]
    Feed(FeedArgs),
    /// List the runs in a folder: their state, steps, validations, checkpoints
    #[command(after_help = "\
Examples:
  pstrain runs
  pstrain runs /data/runs --json")]
    Runs {
        /// The folder with run folders [default: runs]
        folder: Option<PathBuf>,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Watch a run in this terminal: loss, validations, ranks and what their time goes into
    #[command(after_help = "\
Examples:
  pstrain top runs/digits_ps-20261120-213305
  pstrain top                                    the newest run in runs/
  pstrain top 127.0.0.1:43817                    where a dashboard is, as --dashboard tells; its token is PSTRAIN_TOKEN
  pstrain top runs/digits_ps-20261120-213305 | cat    as it is now, as text

Keys: q quits, tab and the arrows go from pane to pane, ? tells the others. The run does not notice that it is watched.")]
    Top {
        /// The folder of a run, under way or ended, or the address of its dashboard [default: the newest in runs]
        #[arg(value_name = "RUN|ADDR")]
        run: Option<PathBuf>,
    },
    /// List, check and export the checkpoints of a run
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Print the JSON Schema of job files, by which an editor completes and checks them
    #[command(after_help = "\
A line `#:schema ./pstrain.schema.json` at the top of a job tells taplo, and VS Code with Even Better TOML, where it is:
  pstrain schema > pstrain.schema.json")]
    Schema {
        /// Print the reference of all keys instead, in Markdown
        #[arg(long)]
        reference: bool,
    },
    /// Make, build and check plug-ins of your own
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Print a join token that nobody guesses, for PSTRAIN_TOKEN on all ranks
    #[command(after_help = "\
Make it once, and set the same one wherever a rank runs:
  export PSTRAIN_TOKEN=$(pstrain token)")]
    Token,
    /// Fetch data sets
    #[command(subcommand)]
    Data(DataCommand),
    /// Measure a job's step in one process, its data, calls between ranks, or collectives
    #[command(subcommand)]
    Bench(BenchCommand),
}
