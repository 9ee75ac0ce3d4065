//! A trainer's side: when a checkpoint is due, and standing still for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::best::Criterion;
use super::state::{Figures, TrainerState};
use super::writer::{lock, of_coordinator};
use crate::job::{Apart, Checkpoints, Training};
use crate::parallel::WAIT_FOR_TRAINERS;
use crate::rpc::{CallError, Json, Mesh, Methods};
use crate::runner::calls::checkpoint::{Announce, Away, Back, Begin, Begun, Hurried, Hurry, Pause};
use crate::runner::loader::{Period, Schedule};
use crate::runner::run_recorder::COORDINATOR;
use crate::topology::Rank;

/// From finding that the one before is still being written until the next is tried.
const AGAIN: Duration = Duration::from_millis(20);

/// What others have told a trainer.
#[derive(Default)]
pub struct Announced {
    /// By the first trainer, to another one.
    coming: Mutex<Option<Coming>>,
    /// By the coordinator, to the first trainer: the run is to stop.
    stops: AtomicBool,
    /// It takes steps, between which a checkpoint can be made.
    trains: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Coming {
    number: u64,
    /// This trainer waits for it before the first step behind so many.
    at: u64,
}

impl Announced {
    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let announced = self.clone();
        methods.serve(move |_, Announce { number, at }| {
            *lock(&announced.coming) = Some(Coming { number, at });
            std::future::ready(Ok::<(), CallError>(()))
        });
        let announced = self.clone();
        methods.serve(move |incoming, Hurry {}| std::future::ready(announced.hurry(incoming.from)));
    }
}

impl Announced {
    fn hurry(&self, from: Rank) -> Result<Hurried, CallError> {
        of_coordinator(from)?;
        let trains = self.trains.load(Ordering::SeqCst);
        self.stops.store(trains, Ordering::SeqCst);
        Ok(Hurried { trains })
    }
}

/// Over all checkpoints of a run.
pub struct Turns<'a> {
    mesh: &'a Mesh,
    announced: &'a Announced,
    checkpoints: Checkpoints,
    /// By which validations are the best, where those of so many are kept.
    best: Option<(Criterion, usize)>,
    others: Vec<Rank>,
    is_first: bool,
    stand_still: StandStill,
    /// This trainer's.
    schedule: &'a Schedule,
    /// How many were announced.
    number: u64,
    last: Instant,
    /// The first trainer's: behind so many of its steps.
    wanted: Option<u64>,
    /// One that could not be begun, and when it is tried again.
    owed: Option<Instant>,
}

/// How the trainers come to stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandStill {
    /// In rounds nobody has taken a step that the first trainer has not.
    Rounds,
    /// Each at the end of its step.
    Anywhere,
    /// Where none waits for another that stands still: so many steps ahead of the first trainer.
    Ahead(u64),
}

impl<'a> Turns<'a> {
    /// None: the job saves nothing.
    pub fn new(
        job: &Training,
        mesh: &'a Mesh,
        announced: &'a Announced,
        schedule: &'a Schedule,
    ) -> Option<Turns<'a>> {
        let trainers = &job.train.trainers.ranks;
        let stand_still = match job.train.consistency.apart() {
            Apart::Together => StandStill::Rounds,
            _ if trainers.len() == 1 => StandStill::Rounds,
            Apart::AtMost(steps) => StandStill::Ahead(steps),
            // In each step they wait for each other's gradients.
            Apart::Freely if job.has_replicas() => StandStill::Ahead(2),
            Apart::Freely => StandStill::Anywhere,
        };
        let checkpoints = job.checkpoint.clone()?;
        announced.trains.store(true, Ordering::SeqCst);
        Some(Turns {
            mesh,
            announced,
            best: Criterion::of(job).zip(checkpoints.keep_best),
            checkpoints,
            others: trainers[1..].to_vec(),
            is_first: trainers[0] == mesh.rank(),
            stand_still,
            schedule,
            number: 0,
            last: Instant::now(),
            wanted: None,
            owed: None,
        })
    }

    /// Does this trainer stand still after so many of its steps?
    ///
    /// # Errors
    /// The others cannot be told.
    pub fn is_due(&mut self, steps: u64) -> Result<bool> {
        if steps >= self.schedule.total_steps() {
            return Ok(false);
        }
        if !self.is_first {
            return Ok(lock(&self.announced.coming).is_some_and(|coming| coming.at <= steps));
        }
        if self.wanted.is_none() && self.wants(steps) {
            let at = match self.stand_still {
                StandStill::Rounds | StandStill::Anywhere => steps,
                StandStill::Ahead(by) => steps + by,
            };
            // Behind its end it would not come.
            if at >= self.schedule.total_steps() {
                return Ok(false);
            }
            self.wanted = Some(at);
            if let StandStill::Ahead(_) = self.stand_still {
                self.announce(at)?;
            }
        }
        Ok(self.wanted.is_some_and(|at| at <= steps))
    }

    fn wants(&self, steps: u64) -> bool {
        if let Some(again) = self.owed {
            return again <= Instant::now();
        }
        if self.announced.stops.load(Ordering::SeqCst) {
            return true;
        }
        let Checkpoints { every_steps, every_seconds, every_epochs, .. } = self.checkpoints;
        every_steps.is_some_and(|every| steps.is_multiple_of(every))
            || every_epochs.is_some_and(|every| self.schedule.is_end(Period::Epochs(every), steps))
            || every_seconds.is_some_and(|every| self.last.elapsed() >= Duration::from_secs_f64(every))
    }

    /// A validation behind so many of this trainer's steps has found the last of `judged`: where that is among the best, the
    /// first trainer wants a checkpoint, and is told whether it stands still for it at once. Where the others have to come to it,
    /// it is made as soon as they can.
    ///
    /// # Errors
    /// The others cannot be told.
    pub fn validated(&mut self, steps: u64, judged: &[Figures]) -> Result<bool> {
        let is_best = |(criterion, n): &(Criterion, usize)| criterion.is_among_best(judged, *n);
        if !self.is_first || !self.best.as_ref().is_some_and(is_best) {
            return Ok(false);
        }
        self.owed = Some(Instant::now());
        // Who is ahead of it may have taken the steps behind which they would meet: that of the next step they have not.
        match self.stand_still {
            StandStill::Rounds | StandStill::Anywhere => self.is_due(steps),
            StandStill::Ahead(_) => Ok(false),
        }
    }

    fn announce(&mut self, at: u64) -> Result<()> {
        self.number += 1;
        let number = self.number;
        let told: Vec<_> =
            self.others.iter().map(|&rank| self.mesh.request(rank, Announce { number, at })).collect();
        told.into_iter().try_for_each(|told| Ok(told.wait()?))
    }

    /// Stands still for one that is due: `state` is this trainer's. What the first trainer's modules have was offered before.
    ///
    /// # Errors
    /// When a rank is lost; when too many could not be saved.
    pub fn stand_still(&mut self, state: TrainerState) -> Result<()> {
        let state = Json(state);
        if !self.is_first {
            let Some(Coming { number, .. }) = lock(&self.announced.coming).take() else { return Ok(()) };
            let pause = Pause { number, state };
            return Ok(self.mesh.request_within(COORDINATOR, pause, WAIT_FOR_TRAINERS).wait()?);
        }
        // Not before: another one that stood still would not come to a validation that this one comes to first.
        if self.stand_still == StandStill::Anywhere {
            self.announce(0)?;
        }
        let number = (self.stand_still != StandStill::Rounds).then_some(self.number);
        let begin = Begin { state, number };
        let Begun { begun } = self.mesh.request_within(COORDINATOR, begin, WAIT_FOR_TRAINERS).wait()?;
        let now = Instant::now();
        self.wanted = None;
        if begun {
            (self.owed, self.last) = (None, now);
        } else {
            self.owed = Some(now + AGAIN);
        }
        Ok(())
    }

    /// This trainer takes no step until the others have come to a validation: nobody waits for it.
    ///
    /// # Errors
    /// When the coordinator is lost.
    pub fn validates(&self, state: TrainerState) -> Result<()> {
        self.away(TrainerState { awaits_validation: true, ..state })
    }

    fn away(&self, state: TrainerState) -> Result<()> {
        if self.is_first || self.stand_still == StandStill::Rounds {
            return Ok(());
        }
        Ok(self.mesh.request(COORDINATOR, Away { state: Json(state) }).wait()?)
    }

    /// This trainer takes no more steps.
    ///
    /// # Errors
    /// When the coordinator is lost.
    pub fn end(&self, state: TrainerState) -> Result<()> {
        self.announced.trains.store(false, Ordering::SeqCst);
        self.away(state)
    }

    /// It takes steps again, when no cut is being made.
    ///
    /// # Errors
    /// When the coordinator is lost.
    pub fn back(&self) -> Result<()> {
        if self.is_first || self.stand_still == StandStill::Rounds {
            return Ok(());
        }
        Ok(self.mesh.request_within(COORDINATOR, Back {}, WAIT_FOR_TRAINERS).wait()?)
    }
}
