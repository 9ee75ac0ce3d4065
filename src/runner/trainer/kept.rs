//! What checkpoints have of a trainer, and how it goes on from one.

use anyhow::{Context as _, Result};

use super::Trainer;
use crate::job::{ModuleSpec, Place};
use crate::parallel::{ModuleHandle, StateSnapshot, WAIT_FOR_TRAINERS};
use crate::rpc::Json;
use crate::runner::calls::checkpoint::{Entrust, Restore};
use crate::runner::calls::validation::Verdict;
use crate::runner::checkpoint::{Checkpoint, Destination, Entrusted, Left, Resumed, TrainerState, Turns};
use crate::runner::course::Course;
use crate::runner::remains::Remains;
use crate::runner::run_recorder::COORDINATOR;
use crate::runner::step::Stepper;
use crate::runner::validation::Validations;

impl Trainer<'_> {
    /// Another rank may be lost: what this trainer has is left to be saved, where that is the whole model.
    pub(super) fn leave(
        &self,
        remains: Remains,
        stepper: &mut Stepper,
        course: &Course,
        validations: &Validations<'_>,
    ) -> Result<()> {
        let awaits_validation = remains.awaits_validation(validations.judged().len());
        let Some(destination) =
            remains.restore(stepper)?.filter(|_| (1..course.steps).contains(&course.step))
        else {
            return Ok(());
        };
        // The step that has failed is counted already.
        stepper.optimizer.go_on_from(course.step, None);
        let (state, states) = (self.state(stepper, course, validations), self.own_states(stepper)?);
        // They average their gradients: all have taken the same steps.
        let trainers = self.job.train.trainers.ranks.iter();
        let trainers =
            trainers.map(|&rank| TrainerState { rank, awaits_validation, ..state.clone() }).collect();
        self.writer.leave(Left { destination, trainers, states });
        Ok(())
    }

    /// Tells the rank that holds all of the model, if one does, what a checkpoint has beside it. Gives where a trainer of replicas
    /// would save.
    pub(super) fn entrust(
        &self,
        destination: Option<Destination>,
        (stepper, course, validations): (&Stepper, &Course, &Validations<'_>),
    ) -> Result<Option<Destination>> {
        let (Some(owner), Some(destination)) = (self.job.sole_owner(), &destination) else {
            return Ok(destination);
        };
        if self.position() == 0 {
            let (destination, steps) = (destination.clone(), course.steps);
            let entrusted = Entrusted { destination, state: self.state(stepper, course, validations), steps };
            self.mesh.request(owner, Entrust { entrusted: Json(entrusted) }).wait()?;
        }
        Ok(None)
    }

    /// What a checkpoint has of this trainer.
    pub(super) fn state(
        &self,
        stepper: &Stepper,
        course: &Course,
        validations: &Validations<'_>,
    ) -> TrainerState {
        TrainerState {
            rank: self.mesh.rank(),
            steps: course.step,
            dealt: course.dealt.clone(),
            loss_scale: stepper.optimizer.loss_scale_state(),
            judged: validations.judged().to_vec(),
            best: validations.best().cloned(),
            awaits_validation: false,
        }
    }

    /// Stands still for a checkpoint that is due.
    pub(super) fn save(
        &self,
        turns: &mut Turns<'_>,
        (stepper, course, validations): (&mut Stepper, &Course, &Validations<'_>),
    ) -> Result<()> {
        self.mesh.doing("saving a checkpoint");
        self.offer(stepper)?;
        turns.stand_still(self.state(stepper, course, validations))
    }

    /// The first trainer's modules become a part of the checkpoint that comes.
    fn offer(&self, stepper: &mut Stepper) -> Result<()> {
        self.writer.offer(if self.position() == 0 { self.own_states(stepper)? } else { Vec::new() });
        Ok(())
    }

    /// What trainers have of the model, the first of them for all.
    pub(super) fn own_states(&self, stepper: &mut Stepper) -> Result<Vec<(ModuleSpec, StateSnapshot)>> {
        let mut states = Vec::new();
        for (spec, module) in self.job.modules.iter().zip(&stepper.modules) {
            let state = match module {
                ModuleHandle::Remote(_) | ModuleHandle::Sharded(_) => continue,
                ModuleHandle::Replica(_) => stepper.optimizer.snapshot(&spec.name)?,
                ModuleHandle::Pulled(pulled) => pulled.snapshot()?,
            };
            states.push((spec.clone(), state));
        }
        Ok(states)
    }

    /// Goes on from a checkpoint, when all trainers have come here.
    pub(super) fn go_on_from(
        &mut self,
        resumed: &Resumed,
        stepper: &mut Stepper,
        course: &mut Course,
        validations: &mut Validations<'_>,
    ) -> Result<Verdict> {
        self.doing("going on from a checkpoint");
        self.mesh.request_within(COORDINATOR, Restore {}, WAIT_FOR_TRAINERS).wait()?;
        let checkpoint = Checkpoint::open(&Place::parse(&resumed.place)?)?;
        let trainers = checkpoint.successors(self.job)?;
        let state = |spec: &ModuleSpec| checkpoint.module(spec.written_name(), &trainers);
        for (spec, module) in self.job.modules.iter().zip(&stepper.modules) {
            match module {
                ModuleHandle::Remote(_) | ModuleHandle::Sharded(_) => {}
                ModuleHandle::Replica(_) => stepper.optimizer.restore(&spec.name, &state(spec)?)?,
                ModuleHandle::Pulled(pulled) => pulled.restore(&state(spec)?)?,
            }
        }
        stepper.optimizer.refresh()?;
        let first = resumed.trainers.first().context("the checkpoint is of no trainer")?;
        let own = resumed.trainers.get(self.position() as usize).unwrap_or(first);
        stepper.optimizer.go_on_from(course.step, own.loss_scale);
        self.autograd.go_on_from(course.step);
        let awaiting = resumed.awaiting(self.job.train.trainers.ranks.len(), self.job.rounds());
        validations.go_on_from(&first.judged, first.best.clone(), &awaiting)
    }
}
