//! The options of commands that show a run, or tell others of it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::running::{HERE, JobArgs};

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
pub struct FeedArgs {
    /// The folder of the run
    pub run: PathBuf,
    /// Print it as Prometheus reads it
    #[arg(long)]
    pub prometheus: bool,
    #[command(flatten)]
    pub values: JobArgs,
}
