//! The command line: options in, exit code out. Nothing below this floor ends the process.
//!
//! | exit code | means |
//! |---|---|
//! | 0 | done |
//! | 1 | the job failed, or came to its end with warnings |
//! | 2 | bad usage or job file |
//! | 3 | a rank was lost, stood still, or never came |
//! | 130 | interrupted |
//! | 143 | stopped by SIGTERM, with a checkpoint |

mod args;
mod bench;
mod checkpoints;
mod compile;
mod complete;
mod dashboard;
mod data;
mod doctor;
mod exit;
mod explain;
mod export;
mod feed;
mod going_on;
mod job;
mod launch;
mod logs;
mod plugin;
mod privileges;
mod restarts;
mod resume;
mod run;
mod runs;
mod spawn;
mod stderr;
mod stdout;
mod sweep;
mod top;
mod using;
mod version;
mod watching;

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser as _;

use args::{Cli, Command};

use crate::rpc::Token;
use crate::runner::{libtorch, limits};

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let started = Instant::now();
    if let Err(failure) = privileges::none() {
        return ExitCode::from(failure.report());
    }
    limits::have_large_files_fail();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => return ExitCode::from(told_by_clap(&told)),
    };
    let look = logs::Wanted { color: cli.color, verbose: cli.verbose };
    let done = match cli.command {
        Command::Run(args) => run::run(args, look, started),
        Command::Spawn(args) => spawn::spawn(args, look, started),
        Command::Launch(command) => launch::command(command, look),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Eval(args) => using::eval(args, look, started),
        Command::Predict(args) => using::predict(args, look, started),
        Command::Check(args) => job::check(&args),
        Command::Dashboard(args) => dashboard::dashboard(&args),
        Command::Follow(args) => dashboard::follow(&args, look),
        Command::Report(args) => dashboard::report(&args),
        Command::Doctor { inside: true, .. } => doctor::look_inside(),
        Command::Doctor { run: Some(run), json, .. } => doctor::run::doctor(&run, json),
        Command::Doctor { json, .. } => doctor::doctor(json),
        Command::Explain { run, json } => explain::explain(&run, json),
        Command::Completions { shell } => complete::completions(shell),
        Command::Man { folder } => complete::man(&folder),
        Command::Init { path } => job::init(&path),
        Command::Export(args) => export::export(&args),
        Command::Feed(args) => feed::feed(&args),
        Command::Runs { folder, json } => runs::runs(folder.as_deref(), json),
        Command::Checkpoint(command) => checkpoints::command(command),
        Command::Top { run } => top::top(run.as_deref(), look),
        Command::Schema { reference } => job::schema(reference),
        Command::Plugin(command) => plugin::command(command, look),
        Command::Bench(command) => bench::command(command, look),
        Command::Token => stdout::line(Token::suggestion()).map(|()| exit::DONE).map_err(Into::into),
        Command::Data(command) => data::command(command, look),
    };
    let code = match done {
        Ok(code) => code,
        Err(failure) => failure.report(),
    };
    if libtorch::loaded_from().is_some() {
        // Worker threads may still compute when a job ends early.
        c10d::process::leave(code);
    }
    ExitCode::from(code)
}

/// Prints the help that was asked for, or what is wrong with the options. Returns the exit code.
fn told_by_clap(told: &clap::Error) -> u8 {
    match told.print().and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write to stdout: {error}");
            exit::FAILED
        }
        _ => u8::try_from(told.exit_code()).unwrap_or(exit::USAGE),
    }
}
