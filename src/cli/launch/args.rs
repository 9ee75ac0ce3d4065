//! The options of `pstrain launch`, as clap reads them.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub enum LaunchCommand {
    /// A script for sbatch, which saves before the time limit, is queued again and goes on
    #[command(after_help = "\
Examples:
  pstrain launch slurm job.toml --nodes 4 --ranks-per-node 2 --time 4:00:00 > job.sbatch
  pstrain launch slurm job.toml --nodes 4 --partition gpu --num-gpus 1 --time 4:00:00 --submit")]
    Slurm(SlurmArgs),
    /// Manifests of an indexed Job, a JobSet or a TrainJob, with all they need but a Secret and a claim
    #[command(after_help = "\
Examples:
  pstrain launch kubernetes job.toml --nodes 4 --image registry/pstrain:1 --claim data > job.yaml
  pstrain launch kubernetes job.toml --nodes 4 --image registry/pstrain:1 --claim data --as jobset --submit")]
    Kubernetes(KubernetesArgs),
    /// A rank on each of these machines by ssh, with their output merged as `spawn` merges it
    #[command(after_help = "\
Examples:
  pstrain launch ssh job.toml --hosts hosts.txt --submit
  pstrain launch ssh job.toml --nodes node1,node2 --ranks-per-node 2 --submit

A line of the hosts file is a machine as ssh knows it, and may say how many ranks it has:
  node1 slots=2      # ranks 0 and 1
  me@node2")]
    Ssh(SshArgs),
    /// A component for `torchx run`
    #[command(after_help = "\
Examples:
  pstrain launch torchx job.toml --nodes 4 > component.py && torchx run -s local_cwd component.py:pstrain
  pstrain launch torchx job.toml --nodes 4 --submit")]
    Torchx(TorchxArgs),
}

/// What each scheduler is told of a job.
#[derive(Args)]
pub struct CommonArgs {
    /// The job file
    pub job: PathBuf,
    /// What the scheduler calls it [default: the job's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// GPUs that a rank may use [job key: cluster.num_gpus]
    #[arg(long, visible_alias = "gpus", value_name = "G")]
    pub num_gpus: Option<u32>,
    /// The port that rank 0 listens on
    #[arg(long, visible_alias = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub master_port: Option<u16>,
    /// Folder of the run, as the ranks see it
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Set any key of the job; VALUE is TOML, or a bare word
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// A variable for the ranks (several times: several); not for secrets
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// The program, as the ranks' machines know it [default: as it was called here; in an image: pstrain]
    #[arg(long, value_name = "PATH")]
    pub program: Option<String>,
    /// Hand it in instead of printing it
    #[arg(long)]
    pub submit: bool,
}

#[derive(Args)]
pub struct SlurmArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Nodes to ask for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// Ranks on each of them
    #[arg(long, visible_alias = "tasks-per-node", value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_node: u32,
    /// Time limit: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES:SECONDS
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// How long before the time limit a checkpoint is saved, in seconds [default: what checkpoint.grace_ms takes, and a minute]
    #[arg(long, value_name = "SECONDS")]
    pub save_before: Option<u64>,
    /// The partition
    #[arg(long, value_name = "NAME")]
    pub partition: Option<String>,
    /// The account that pays
    #[arg(long, value_name = "NAME")]
    pub account: Option<String>,
    /// The quality of service
    #[arg(long, value_name = "NAME")]
    pub qos: Option<String>,
    /// Cores for each rank
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus_per_rank: Option<u32>,
    /// Memory on each node, as Slurm writes it: 64G
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// File for the output [default: NAME-%j.log]
    #[arg(long, value_name = "FILE")]
    pub output: Option<String>,
    /// How often it is queued again when a rank was lost; the time limit does not count
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub restarts: u32,
    /// One more option for sbatch (several times: several): --sbatch=--constraint=v100
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub sbatch: Vec<String>,
}

/// What a job is to Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KubernetesKind {
    /// An indexed Job with a headless Service: needs nothing installed
    Job,
    /// A JobSet (jobset.x-k8s.io), which starts all ranks anew together
    Jobset,
    /// A TrainJob of Kubeflow with a TrainingRuntime of its own
    Trainjob,
}

#[derive(Args)]
pub struct KubernetesArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Pods; each runs one rank
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// An image with pstrain and libtorch
    #[arg(long, value_name = "IMAGE")]
    pub image: String,
    /// What is made of the job
    #[arg(long = "as", value_name = "KIND", default_value = "job")]
    pub kind: KubernetesKind,
    /// The namespace [default: that of kubectl]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The PersistentVolumeClaim with the data, on which the run folder lies; all pods write to it
    #[arg(long, value_name = "NAME")]
    pub claim: Option<String>,
    /// The Secret whose entries become variables, with PSTRAIN_TOKEN among them [default: NAME-token]
    #[arg(long, value_name = "NAME")]
    pub secret: Option<String>,
    /// Cores of each pod, as Kubernetes writes them: 4 or 500m
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<String>,
    /// Memory of each pod, as Kubernetes writes it: 16Gi
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// How often all ranks begin again when one was lost
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub restarts: u32,
    /// What the names of the cluster's services end with
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
}

#[derive(Args)]
pub struct SshArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// The machines, as ssh knows them, in the order of their ranks: node1,node2 or node[1-2]
    #[arg(long, value_name = "HOSTS", required_unless_present = "hosts", conflicts_with = "hosts")]
    pub nodes: Option<String>,
    /// A file with a machine in each line: HOST, or HOST slots=RANKS
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// Ranks on each machine whose line says nothing else
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_node: u32,
    /// Where the others find rank 0 [default: the first machine]
    #[arg(long, value_name = "ADDR")]
    pub master_addr: Option<String>,
    /// The folder on the machines in which the ranks run [default: this one]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Go on from a checkpoint, as in `pstrain run`
    #[arg(long, value_name = "DIR|auto")]
    pub resume: Option<String>,
    /// The program in the place of ssh
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    pub ssh: String,
    /// One more option for ssh (several times: several): --ssh-option=-p2222
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub ssh_option: Vec<String>,
}

#[derive(Args)]
pub struct TorchxArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Replicas; each runs one rank
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// An image with pstrain and libtorch, for schedulers that run images
    #[arg(long, value_name = "IMAGE", default_value = "", hide_default_value = true)]
    pub image: String,
    /// Cores of each replica
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: u32,
    /// Memory of each replica, in MB
    #[arg(long, value_name = "MB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub mem_mb: u32,
    /// How often the scheduler begins again when a rank was lost
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub restarts: u32,
    /// The scheduler of `torchx run` that --submit names
    #[arg(long, value_name = "NAME", default_value = "local_cwd")]
    pub scheduler: String,
}
