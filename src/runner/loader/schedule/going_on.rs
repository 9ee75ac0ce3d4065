//! Schedules that go on behind other trainers.

use std::cmp::Ordering;

use super::{Begun, Schedule, ScheduleError, ScheduleSpec, shares};
use crate::job::Partition;
use crate::runner::loader::dealt::{Dealt, Left, Origin};

impl Schedule {
    /// Goes on behind trainers that had taken `steps`, who may have been more or fewer, or may have shared the samples otherwise.
    ///
    /// # Errors
    /// The data are not the same; their parts cannot be dealt out anew.
    pub fn going_on(self, dealt: &Dealt, steps: &[u64]) -> Result<Schedule, ScheduleError> {
        if dealt.samples != self.spec.samples {
            return Err(ScheduleError::OtherData { before: dealt.samples, now: self.spec.samples });
        }
        let (starts, anew) = dealt.starts(steps, self.taken.len(), self.spec.even_steps);
        let origin = match (&self.spec.partition, anew) {
            (_, false) => dealt.origin.clone(),
            (Partition::Split, true) => self.dealt_before(dealt, steps)?,
            // Each sees all of them.
            (Partition::Whole, true) => Origin::default(),
            (Partition::Fractions(_), true) => return Err(ScheduleError::Fractions),
        };
        Ok(Schedule { starts, ..self.from(origin)? })
    }

    /// What earlier trainers have taken of the epochs that are not over for all of them.
    fn dealt_before(&self, dealt: &Dealt, steps: &[u64]) -> Result<Origin, ScheduleError> {
        let before = ScheduleSpec {
            trainer: 0,
            trainers: steps.len() as u32,
            even_steps: dealt.even_steps,
            ..self.spec.clone()
        };
        let before = Schedule::new(before)?.from(dealt.origin.clone())?;
        let places: Vec<_> = steps.iter().enumerate().map(|(of, &steps)| before.place(of, steps)).collect();
        let epochs = places.iter().map(|(epoch, _)| *epoch);
        let first = epochs.clone().min().unwrap_or(0);
        // Those before them may have begun later ones.
        let begun = dealt.origin.epoch + dealt.origin.taken.len() as u32;
        let last = epochs.max().unwrap_or(0).max(begun.saturating_sub(1));
        let of_epoch = |epoch: u32| {
            let taken =
                places.iter().zip(before.taken_in(epoch)).map(|(&(of, batch), &all)| match of.cmp(&epoch) {
                    Ordering::Greater => all,
                    Ordering::Equal => all.min(batch * self.spec.batch_size),
                    Ordering::Less => 0,
                });
            let taken: Vec<u64> = taken.collect();
            let earlier =
                epoch.checked_sub(dealt.origin.epoch).and_then(|nth| dealt.origin.taken.get(nth as usize));
            let taken = Some(taken).filter(|taken| taken.iter().any(|taken| *taken > 0));
            earlier.cloned().unwrap_or_default().into_iter().chain(taken).collect()
        };
        let mut taken: Vec<Vec<Vec<u64>>> = (first..=last).map(of_epoch).collect();
        while taken.pop_if(|sets| sets.is_empty()).is_some() {}
        Ok(Origin { step: steps.first().copied().unwrap_or(0), epoch: first, taken })
    }

    fn from(self, origin: Origin) -> Result<Schedule, ScheduleError> {
        let begin = |taken: &Vec<Vec<u64>>| {
            let left = Left::new(self.spec.samples, taken).ok_or(ScheduleError::BadOrigin)?;
            let (taken, _) = shares(&self.spec, left.count());
            Ok(Begun { left, taken })
        };
        let begun = origin.taken.iter().map(begin).collect::<Result<_, _>>()?;
        let mut schedule = Schedule { origin, begun, ..self };
        schedule.total_steps = schedule.total_of(schedule.own());
        Ok(schedule)
    }
}
