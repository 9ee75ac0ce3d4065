//! Validation: the test data through the model, by all trainers together, and what follows from its figures.
//!
//! Each trainer comes to it at the same place of its own training: after so many of its steps or epochs, and at the end. They
//! wait for each other ([`Meeting`]), each takes its part of the test data through the model ([`Counted`]), the first puts
//! the parts together, decides ([`Rules`]), and tells the others.
//!
//! - `VA-1` Nobody takes a step while one of them validates: all look at one and the same model.
//! - `VA-2` Trainers' copies are judged with the running statistics of the first one's, which are those that are saved.

pub mod averages;
mod counted;
mod evaluate;
mod measured;
mod meeting;
mod rules;
mod stand_in;

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use tch::{Tensor, no_grad};

use super::calls::validation::{Buffers, Found, Judge, Judged, Ready, Verdict};
use super::checkpoint::Figures;
use super::inputs::BadJob;
use super::loader::{Period, Schedule};
use super::metrics::Unimproved;
use super::records::{EvalRecord, EvalResult};
use crate::job::{Apart, Every, Training};
use crate::parallel::WAIT_FOR_TRAINERS;
use crate::rpc::{Json, Mesh, Methods};
use crate::topology::Rank;
pub use counted::Counted;
pub use evaluate::{Share, evaluate, predict};
pub use measured::Measured;
use meeting::{Arrival, Meeting};
pub use rules::Rules;
pub use stand_in::{StandIn, own_buffers};

/// Where the first trainer answers the others.
pub struct Meetings {
    ready: Arc<Meeting<Ready>>,
    judge: Arc<Meeting<Judge>>,
}

impl Meetings {
    pub fn new(trainers: &[Rank]) -> Meetings {
        let others = trainers.get(1..).unwrap_or_default();
        Meetings { ready: Meeting::new(others), judge: Meeting::new(others) }
    }

    pub fn register(&self, methods: &mut Methods) {
        self.ready.register(methods);
        self.judge.register(methods);
    }
}

/// A trainer's side, over all validations of a run.
pub struct Validations<'a> {
    mesh: &'a Mesh,
    first: Rank,
    meetings: &'a Meetings,
    /// How many there were.
    number: u64,
    rules: Rules,
    /// The best one, as the first trainer has told.
    best: Option<EvalRecord>,
    /// From one to the next, and the steps that it is counted in. None: there is only that at the end.
    every: Option<(Period, Schedule)>,
    /// So many more have trainers with more steps before the end.
    others: u64,
    /// This trainer goes on from where it waited for one.
    awaits: bool,
    /// Trainers wait for those that fall behind.
    keeps_together: bool,
}

impl<'a> Validations<'a> {
    /// # Errors
    /// Trainers would wait for each other: some here, some in a step.
    pub fn new(
        job: &Training,
        mesh: &'a Mesh,
        meetings: &'a Meetings,
        schedule: &Schedule,
    ) -> Result<Validations<'a>, BadJob> {
        let every = match job.eval.every {
            Every::End => None,
            Every::Epochs(epochs) => Some(Period::Epochs(epochs)),
            Every::Steps(steps) => Some(Period::Steps(steps)),
        };
        let every = every.filter(|_| job.data.test.is_some());
        let (least, most) = schedule.shortest_and_longest_epoch();
        let keeps_together = match job.train.consistency.apart() {
            Apart::AtMost(_) => true,
            Apart::Together | Apart::Freely => false,
        };
        if let (Some(Period::Epochs(_)), true, true) = (every, keeps_together, least < most) {
            return Err(BadJob(anyhow!(
                "`eval.every_epochs`: the trainers' epochs have from {least} to {most} steps, and under {} \
                 those with fewer would wait in the validation for those with more, which wait for them\n  \
                 hint: write eval.every_steps, which all of them come to together",
                job.train.consistency
            )));
        }
        let every = every.map(|every| (every, schedule.clone()));
        Ok(Validations {
            mesh,
            first: job.train.trainers.ranks[0],
            meetings,
            number: 0,
            rules: Rules::new(job),
            best: None,
            others: every
                .as_ref()
                .map_or(0, |(period, schedule)| schedule.occasions(*period, &[]).of_others()),
            every,
            awaits: false,
            keeps_together,
        })
    }

    /// One, of a model that is there.
    pub fn at_once(job: &Training, mesh: &'a Mesh, meetings: &'a Meetings) -> Validations<'a> {
        let first = job.train.trainers.ranks[0];
        let rules = Rules::default();
        Validations {
            mesh,
            first,
            meetings,
            number: 0,
            rules,
            best: None,
            every: None,
            others: 0,
            awaits: false,
            keeps_together: false,
        }
    }

    /// Goes on behind validations that found these, and of which this was the best; gives what the last of them decided. `awaiting`:
    /// which trainers waited for the next one.
    ///
    /// # Errors
    /// As of a validation; as of [`Validations::new`], where the job validates more or less often than it did.
    pub fn go_on_from(
        &mut self,
        judged: &[Figures],
        best: Option<EvalRecord>,
        awaiting: &[bool],
    ) -> Result<Verdict> {
        (self.number, self.best) = (judged.len() as u64, best);
        if let Some((period, schedule)) = &self.every {
            let occasions = schedule.occasions(*period, awaiting);
            if self.keeps_together && !occasions.are_level {
                return Err(BadJob(anyhow!(
                    "`eval`: some trainers go on before a validation and some behind it, and the first of them would wait \
                     in it for the others, which wait for them\n  \
                     hint: validate as often as the job of the checkpoint does"
                ))
                .into());
            }
            self.others = occasions.of_others();
            let awaits = awaiting.get(schedule.own()).is_some_and(|awaits| *awaits);
            // Where it is none any more nobody else comes to it.
            let others_come = self.is_due(schedule.first_step()) || awaiting.iter().all(|awaits| *awaits);
            self.awaits = awaits && others_come;
        }
        let mut verdict = Verdict::GO_ON;
        for figures in judged {
            (_, verdict) = self.rules.judge(&figures.result())?;
        }
        Ok(verdict)
    }

    /// What the validations have found.
    pub fn judged(&self) -> &[Figures] {
        self.rules.judged()
    }

    /// The best one so far.
    pub fn best(&self) -> Option<&EvalRecord> {
        self.best.as_ref()
    }

    /// Is the model judged after so many steps?
    pub fn is_due(&self, steps: u64) -> bool {
        let due = |(period, schedule): &(Period, Schedule)| {
            steps < schedule.total_steps() && schedule.is_end(*period, steps)
        };
        self.every.as_ref().is_some_and(due)
    }

    /// Is there one before the next step? Once.
    pub fn take_awaited(&mut self) -> bool {
        std::mem::take(&mut self.awaits)
    }

    /// Once for each validation in which this trainer takes part though it has ended.
    pub fn others_go_on(&mut self) -> bool {
        let more = self.others > 0;
        self.others -= u64::from(more);
        more
    }

    /// The first trainer's: by which figure training stops.
    pub fn unimproved(&self) -> Option<Unimproved> {
        self.rules.unimproved().filter(|_| self.is_first())
    }

    fn is_first(&self) -> bool {
        self.mesh.rank() == self.first
    }

    /// Waits for all trainers. `own` is what this trainer's modules keep beside their parameters; gives what to judge with.
    ///
    /// # Errors
    /// When a rank is lost, or a trainer is at another validation.
    pub fn begin(&mut self, own: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.number += 1;
        let number = self.number;
        if !self.is_first() {
            let ready = self.mesh.request_within(self.first, Ready { number }, WAIT_FOR_TRAINERS);
            return Ok(ready.wait()?.tensors);
        }
        let arrivals = self.meetings.ready.gather(self.mesh)?;
        for arrival in &arrivals {
            let Ready { number: theirs } = arrival.call;
            ensure!(
                theirs == number,
                "rank {} is at validation {theirs}, and the first trainer at {number}",
                arrival.from
            );
        }
        let copies =
            || own.iter().map(|tensor| Ok(no_grad(|| tensor.f_detach_copy())?)).collect::<Result<_>>();
        for arrival in arrivals {
            arrival.answer.send(Buffers { tensors: copies()? });
        }
        Ok(own)
    }

    /// What this trainer has counted becomes a part of the whole. The first trainer decides with `decide`; the others hear
    /// what it has decided.
    ///
    /// # Errors
    /// When a rank is lost, or has sent what does not fit.
    pub fn end(
        &mut self,
        job: &Training,
        counted: Counted,
        decide: impl FnOnce(&mut Rules, EvalResult) -> Result<(Verdict, Found)>,
    ) -> Result<Verdict> {
        let number = self.number;
        if !self.is_first() {
            let (about, batches, states) = counted.into_parts()?;
            let judge = Judge { number, about: Json(about), batches, states };
            let judged = self.mesh.request_within(self.first, judge, WAIT_FOR_TRAINERS).wait()?;
            let Judged { stop, lr_factor, found: Json(Found { figures, best }) } = judged;
            figures.into_iter().for_each(|figures| self.rules.hear(figures));
            self.best = best.or(self.best.take());
            return Ok(Verdict { stop, lr_factor });
        }
        let (mut others, mut waiting) = (Vec::new(), Vec::new());
        for Arrival { from, call, answer } in self.meetings.judge.gather(self.mesh)? {
            let Judge { number: theirs, about: Json(about), batches, states } = call;
            ensure!(
                theirs == number,
                "rank {from} is at validation {theirs}, and the first trainer at {number}"
            );
            others.push((about, batches, states));
            waiting.push(answer);
        }
        let decided = counted.together(job, others);
        let decided = decided.and_then(|result| decide(&mut self.rules, result).context("the validation"));
        let (verdict, found) = match decided {
            Ok(decided) => decided,
            Err(error) => {
                waiting.into_iter().for_each(|answer| answer.refuse(&error));
                return Err(error);
            }
        };
        for answer in waiting {
            let Verdict { stop, lr_factor } = verdict;
            answer.send(Judged { stop, lr_factor, found: Json(found.clone()) });
        }
        self.best = found.best.or(self.best.take());
        Ok(verdict)
    }
}
