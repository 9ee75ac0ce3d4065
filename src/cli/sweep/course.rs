//! The course of a sweep: begins runs, looks at them, stops those that have fallen behind, until all have ended.
//!
//! One thread, one loop: runs die with the thread that has begun them.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::Instant;

use super::figure::{Reached, told};
use super::halving::{Halving, Hopeless};
use super::plan::Plan;
use super::record::{Folder, Record};
use super::table::{best, what_became};
use super::trial::{Judging, Launch, OUTPUT, Outcome, State, Trial};
use crate::human::{counted, printable, seconds, thousands};
use crate::runner::interrupts::{Request, Requests, hangup_is_ignored};

/// How often the folders of runs are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub struct Course<'a> {
    plan: &'a Plan,
    folder: &'a Folder,
    launch: Launch<'a>,
    by: Judging,
    halving: Option<Halving>,
    side_by_side: usize,
    pub trials: Vec<Trial>,
    requests: Requests,
    /// The signal that has asked the sweep to end.
    pub ended_by: Option<Signal>,
}

impl<'a> Course<'a> {
    /// # Errors
    /// What an earlier attempt has left cannot be read.
    pub fn new(
        plan: &'a Plan,
        trials: Vec<Trial>,
        folder: &'a Folder,
        launch: Launch<'a>,
        side_by_side: usize,
    ) -> Result<Course<'a>> {
        let halved = plan.halving.as_ref();
        let by = Judging {
            figure: plan.figure.clone(),
            halving: halved.map(|rungs| rungs.figure.clone()),
            best_by: plan.best_by.clone(),
        };
        let halving = halved.map(|rungs| Halving::new(trials.len(), &rungs.places, rungs.figure.mode()));
        let requests = Requests::default();
        let mut course =
            Course { plan, folder, launch, by, halving, side_by_side, trials, requests, ended_by: None };
        if let Some(before) = &folder.before {
            course.go_on_from(before)?;
        }
        Ok(course)
    }

    /// What had ended stays so; what had not, or has failed, goes on.
    fn go_on_from(&mut self, before: &[Outcome]) -> Result<()> {
        for (run, outcome) in before.iter().enumerate() {
            self.look_at(run)?;
            let ended = match outcome.state {
                State::Finished | State::FinishedWithWarnings | State::Stopped => Some(outcome.clone()),
                _ => self.trials[run].finished_before(&self.by),
            };
            match ended {
                Some(ended) => {
                    self.trials[run].outcome = ended;
                    self.trials[run].let_go();
                }
                // It repeats what came behind its last checkpoint.
                None => self.trials[run].forget(),
            }
        }
        Ok(())
    }

    /// Runs all of them.
    ///
    /// # Errors
    /// The system gives no event loop or signal handler, or `sweep.json` cannot be written.
    pub fn run(&mut self) -> Result<()> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("an event loop")?;
        runtime.block_on(async {
            let mut stop = Stop::new().context("cannot handle signals")?;
            let mut child = signal(SignalKind::child()).context("cannot handle signals")?;
            let done = loop {
                let turn = self.turn();
                if !matches!(turn, Ok(true)) {
                    break turn.map(|_| ());
                }
                let next = Instant::now() + LOOK_EVERY;
                tokio::select! {
                    _ = child.recv() => {}
                    signal = stop.recv() => self.interrupt(signal),
                    () = tokio::time::sleep_until(next) => {}
                }
            };
            if done.is_err() {
                self.trials.iter().for_each(|trial| trial.signal(Signal::SIGTERM));
            }
            done
        })
    }

    /// Whether it goes on.
    fn turn(&mut self) -> Result<bool> {
        for run in 0..self.trials.len() {
            if self.trials[run].is_running() {
                self.attend(run)?;
            }
        }
        self.stop_the_hopeless();
        while self.ended_by.is_none() && self.running() < self.side_by_side {
            let waiting = self.trials.iter().position(|trial| trial.outcome.state == State::Waiting);
            let Some(run) = waiting else { break };
            self.begin(run)?;
        }
        Ok(self.running() > 0)
    }

    fn running(&self) -> usize {
        self.trials.iter().filter(|trial| trial.is_running()).count()
    }

    fn begin(&mut self, run: usize) -> Result<()> {
        let launch = &self.launch;
        let trial = &mut self.trials[run];
        if let Err(error) = trial.begin(launch) {
            let why = format!("{error:#}");
            trial.outcome = Outcome { state: State::Failed, why: Some(why.clone()), ..Outcome::waiting() };
            self.say(run, "fails", &why);
        } else {
            self.say(run, "begins", "");
        }
        self.record()
    }

    /// Looks at a run, and concludes it when it is gone.
    fn attend(&mut self, run: usize) -> Result<()> {
        let what = || format!("the run in `{}`", self.trials[run].folder.display());
        let named = what();
        // In this order: what it wrote before it went is seen.
        let gone = self.trials[run].is_gone().with_context(|| named.clone())?;
        self.look_at(run)?;
        if !gone {
            return Ok(());
        }
        self.trials[run].conclude(&self.by, self.ended_by.is_some()).context(named)?;
        let outcome = &self.trials[run].outcome;
        let verb = match outcome.state {
            State::Finished => "ends",
            State::Stopped => "stopped",
            State::Interrupted => "interrupted",
            _ => "fails",
        };
        let figure = outcome.figure.map(|value| told(&self.plan.figure, outcome.at_step, value));
        let took = (outcome.state != State::Failed).then(|| seconds(outcome.seconds));
        let why = outcome.why.clone().map(|why| match outcome.state {
            State::Failed => format!(
                "{}: {why} ({})",
                what_became(outcome),
                self.trials[run].folder.join(OUTPUT).display()
            ),
            _ => why,
        });
        let words: Vec<String> = [figure, took, why].into_iter().flatten().collect();
        self.say(run, verb, &words.join(", "));
        self.record()
    }

    fn look_at(&mut self, run: usize) -> Result<()> {
        let looked = self.trials[run].look(&self.by);
        let reached =
            looked.with_context(|| format!("cannot read `{}`", self.trials[run].folder.display()))?;
        if let Some(halving) = &mut self.halving {
            for Reached { nth, step, figure } in reached {
                halving.reached(run, nth, step, figure);
            }
        }
        Ok(())
    }

    fn stop_the_hopeless(&mut self) {
        let (Some(halving), Some(rungs)) = (&self.halving, &self.plan.halving) else { return };
        for (run, trial) in self.trials.iter_mut().enumerate().filter(|(_, trial)| trial.is_running()) {
            if let Some(Hopeless { step, figure, better }) = halving.hopeless(run) {
                let others = counted(better as u64, "other");
                trial.stop(format!("{} is behind {others}", told(&rungs.figure, Some(step), figure)));
            }
        }
    }

    fn interrupt(&mut self, asked: Signal) {
        let signal = match self.requests.count(std::time::Instant::now()) {
            Request::Same => return,
            Request::End => {
                let running = self.running();
                eprintln!(
                    "{asked}: no more runs begin, and those under way ({running}) end; once more ends them at once"
                );
                asked
            }
            Request::Kill => asked,
        };
        self.ended_by.get_or_insert(asked);
        self.trials.iter().for_each(|trial| trial.signal(signal));
    }

    /// A line of a run, on stderr.
    fn say(&self, run: usize, verb: &str, more: &str) {
        let (of, name) = (self.trials.len(), &self.trials[run].planned.name);
        let line = format!(
            "{verb:<7} {name} ({} of {of}){}{more}",
            run + 1,
            if more.is_empty() { "" } else { ": " }
        );
        eprintln!("{}", printable(&line));
    }

    /// # Errors
    /// The system's.
    pub fn record(&self) -> Result<()> {
        self.folder.write(&Record::of(self.plan, &self.trials, best(&self.trials, &self.plan.figure)))
    }
}

/// What asks the sweep to end.
struct Stop {
    interrupt: Signals,
    terminate: Signals,
    hangup: Option<Signals>,
}

impl Stop {
    fn new() -> io::Result<Stop> {
        let hangup = if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Stop {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
        })
    }

    async fn recv(&mut self) -> Signal {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = hangup => Signal::SIGTERM,
        }
    }
}

/// `step 240`, of a rung.
pub fn rungs_told(unit: &str, places: &[u64]) -> String {
    let places: Vec<String> = places.iter().map(|place| thousands(*place)).collect();
    format!("{unit} {}", places.join(", "))
}
