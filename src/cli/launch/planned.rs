//! What a job and the options for it come to, whichever scheduler gets it.

use std::path::PathBuf;
use std::time::Duration;

use super::args::CommonArgs;
use super::words;
use crate::cli::args::JobArgs;
use crate::cli::exit::Failure;
use crate::cli::job;
use crate::human::{counted, printable};
use crate::job::{Job, NOT_KEYS, Override, PREFIX, environment_of_all_ranks};
use crate::runner::inputs;

/// A job that was proven for the ranks that a scheduler is to start.
#[derive(Debug)]
pub struct Planned {
    pub job: Job,
    /// The file, as it was named.
    pub path: PathBuf,
    pub world_size: u32,
    /// What the user wants the scheduler to call it.
    pub name: Option<String>,
    /// Variables of the ranks: `--env`, and keys of the job that this process's environment has.
    pub env: Vec<(String, String)>,
    pub program: Option<String>,
    pub port: Option<u16>,
    pub run_dir: Option<PathBuf>,
    /// What a rank is told beside the job's file.
    told: Vec<String>,
}

/// The program as it was called: what a shell has found on its PATH it finds again elsewhere.
fn as_called() -> String {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_else(|| "pstrain".into());
    let path =
        if called.components().count() > 1 { std::path::absolute(&called).unwrap_or(called) } else { called };
    path.to_string_lossy().into_owned()
}

impl Planned {
    /// `world`: how many ranks there are to be, and the options that say so.
    ///
    /// # Errors
    /// The job is wrong, or is not one of so many ranks; an option is wrong.
    pub fn new(args: &CommonArgs, (world_size, options): (u32, &str)) -> Result<Planned, Failure> {
        let of_job = JobArgs {
            world_size: None,
            master_addr: None,
            master_port: args.master_port,
            num_gpus: args.num_gpus,
            set: args.set.clone(),
            profile: false,
        };
        other_world(&args.set, world_size, options)?;
        let world = Override {
            key: "cluster.world_size".into(),
            value: world_size.to_string(),
            typed: options.to_owned(),
        };
        let job = job::load_to_launch(&args.job, &of_job, &[world])?.job;
        let mut env = keys_of_environment();
        env.extend(args.env.iter().map(|text| variable(text)).collect::<Result<Vec<_>, _>>()?);
        let mut told = Vec::new();
        let mut tell = |option: &str, value: String| told.extend([option.to_owned(), value]);
        if let Some(gpus) = args.num_gpus {
            tell("--num-gpus", gpus.to_string());
        }
        args.set.iter().for_each(|setting| tell("--set", setting.clone()));
        let planned = Planned {
            job,
            path: args.job.clone(),
            world_size,
            name: args.name.clone(),
            env,
            program: args.program.clone(),
            port: args.master_port,
            run_dir: args.run_dir.clone(),
            told,
        };
        if let Some(word) = planned.all_words().find(|word| word.contains(char::is_control)) {
            return Err(Failure::usage(format_args!(
                "{word:?} has a line end or another character that no script keeps\n  hint: leave it out"
            )));
        }
        Ok(planned)
    }

    fn all_words(&self) -> impl Iterator<Item = &str> {
        let env = self.env.iter().map(|(_, value)| value.as_str());
        let paths = [self.path.to_str(), self.run_dir.as_deref().and_then(|dir| dir.to_str())];
        self.told.iter().map(String::as_str).chain(env).chain(paths.into_iter().flatten())
    }

    /// A rank's command line, without what the scheduler tells it: `pstrain run JOB ...`.
    pub fn run(&self, program: &str, job: &str) -> Vec<String> {
        [program, "run", job].map(str::to_owned).into_iter().chain(self.told.iter().cloned()).collect()
    }

    /// The program on machines like this one.
    pub fn program_here(&self) -> String {
        self.program.clone().unwrap_or_else(as_called)
    }

    /// GPUs of a rank.
    pub fn gpus(&self) -> u32 {
        self.job.cluster.num_gpus
    }

    /// How long a rank may take to end when it is told to, with what it saves.
    pub fn ends_within(&self) -> Duration {
        self.job.saves_within().unwrap_or_default() + self.job.cluster.lost_after + Duration::from_secs(5)
    }

    /// Whether ranks that begin again find what they had come to.
    pub fn saves(&self) -> bool {
        self.job.training().is_some_and(|training| training.checkpoint.is_some())
    }

    /// Says what ranks that run in this folder, or in one like it, would not find here.
    pub fn look_at_inputs(&self) {
        for missing in inputs::missing(&self.job, None) {
            let hint = missing.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
            eprintln!("{}", printable(&format!("warning: not on this machine: {}{hint}", missing.message)));
        }
    }

    /// The ranks of each role, for a comment: `server: 0, trainer: 1 to 3`.
    pub fn roles(&self) -> String {
        let role = |role: &crate::topology::Role| match (role.ranks.first(), role.ranks.last()) {
            (Some(first), Some(last)) if first != last => format!("{} {first} to {last}", role.name),
            (Some(first), _) => format!("{} {first}", role.name),
            (None, _) => role.name.clone(),
        };
        self.job.roles.iter().map(role).collect::<Vec<_>>().join(", ")
    }
}

/// The number of ranks is that of the options: a setting that says another is a mistake.
fn other_world(set: &[String], world_size: u32, options: &str) -> Result<(), Failure> {
    for (key, value) in set.iter().filter_map(|setting| setting.split_once('=')) {
        if key.trim() == "cluster.world_size" && value.trim().parse() != Ok(world_size) {
            return Err(Failure::usage(format_args!(
                "--set cluster.world_size={value} is another number than the {} of {options}\n  hint: leave the setting out",
                counted(u64::from(world_size), "rank")
            )));
        }
    }
    Ok(())
}

/// Keys of the job that come from the environment here, and would not be there where the ranks run.
fn keys_of_environment() -> Vec<(String, String)> {
    let is_key = |name: &str| name.starts_with(PREFIX) && !NOT_KEYS.contains(&name);
    let mut keys: Vec<_> = environment_of_all_ranks().into_iter().filter(|(name, _)| is_key(name)).collect();
    keys.sort();
    keys
}

fn variable(text: &str) -> Result<(String, String), Failure> {
    let wrong = |problem: &str, hint: &str| {
        Err(Failure::usage(format_args!("--env {text}: {problem}\n  hint: {hint}")))
    };
    let Some((name, value)) = text.split_once('=') else {
        return wrong("it has no value", "write it as NAME=VALUE");
    };
    let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit());
    match (fits, name) {
        (_, "PSTRAIN_TOKEN") => Err(Failure::usage(
            "--env PSTRAIN_TOKEN: a secret does not belong into a script\n  \
             hint: leave it out: what is printed says where the token comes from",
        )),
        (true, _) => Ok((name.into(), value.into())),
        (false, _) => wrong("that is not the name of a variable", "use letters, digits and `_`"),
    }
}

/// A comment for the head of a script: what it does, and for which ranks.
pub fn head(planned: &Planned, what: &str) -> String {
    let Planned { job, path, world_size, .. } = planned;
    let mut head = format!(
        "# {what}\n# Job `{}` of {}, {}: {}.\n",
        printable(&job.name),
        words::line([path.to_string_lossy()]),
        counted(u64::from(*world_size), "rank"),
        planned.roles()
    );
    if planned.job.training().is_some() && !planned.saves() {
        head.push_str(
            "# The job saves no checkpoints ([checkpoint]), so ranks that begin again begin from nothing.\n",
        );
    }
    head
}
