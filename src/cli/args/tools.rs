//! The options of commands that make and check plug-ins, and that fetch data.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use crate::plugin::author::{Kind as PluginKind, Lang};
use crate::plugin::check::Sketch;

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
