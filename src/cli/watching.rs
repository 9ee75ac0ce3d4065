//! Those who look at a run while it goes on, beside it: a process that follows its folder, and the page that is left of it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::exit::Failure;
use crate::watch::report;

/// A follower has this long to show the end of a run.
const LAST_LOOK: Duration = Duration::from_secs(10);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The run that this process starts, as others look at it.
pub struct Watching {
    follower: Option<Child>,
}

impl Watching {
    /// Serves the run in `folder` at `dashboard`, if that is wanted, and says where.
    ///
    /// # Errors
    /// When it cannot be served there.
    pub fn start(dashboard: Option<SocketAddr>, folder: &Path) -> Result<Watching, Failure> {
        let Some(at) = dashboard else { return Ok(Watching { follower: None }) };
        let program = std::env::current_exe().context("this program is not to be found any more")?;
        let mut command = Command::new(program);
        command.arg("dashboard").arg(folder).args(["--at", &at.to_string(), "--until-end"]);
        // Its own group: Ctrl-C is for the training, whose end it still has to show.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the dashboard does not start")?;
        let mut line = String::new();
        let told = BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line);
        let address = line.trim();
        if told.is_err() || address.is_empty() {
            // It has said why.
            let _ = child.wait();
            return Err(Failure { code: super::exit::USAGE, message: None });
        }
        eprintln!("dashboard: {address}");
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
