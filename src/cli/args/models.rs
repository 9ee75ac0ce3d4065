//! The options of commands that use what a run has left: its model, its checkpoints.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::running::JobArgs;
use crate::runner::run_folder::WhichModel;

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
