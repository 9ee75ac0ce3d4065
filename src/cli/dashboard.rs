//! `pstrain dashboard` and `pstrain report`: the page of a run, served or as a file.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::args::{DashboardArgs, FollowArgs, ReportArgs};
use super::exit::{DONE, Failure};
use super::run::given_token;
use super::{logs, stdout};
use crate::runner::run_folder::{self, RunFolder};
use crate::watch::follow;
use crate::watch::report::{self, Run};
use crate::watch::serve::{self, Access, Shown};

/// Between two looks at a folder, which tells nobody when its run ends.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub fn dashboard(args: &DashboardArgs) -> Result<u8, Failure> {
    let folder = a_run(&args.run)?;
    let (show, address) = serve(args.at, folder)?;
    stdout::line(format_args!("{address}\n(Ctrl-C ends it)"))?;
    if RunFolder::is_under_way(folder) {
        let watched = folder.to_owned();
        let ended = when(move || {
            while RunFolder::is_under_way(&watched) {
                thread::sleep(LOOK_EVERY);
            }
        })?;
        follow::look_on(folder, &show, &ended)?;
    }
    loop {
        thread::park();
    }
}

/// For whoever has started this, and ends it by the end of stdin: its first line says where the run is served, if it is.
pub fn follow(args: &FollowArgs, look: logs::Wanted) -> Result<u8, Failure> {
    look.start_logs(None);
    let folder = a_run(&args.run)?;
    let served = args.at.map(|at| serve(at, folder)).transpose()?;
    stdout::line(served.as_ref().map_or("following", |(_, address)| address))?;
    let ended = when(|| {
        // Whatever comes, and an error, too, is its end.
        let _ = io::stdin().read_to_end(&mut Vec::new());
    })?;
    follow::follow(folder, served.as_ref().map(|(show, _)| show), &ended)?;
    if served.is_some() {
        // Who looks is told of the end.
        thread::sleep(LOOK_EVERY);
    }
    Ok(DONE)
}

type Show = tokio::sync::watch::Sender<Arc<Shown>>;

/// Serves the run in `folder`, as it is now until something newer is shown, and says where.
fn serve(at: SocketAddr, folder: &Path) -> Result<(Show, String), Failure> {
    let access = Access::at(at.ip(), given_token()).map_err(Failure::usage)?;
    // With no secret in it.
    let token = match &access {
        Access::Token(_) => "?token=... with PSTRAIN_TOKEN",
        Access::Here => "",
    };
    let (show, shown) = tokio::sync::watch::channel(Arc::new(follow::shown(folder)?));
    let at = serve::start(at, access, shown).map_err(|error| {
        Failure::usage(format_args!("{error:#}\n  hint: 127.0.0.1:0 takes a port that is free"))
    })?;
    Ok((show, format!("http://{at}/{token}")))
}

/// What hears of it when `wait` returns.
fn when(wait: impl FnOnce() + Send + 'static) -> Result<mpsc::Receiver<()>, Failure> {
    let (end, ended) = mpsc::channel();
    let wait = move || {
        wait();
        drop(end);
    };
    thread::Builder::new().name("end".into()).spawn(wait).context("cannot start a thread")?;
    Ok(ended)
}

pub fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let runs = args.runs.iter().map(|run| Ok(Run::among(args.runs.len(), a_run(run)?)?));
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
    report::write(&runs, folder, name)?;
    stdout::line(format_args!("wrote {}", out.display()))?;
    Ok(DONE)
}

/// A folder that has a run in it.
pub fn a_run(folder: &Path) -> Result<&Path, Failure> {
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
