//! The options of `pstrain sweep`, as clap reads them.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct SweepArgs {
    /// The job file; without one, the built-in `digits_ps`
    pub job: Option<PathBuf>,
    /// Values that a key takes, each with each of the other keys' (several times: several keys); a value is TOML, or a bare word
    #[arg(long, value_name = "KEY=V1,V2...")]
    pub grid: Vec<String>,
    /// So many draws of values: KEY=LOW..HIGH, evenly in its logarithm with :log behind it, whole numbers between whole ones; or
    /// KEY=V1,V2... Each draw goes with each combination of --grid
    #[arg(long, num_args = 2.., value_names = ["N", "KEY=LOW..HIGH[:log]"])]
    pub random: Vec<String>,
    /// What --random draws by: the same seed draws the same
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub sweep_seed: u64,
    /// Runs side by side, which share the cores
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// More runs than this are refused
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub most_runs: u64,
    /// What runs are compared by: eval.NAME of the validations (:min or :max behind it, where it is not known which is better), or
    /// loss, that of training [default: the job's eval.best, else eval.loss, else loss]
    #[arg(long, value_name = "FIGURE")]
    pub by: Option<String>,
    /// Stop runs that have fallen behind (successive halving): at each rung the best third goes on, by this figure [default: that of
    /// --by]
    #[arg(long, value_name = "FIGURE", num_args = 0..=1, default_missing_value = "")]
    pub halving: Option<String>,
    /// Where --halving compares: by which validations of a run, or epochs for loss, counted from 1 [default: a third of the way, a
    /// third of that, ...]
    #[arg(long, value_name = "N1,N2...", value_delimiter = ',', requires = "halving", value_parser = clap::value_parser!(u64).range(1..))]
    pub rungs: Vec<u64>,
    /// Folder for the runs, sweep.json and the job [default: runs/NAME-sweep-TIME]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Go on with the sweep in --dir: what has not ended, or has failed, from its last checkpoint
    #[arg(long, requires = "dir")]
    pub resume: bool,
    /// Ranks in each job [job key: cluster.world_size]
    #[arg(long, value_name = "N")]
    pub world_size: Option<u32>,
    /// GPUs that a rank may use [job key: cluster.num_gpus]
    #[arg(long, value_name = "G")]
    pub num_gpus: Option<u32>,
    /// Set any key of the job, in all runs; VALUE is TOML, or a bare word
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print what has become of the runs as JSON on stdout, as in sweep.json
    #[arg(long)]
    pub json: bool,
}
