//! The options of every command, as clap reads them.

use std::net::SocketAddr;
use std::path::PathBuf;

use c10d::Backend;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use super::launch::LaunchCommand;
use super::sweep::args::SweepArgs;
use crate::job::Operation;
use crate::plugin::author::{Kind as PluginKind, Lang};
use crate::plugin::check::Sketch;
use crate::rpc::Transport;
use crate::runner::collective_times::{DTYPES, MEASURED};
use crate::runner::model_files::SCRIPT_LIMIT;
use crate::runner::progress::ColorChoice;
use crate::runner::run_folder::WhichModel;

/// This machine, and a port that is free.
const HERE: &str = "127.0.0.1:0";

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
    /// Serve a page of the run while it goes on, at this address [default: 127.0.0.1 and a free port]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = HERE)]
    pub dashboard: Option<SocketAddr>,
    /// Print the summary as JSON on stdout, with the run folder and the whole job
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct DashboardArgs {
    /// The run folder
    pub run: PathBuf,
    /// Where to serve it; beyond this machine only to those who have PSTRAIN_TOKEN
    #[arg(long, value_name = "ADDR", default_value = HERE)]
    pub at: SocketAddr,
}

#[derive(Args)]
pub struct FollowArgs {
    /// The run folder
    pub run: PathBuf,
    /// Where to serve it, if it is to be served
    #[arg(long, value_name = "ADDR")]
    pub at: Option<SocketAddr>,
}

#[derive(Args)]
pub struct ReportArgs {
    /// Run folders; several are drawn beside one another
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// The file to write [default: report.html in the run folder, or here for several]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
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

/// Which of a run's models.
#[derive(Args)]
pub struct WhichArgs {
    /// The model of the best validation, not the last one
    #[arg(long)]
    best: bool,
    /// The moving average of the weights, not the last ones
    #[arg(long, conflicts_with = "best")]
    ema: bool,
}

impl WhichArgs {
    pub fn model(&self) -> WhichModel {
        match (self.best, self.ema) {
            (true, _) => WhichModel::Best,
            (false, true) => WhichModel::Average,
            (false, false) => WhichModel::Last,
        }
    }
}

/// A model that was trained.
#[derive(Args)]
pub struct ModelArgs {
    /// The folder of the run
    pub run: PathBuf,
    #[command(flatten)]
    pub which: WhichArgs,
    /// Hold and compute everything in one process, not on the ranks of the job
    #[arg(long)]
    pub one_rank: bool,
    #[command(flatten)]
    pub values: JobArgs,
}

#[derive(Args)]
pub struct FeedArgs {
    /// The folder of the run
    pub run: PathBuf,
    /// Print it as Prometheus reads it
    #[arg(long)]
    pub prometheus: bool,
    #[command(flatten)]
    pub values: JobArgs,
}

#[derive(Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct PredictArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where the outputs go; its ending says how: .csv, .jsonl, .npy, .safetensors
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// A field of the data to pass through, in front of the outputs (several times: several)
    #[arg(long, value_name = "NAME")]
    pub field: Vec<String>,
    /// Write over a file that is there
    #[arg(long)]
    pub overwrite: bool,
}

#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// List the checkpoints of a run
    List {
        /// The run folder, a folder of checkpoints, or s3://BUCKET/PREFIX
        run: PathBuf,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare each file of checkpoints with the size and the SHA-256 that it was written with
    Verify {
        /// The run folder, a folder of checkpoints, a checkpoint, or s3://BUCKET/PREFIX
        run: PathBuf,
    },
    /// Write the model of a checkpoint to one safetensors file
    #[command(after_help = "\
Examples:
  pstrain checkpoint export runs/mnist_ps-20260901-120000 --out model.safetensors
  pstrain checkpoint export runs/mnist_ps-20260901-120000/checkpoints/step-0000001200 --out model.safetensors

Another job starts a module from the file, or from the checkpoint itself, with modules.NAME.weights. Of a table that was cut over
ranks the file has the rows that were used, as NAME.weight, and their ids, as NAME.ids; weights reads these, too.")]
    Export(CheckpointExportArgs),
}

#[derive(Args)]
pub struct CheckpointExportArgs {
    /// A checkpoint, or the run folder or s3://BUCKET/PREFIX, for its newest whole one
    pub run: PathBuf,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The moving averages of the weights, not the weights
    #[arg(long)]
    pub ema: bool,
    /// Write over a file that is there
    #[arg(long)]
    pub overwrite: bool,
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

#[derive(Args)]
pub struct ExportArgs {
    /// The run folder
    pub run: PathBuf,
    /// In which language
    #[arg(long, value_name = "FORMAT")]
    pub to: ExportFormat,
    /// Folder to write to [default: export in the run folder]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub which: WhichArgs,
    /// Write over files that are there
    #[arg(long)]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A torch.nn.Module in model.py
    Python,
}

#[derive(Subcommand)]
pub enum PluginCommand {
    /// Start a plug-in: a folder with a working example
    New {
        /// Name of the plug-in and of its folder
        name: String,
        /// Language to write it in
        #[arg(long, default_value = "rust")]
        lang: Lang,
        /// What it gives a job: samples, a loss over tensors, a loss with a gradient of its own, or a metric
        #[arg(long, default_value = "dataset")]
        kind: PluginKind,
        /// Parent folder
        #[arg(long, default_value = ".", value_name = "DIR")]
        into: PathBuf,
    },
    /// Compile a plug-in's folder to a .wasm file, with whichever toolchain is there
    Build {
        /// The plug-in's folder
        #[arg(default_value = ".")]
        folder: PathBuf,
        /// The file to write [default: NAME.wasm in the folder]
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Load a plug-in, call it, and print its shape, speed and limits
    #[command(after_help = "\
Examples:
  pstrain plugin check my_data.wasm --root . --config '{ file = \"example.csv\", target = \"y\" }'
  pstrain plugin check cross_entropy --outputs float32[8,10] --targets int64[8]
  pstrain plugin check my_metric.wasm --config '{ tolerance = 0.1 }'")]
    Check {
        /// A .wasm file, or the name of a built-in plug-in
        plugin: String,
        /// Its parameters, a TOML inline table or JSON object
        #[arg(long, default_value = "{}", value_name = "TABLE")]
        config: String,
        /// The folder that a dataset may read
        #[arg(long, default_value = ".", value_name = "DIR")]
        root: PathBuf,
        /// Shape of a model's output to try a loss or a metric with, as `float32[8,10]`; may be given several times
        #[arg(long, value_name = "SHAPE")]
        outputs: Vec<Sketch>,
        /// Shape of a target, as `int64[8]`; may be given several times
        #[arg(long, value_name = "SHAPE")]
        targets: Vec<Sketch>,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Compile the plug-in on the standard input for another process
    #[command(hide = true)]
    Compile {
        #[arg(long)]
        time_ms: u64,
        #[arg(long)]
        memory_mb: u64,
        #[arg(long)]
        cache: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
pub enum DataCommand {
    /// Fetch a data set from its public mirrors and check it
    #[command(after_help = "Example:\n  pstrain data fetch mnist --to data/mnist")]
    Fetch {
        /// The data set
        set: DataSet,
        /// Folder to put it in [default: data/NAME]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataSet {
    Mnist,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Train a job's model in one process, without any call: what its ranks are to be measured against
    Step(BenchStepArgs),
    /// Time calls between two ranks on this machine: small ones, many at once, and with tensors
    #[command(after_help = "\
Examples:
  pstrain bench rpc
  pstrain bench rpc --sizes 100K,16M --json")]
    Rpc(BenchRpcArgs),
    /// Time the collectives of a process group, with all its ranks on this machine
    #[command(after_help = "\
Examples:
  pstrain bench collectives
  pstrain bench collectives --world-size 4 --operations all_reduce,all_gather --sizes 4K,1M,64M --dtypes f32,bf16")]
    Collectives(BenchCollectivesArgs),
    /// Fetch a job's training data and do nothing with it: what its data plug-in gives
    #[command(after_help = "\
Examples:
  pstrain bench data
  pstrain bench data jobs/mnist_ps.toml --steps 2000 --json")]
    Data(BenchStepArgs),
}

#[derive(Args)]
pub struct BenchRpcArgs {
    /// Bytes of each tensor: a number with K, M or nothing behind it
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4K,100K,1M,16M,64M,256M")]
    pub sizes: Vec<Size>,
    /// How tensors travel that do not fit into a message [default: the fastest that works here]
    #[arg(long, value_name = "TRANSPORT", value_parser = one_of(Transport::NAMES))]
    pub transport: Option<Transport>,
    /// Print the times as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchCollectivesArgs {
    /// Ranks to fork
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=256))]
    pub world_size: u32,
    /// What to time [default: all that move data]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = one_of(MEASURED.map(|operation| (operation.name(), operation))))]
    pub operations: Vec<Operation>,
    /// Bytes of each tensor: a number with K, M or nothing behind it
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4K,64K,1M,16M,64M")]
    pub sizes: Vec<Size>,
    /// Their elements
    #[arg(long, value_name = "DTYPES", value_delimiter = ',', default_value = "f32", value_parser = one_of(DTYPES))]
    pub dtypes: Vec<tch::Kind>,
    /// What carries them: `nccl` wants a GPU for each rank
    #[arg(long, default_value = "gloo", value_parser = one_of([("gloo", Backend::Gloo), ("nccl", Backend::Nccl)]))]
    pub backend: Backend,
    /// Print the times as JSON
    #[arg(long)]
    pub json: bool,
}

/// A value by its name.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    names: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let value =
        move |name: String| names.iter().find(|(known, _)| *known == name).expect("clap has seen to that").1;
    PossibleValuesParser::new(names.map(|(name, _)| name)).map(value)
}

/// Bytes, written as `4096`, `4K` or `64M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        const MOST: u64 = 4 << 30;
        let (digits, unit) = match text.to_ascii_uppercase().as_str() {
            upper if upper.ends_with('K') => (text.len() - 1, 1 << 10),
            upper if upper.ends_with('M') => (text.len() - 1, 1 << 20),
            _ => (text.len(), 1),
        };
        let number: u64 = text[..digits].parse().map_err(|_| "write it like 4096, 64K or 16M".to_owned())?;
        match number.checked_mul(unit) {
            Some(bytes @ 1..=MOST) => Ok(Size(bytes)),
            _ => Err("use 1 to 4096M".into()),
        }
    }
}

#[derive(Args)]
pub struct BenchStepArgs {
    /// The job file; without one, the built-in `digits_ps`
    pub job: Option<PathBuf>,
    /// Steps to take, or batches to fetch; 0 is all of one trainer
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub steps: u64,
    #[command(flatten)]
    pub values: JobArgs,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
}
