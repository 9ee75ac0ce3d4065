//! Those who look at a run while it goes on, beside it: a process that follows its folder, and the page that is left of it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::exit::{Failure, USAGE};
use crate::job::Job;
use crate::watch::report;

/// A follower has this long to show the end of a run, and to tell it to others.
const LAST_LOOK: Duration = Duration::from_secs(30);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The run that this process starts, as others look at it.
pub struct Watching {
    follower: Option<Child>,
}

impl Watching {
    /// Has a process follow the run of `job` in `folder`, where it is to be served at `dashboard` or told to others, and says where it
    /// is served.
    ///
    /// # Errors
    /// When it cannot be served there.
    pub fn start(job: &Job, dashboard: Option<SocketAddr>, folder: &Path) -> Result<Watching, Failure> {
        let is_told = job.training().is_some_and(|training| training.log.exports.any());
        if dashboard.is_none() && !is_told {
            return Ok(Watching { follower: None });
        }
        let program = std::env::current_exe().context("this program is not to be found any more")?;
        let mut command = Command::new(program);
        command.arg("follow").arg(folder);
        command.args(dashboard.iter().flat_map(|at| ["--at".to_owned(), at.to_string()]));
        // Its own group: Ctrl-C is for the training, whose end it still has to tell.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("nobody can follow the run")?;
        let mut line = String::new();
        let told = BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line);
        if told.is_err() || line.is_empty() {
            // It has said why.
            let _ = child.wait();
            return Err(Failure { code: USAGE, message: None });
        }
        if dashboard.is_some() {
            eprintln!("dashboard: {}", line.trim_end());
        }
        Ok(Watching { follower: Some(child) })
    }

    /// The run in `folder` has ended: whoever follows it shows that, and its page is written. What goes wrong is said; it is no fault of the
    /// run.
    pub fn finish(self, folder: &Path) {
        if let Some(mut follower) = self.follower {
            drop(follower.stdin.take());
            let until = Instant::now() + LAST_LOOK;
            while matches!(follower.try_wait(), Ok(None)) && Instant::now() < until {
                thread::sleep(LOOK_EVERY);
            }
            // It may have ended in the meantime.
            let _ = follower.kill();
            let _ = follower.wait();
        }
        if let Err(error) = report::write_beside(folder) {
            eprintln!("warning: {error:#}");
        }
    }
}
