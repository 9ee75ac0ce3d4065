//! The options of commands that measure.

use std::path::PathBuf;

use c10d::Backend;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::running::JobArgs;
use crate::job::Operation;
use crate::rpc::Transport;
use crate::runner::collective_times::{DTYPES, MEASURED};

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
