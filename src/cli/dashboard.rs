//! `pstrain dashboard` and `pstrain report`: the page of a run, served or as a file.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::args::{DashboardArgs, ReportArgs};
use super::exit::{DONE, Failure};
use super::run::given_token;
use super::stdout;
use crate::files;
use crate::runner::run_folder::{self, RunFolder};
use crate::watch::follow;
use crate::watch::report::{self, Run};
use crate::watch::serve::{self, Access, Shown};

const LOOK_EVERY: Duration = Duration::from_secs(1);

pub fn dashboard(args: &DashboardArgs) -> Result<u8, Failure> {
    let folder = a_run(&args.run)?;
    let access = Access::at(args.at.ip(), given_token()).map_err(Failure::usage)?;
    let asks_for_token = matches!(access, Access::Token(_));
    let (show, shown) = tokio::sync::watch::channel(Arc::new(Shown::default()));
    let at = serve::start(args.at, access, shown).map_err(|error| {
        Failure::usage(format_args!("{error:#}\n  hint: --at 127.0.0.1:0 takes a port that is free"))
    })?;
    let (end, ended) = mpsc::channel();
    if args.until_end {
        stdout::line(address(at, asks_for_token))?;
        // It ends when whoever has started this does.
        let wait = move || (io::stdin().read_to_end(&mut Vec::new()), drop(end));
        thread::Builder::new().name("end".into()).spawn(wait).context("cannot start a thread")?;
        follow::follow(folder, &show, &ended)?;
        // Who looks is told of the end.
        thread::sleep(LOOK_EVERY);
        return Ok(DONE);
    }
    stdout::line(format_args!("{}\n(Ctrl-C ends it)", address(at, asks_for_token)))?;
    if RunFolder::is_under_way(folder) {
        let watched = folder.to_owned();
        let wait = move || {
            while RunFolder::is_under_way(&watched) {
                thread::sleep(LOOK_EVERY);
            }
            drop(end);
        };
        thread::Builder::new().name("end".into()).spawn(wait).context("cannot start a thread")?;
        follow::follow(folder, &show, &ended)?;
    } else {
        show.send_replace(Arc::new(follow::show_ended(folder)?));
    }
    loop {
        thread::park();
    }
}

/// Where it is to be seen, with no secret in it.
fn address(at: SocketAddr, asks_for_token: bool) -> String {
    let token =
        if asks_for_token { "?token=PSTRAIN_TOKEN, with the token in the place of its name" } else { "" };
    format!("http://{at}/{token}")
}

pub fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let runs = args.runs.iter().map(|run| Ok(Run::read(a_run(run)?)?));
    let runs = runs.collect::<Result<Vec<Run>, Failure>>()?;
    let out = args.out.clone().unwrap_or_else(|| match args.runs.as_slice() {
        [run] => run.join(run_folder::REPORT),
        _ => PathBuf::from(run_folder::REPORT),
    });
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = out
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Failure::usage(format_args!("`{}` is not a file's name", out.display())))?;
    let written = files::write(folder, name, report::html(&runs).as_bytes());
    written.with_context(|| format!("cannot write `{}`", out.display()))?;
    stdout::line(format_args!("wrote {}", out.display()))?;
    Ok(DONE)
}

fn a_run(folder: &Path) -> Result<&Path, Failure> {
    match folder.join(run_folder::JOB).is_file() {
        true => Ok(folder),
        false => Err(Failure::usage(format_args!(
            "`{}` is not a run folder: it has no {}\n  hint: `pstrain runs` lists the runs in `{}`",
            folder.display(),
            run_folder::JOB,
            run_folder::RUNS
        ))),
    }
}
