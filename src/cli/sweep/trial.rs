//! One run of a sweep: a `pstrain spawn` of its own in a folder of its own, and what has become of it.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::figure::{Figure, Progress, Reached};
use super::plan::{Planned, Saves};
use crate::cli::exit::{DONE, FAILED};
use crate::files;
use crate::human::{cut, one_line};
use crate::metrics::Watched as Decides;
use crate::runner::checkpoint;
use crate::runner::metrics::Summary;
use crate::runner::run_folder::{JOB, METRICS};
use crate::watch::run::Watched;

/// What a run writes to its terminal.
pub const OUTPUT: &str = "output.log";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Waiting,
    Running,
    Finished,
    /// It came to its end, and something went wrong.
    FinishedWithWarnings,
    /// It had fallen behind.
    Stopped,
    /// With all of the sweep.
    Interrupted,
    Failed,
}

/// What is known of a run when it has ended; kept in `sweep.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// None: it has come to none, or to one that is no number.
    pub figure: Option<f64>,
    /// The step that the figure is of; None: the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_step: Option<u64>,
    /// How far it has come.
    pub step: u64,
    pub seconds: f64,
    /// Why it has not come to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Outcome {
    pub fn waiting() -> Outcome {
        Outcome {
            state: State::Waiting,
            exit_code: None,
            figure: None,
            at_step: None,
            step: 0,
            seconds: 0.0,
            why: None,
        }
    }
}

pub struct Trial {
    pub planned: Planned,
    pub folder: PathBuf,
    pub outcome: Outcome,
    process: Option<Process>,
    /// By the table's figure, and by that of the halving.
    shown: Progress,
    judged: Progress,
    watched: Watched,
}

struct Process {
    child: Child,
    began: Instant,
    /// Why it has been asked to end.
    stopped: Option<String>,
}

/// What runs are judged by.
pub struct Judging {
    /// Of the table.
    pub figure: Figure,
    /// Of the halving.
    pub halving: Option<Figure>,
    /// The job's `eval.best`.
    pub best_by: Option<Decides>,
}

/// How runs are begun.
pub struct Launch<'a> {
    /// The job file that all are read from.
    pub job: Option<&'a Path>,
    /// Options of all runs.
    pub options: &'a [String],
    pub threads: usize,
}

impl Trial {
    pub fn new(planned: Planned, folder: PathBuf) -> Trial {
        let watched = Watched::new(&folder, planned.world_size);
        let (shown, judged) = (Progress::default(), Progress::default());
        Trial { planned, folder, outcome: Outcome::waiting(), process: None, shown, judged, watched }
    }

    /// What was read of its folder: it will be read again.
    pub fn forget(&mut self) {
        self.let_go();
        (self.shown, self.judged) = (Progress::default(), Progress::default());
    }

    /// Of a run that is over only the outcome is needed, and not a megabyte of its curves.
    pub fn let_go(&mut self) {
        self.watched = Watched::new(&self.folder, self.planned.world_size);
    }

    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Begins it, or goes on with it from its last checkpoint.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&mut self, launch: &Launch<'_>) -> Result<()> {
        files::make_folders(&self.folder)
            .with_context(|| format!("cannot make `{}`", self.folder.display()))?;
        let path = self.folder.join(OUTPUT);
        let output = files::append_to(&path).with_context(|| format!("cannot open `{}`", path.display()))?;
        let program = std::env::current_exe().context("this program is not to be found any more")?;
        let mut command = Command::new(program);
        command.arg("spawn").args(launch.job).args(["--master-port", "0", "--color", "never"]);
        command.args(launch.options);
        for value in &self.planned.values {
            command.args(["--set", &format!("{}={}", value.key, value.value)]);
        }
        if let Saves::To(to) = &self.planned.saves {
            let to = to.text().context("the folder for checkpoints has a name that is no text")?;
            command.args(["--set", &format!("checkpoint.to={}", toml::Value::from(to))]);
        }
        command.arg("--run-dir").arg(&self.folder);
        match self.has_saved() {
            true => command.args(["--resume", "auto"]),
            false => {
                // Now, and not when the run begins: whoever looks before that would go on reading it.
                let _ = fs::remove_file(self.folder.join(METRICS));
                command.arg("--overwrite")
            }
        };
        command.args(["--with-parent", &std::process::id().to_string()]);
        command.env("OMP_NUM_THREADS", launch.threads.to_string());
        // Ctrl-C comes to the sweep alone, which passes it on once.
        command.process_group(0).stdin(Stdio::null());
        let errors = output.try_clone().context("its output")?;
        let child = command.stdout(output).stderr(errors).spawn().context("it does not start")?;
        self.process = Some(Process { child, began: Instant::now(), stopped: None });
        self.outcome = Outcome { state: State::Running, ..Outcome::waiting() };
        Ok(())
    }

    /// Whether this run has saved anything, and not another sweep's. Of what cannot be read, the run itself says more.
    fn has_saved(&self) -> bool {
        if !self.folder.join(JOB).exists() {
            return false;
        }
        let to = match &self.planned.saves {
            Saves::Nothing => return false,
            Saves::InFolder => None,
            Saves::To(to) => Some(to.clone()),
        };
        checkpoint::last(&checkpoint::placed(to, &self.folder)).map_or(true, |last| last.is_some())
    }

    /// Reads what it has recorded since the last time; gives the figures of the halving that it has come to.
    ///
    /// # Errors
    /// The system's.
    pub fn look(&mut self, by: &Judging) -> io::Result<Vec<Reached>> {
        let mut reached = Vec::new();
        let Trial { shown, judged, planned, watched, .. } = self;
        watched.read_on(|line| {
            shown.take(line, &by.figure, planned.trainers);
            reached
                .extend(by.halving.as_ref().and_then(|figure| judged.take(line, figure, planned.trainers)));
        })?;
        Ok(reached)
    }

    /// Asks it to end, in order and with a checkpoint, because it has fallen behind. False: it has been asked before.
    pub fn stop(&mut self, why: String) -> bool {
        match &mut self.process {
            Some(process) if process.stopped.is_none() => {
                process.stopped = Some(why);
                self.signal(Signal::SIGTERM);
                true
            }
            _ => false,
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            // It has not been waited for, so its number is still its own.
            let _ = kill(Pid::from_raw(process.child.id().cast_signed()), signal);
        }
    }

    /// Whether its process is gone. It may have written more since the last look.
    ///
    /// # Errors
    /// The system's.
    pub fn is_gone(&mut self) -> io::Result<bool> {
        match &mut self.process {
            Some(process) => Ok(process.child.try_wait()?.is_some()),
            None => Ok(false),
        }
    }

    /// What has become of it, when its process is gone and all that it wrote has been looked at. `interrupted`: all of the sweep
    /// has been asked to end.
    ///
    /// # Errors
    /// The system's.
    pub fn conclude(&mut self, by: &Judging, interrupted: bool) -> io::Result<()> {
        let Some(Process { mut child, began, stopped }) = self.process.take() else { return Ok(()) };
        let status = child.wait()?;
        let (code, has_summary) = (status.code(), self.watched.summary.is_some());
        let state = match code {
            Some(code) if code == i32::from(DONE) => State::Finished,
            _ if stopped.is_some() => State::Stopped,
            _ if interrupted => State::Interrupted,
            Some(code) if code == i32::from(FAILED) && has_summary => State::FinishedWithWarnings,
            _ => State::Failed,
        };
        let why = match state {
            State::Stopped => stopped,
            State::Failed | State::FinishedWithWarnings => {
                Some(last_error(&self.folder).unwrap_or_else(|| status.to_string()))
            }
            _ => None,
        };
        let seconds = began.elapsed().as_secs_f64();
        self.outcome = Outcome { state, exit_code: code, seconds, why, ..self.come_to(by) };
        self.let_go();
        Ok(())
    }

    /// The figure and the steps, as far as its folder tells.
    fn come_to(&self, by: &Judging) -> Outcome {
        let of_summary = |summary: &Summary| by.figure.of_summary(summary, by.best_by.as_ref());
        let last = self.shown.figure.map(|(step, value)| (Some(step), value));
        let (at_step, value) = self.watched.summary.as_ref().and_then(of_summary).or(last).unzip();
        let figure = value.filter(|value: &f64| value.is_finite());
        Outcome { figure, at_step: at_step.flatten(), step: self.shown.step, ..Outcome::waiting() }
    }

    /// What only the folder of a run tells that has been looked at: that it has come to its end.
    pub fn finished_before(&self, by: &Judging) -> Option<Outcome> {
        let summary = self.watched.summary.as_ref()?;
        let state = if summary.warnings.is_empty() { State::Finished } else { State::FinishedWithWarnings };
        let seconds = summary.startup_seconds + summary.train_seconds;
        Some(Outcome { state, seconds, why: summary.warnings.first().cloned(), ..self.come_to(by) })
    }
}

/// The last error that its ranks have told, on one line.
fn last_error(folder: &Path) -> Option<String> {
    const TAIL: u64 = 1 << 16;
    let mut file = fs::File::open(folder.join(OUTPUT)).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL))).ok()?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let error = text.lines().rev().find_map(|line| Some(line.split_once("error: ")?.1))?;
    Some(cut(&one_line(error), 200))
}
