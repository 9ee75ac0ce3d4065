//! Ranks on machines that ssh reaches: the commands, and what starts them and looks after them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use super::args::SshArgs;
use super::hosts::{self, Host};
use super::planned::{Planned, head};
use super::words;
use crate::cli::exit::{DONE, Failure};
use crate::cli::run::given_token;
use crate::cli::{logs, spawn, stdout};
use crate::rpc::Token;
use crate::runner::launch::{RankCommand, start_commands};
use crate::runner::rank::rank_name;
use crate::topology::Rank;

const PORT: u16 = 29_500;

/// A password nobody could type, and a machine that is gone is noticed.
const OPTIONS: [&str; 3] = ["-T", "-oBatchMode=yes", "-oServerAliveInterval=15"];

/// On the machine: reads variables, a line each, up to an empty one, and becomes the rank.
const ALONE: &str = r#"while IFS= read -r v && [ -n "$v" ]; do export "$v"; done; cd "$0" && exec "$@""#;

/// The same, but for what reads on beside the rank: names of signals, and the end of the input, on which the rank ends, too.
const WATCHED: &str = r#"while IFS= read -r v && [ -n "$v" ]; do export "$v"; done
cd "$0" || exit 2
exec 3<&0 </dev/null
"$@" 3<&- &
rank=$!
{ while read -r signal; do kill -s "$signal" "$rank"; done; kill -s TERM "$rank"; } <&3 >/dev/null 2>&1 &
reader=$!
exec 3<&-
wait "$rank"
code=$?
kill "$reader" 2>/dev/null
exit "$code""#;

/// A rank and the machine that it is to run on.
struct Placed<'a> {
    host: &'a Host,
    rank: Rank,
    /// Its number there.
    local: u32,
}

/// All that the ranks have in common.
struct World<'a> {
    args: &'a SshArgs,
    planned: &'a Planned,
    master: &'a str,
    workdir: PathBuf,
}

pub fn launch(args: &SshArgs, look: logs::Wanted) -> Result<u8, Failure> {
    let hosts = match (&args.nodes, &args.hosts) {
        (Some(list), _) => hosts::listed(list, args.ranks_per_node)?,
        (None, Some(file)) => hosts::read(file, args.ranks_per_node)?,
        (None, None) => return Err(Failure::usage("no machines\n  hint: give --nodes or --hosts")),
    };
    let world_size = hosts.iter().fold(0u32, |sum, host| sum.saturating_add(host.ranks));
    let of = if args.nodes.is_some() { "--nodes and --ranks-per-node" } else { "the hosts file" };
    let planned = Planned::new(&args.common, (world_size, of))?;
    let master = match &args.master_addr {
        Some(given) => words::plain("--master-addr", given)?.to_owned(),
        None => hosts::master(&hosts)?,
    };
    let workdir = match &args.workdir {
        Some(folder) => folder.clone(),
        None => std::env::current_dir()
            .map_err(|error| Failure::usage(format_args!("the current folder is not known: {error}")))?,
    };
    let world = World { args, planned: &planned, master: &master, workdir };
    let placed = placed(&hosts);
    if args.common.submit {
        return world.run(&placed, look);
    }
    stdout::as_it_is(world.script(&placed).trim_end())?;
    Ok(DONE)
}

/// The ranks in the order of the machines.
fn placed(hosts: &[Host]) -> Vec<Placed<'_>> {
    let each = hosts.iter().flat_map(|host| (0..host.ranks).map(move |local| (host, local)));
    (0..).zip(each).map(|(rank, (host, local))| Placed { host, rank: Rank(rank), local }).collect()
}

impl World<'_> {
    /// A rank's command line on its machine, behind the folder and what `sh` makes of both. `watched`: somebody has its input.
    fn remote(&self, placed: &Placed<'_>, watched: bool) -> String {
        let Planned { path, world_size, run_dir, port, .. } = self.planned;
        let run = self.planned.run(&self.planned.program_here(), &path.to_string_lossy());
        let mut words: Vec<String> = [
            "sh".into(),
            "-c".into(),
            if watched { WATCHED } else { ALONE }.into(),
            self.workdir.to_string_lossy().into_owned(),
        ]
        .into_iter()
        .chain(run)
        .collect();
        let mut tell = |option: &str, value: String| words.extend([option.to_owned(), value]);
        tell("--rank", placed.rank.to_string());
        tell("--world-size", world_size.to_string());
        tell("--master-addr", self.master.to_owned());
        tell("--master-port", port.unwrap_or(PORT).to_string());
        if let Some(folder) = run_dir {
            tell("--run-dir", folder.to_string_lossy().into_owned());
        }
        if let Some(from) = &self.args.resume {
            tell("--resume", from.clone());
        }
        words.extend(watched.then(|| "--merged".to_owned()));
        format!("exec {}", words::line(words))
    }

    /// What `ssh` gets: its options, the machine, the command.
    fn ssh(&self, placed: &Placed<'_>, watched: bool) -> Vec<String> {
        let options = OPTIONS.iter().map(|&option| option.to_owned());
        let options = options.chain(self.args.ssh_option.iter().cloned());
        options.chain(["--".into(), placed.host.name.clone(), self.remote(placed, watched)]).collect()
    }

    /// The variables of a rank, but for the token.
    fn variables(&self, placed: &Placed<'_>) -> Vec<String> {
        let mut variables = vec![format!("LOCAL_RANK={}", placed.local)];
        variables.extend(self.planned.env.iter().map(|(name, value)| format!("{name}={value}")));
        variables
    }

    /// The commands as a script of their own.
    fn script(&self, placed: &[Placed<'_>]) -> String {
        let mut script = format!(
            "#!/bin/sh\n{}\
             # With --submit pstrain runs them itself, merges their output, and ends all when one fails.\n\n\
             # A secret that the ranks share. It goes to them by ssh's input: other users see command lines.\n\
             PSTRAIN_TOKEN=${{PSTRAIN_TOKEN:-$({} token)}}\nranks=\n",
            head(self.planned, "Written by `pstrain launch ssh`: a command for each rank."),
            words::line([self.planned.program_here()])
        );
        for one in placed {
            let ssh = [self.args.ssh.clone()].into_iter().chain(self.ssh(one, false));
            let _ = write!(
                script,
                "\nprintf '%s\\n' \"PSTRAIN_TOKEN=$PSTRAIN_TOKEN\" {} '' |\n  {} &\nranks=\"$ranks $!\"\n",
                words::line(self.variables(one)),
                words::line(ssh)
            );
        }
        script.push_str("\ncode=0\nfor rank in $ranks; do wait \"$rank\" || code=$?; done\nexit \"$code\"\n");
        script
    }

    /// Starts the ranks, and stays until they have ended.
    fn run(&self, placed: &[Placed<'_>], look: logs::Wanted) -> Result<u8, Failure> {
        let token = given_token().unwrap_or_else(Token::suggestion);
        Token::new(token.clone()).map_err(|weak| Failure::usage(format_args!("PSTRAIN_TOKEN: {weak}")))?;
        let job = &self.planned.job;
        let names: Vec<String> = placed.iter().map(|one| rank_name(job, one.rank)).collect();
        let commands = placed.iter().zip(&names).map(|(one, name)| {
            let mut command = Command::new(&self.args.ssh);
            command.args(self.ssh(one, true));
            // It goes by the input alone.
            command.env_remove("PSTRAIN_TOKEN");
            let mut lines = self.variables(one);
            lines.extend([format!("PSTRAIN_TOKEN={token}"), String::new()]);
            let input = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
            RankCommand { rank: one.rank, name: name.clone(), command, input }
        });
        let supervisor = start_commands(commands.collect())?;
        spawn::supervise(supervisor, names, spawn::grace(job), look)
    }
}
