//! Where periods of steps or of epochs end, for this trainer and for the others.

use super::Schedule;

/// A number of steps or of epochs, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Steps(u64),
    Epochs(u64),
}

/// Of a period's ends before each trainer's last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occasions {
    /// That this trainer has before it.
    pub own: u64,
    /// Of the trainer that has most.
    pub most: u64,
    /// All that still take steps have as many behind them.
    pub are_level: bool,
}

impl Occasions {
    /// That others have before them when this trainer has seen its own.
    pub fn of_others(&self) -> u64 {
        self.most - self.own
    }
}

impl Schedule {
    /// Does a period of this trainer end behind so many of its steps?
    pub fn is_end(&self, period: Period, steps: u64) -> bool {
        match period {
            Period::Steps(every) => steps.is_multiple_of(every),
            Period::Epochs(every) => {
                let Some(last) = steps.checked_sub(1) else { return false };
                let (epoch, step) = self.place(self.own(), last);
                step + 1 == self.steps_in(epoch, self.own()) && (u64::from(epoch) + 1).is_multiple_of(every)
            }
        }
    }

    /// How the trainers come to the ends of a period. Those that are `awaiting` something at the end at which they begin have it
    /// before them.
    pub fn occasions(&self, period: Period, awaiting: &[bool]) -> Occasions {
        let awaits = |trainer: usize| awaiting.get(trainer).is_some_and(|awaits| *awaits);
        let of = |trainer: usize| {
            let all = self.total_of(trainer);
            let last = all.saturating_sub(1);
            let begins = self.starts[trainer].saturating_sub(u64::from(awaits(trainer))).min(last);
            let [passed, all_of_them] = [begins, last].map(|steps| self.ends_until(period, trainer, steps));
            (passed, all_of_them - passed, self.starts[trainer] < all)
        };
        let each: Vec<_> = (0..self.taken.len()).map(of).collect();
        let mut passed = each.iter().filter(|(.., takes_steps)| *takes_steps).map(|(passed, ..)| passed);
        let first = passed.next();
        Occasions {
            own: each[self.own()].1,
            most: each.iter().map(|(_, ahead, _)| *ahead).max().unwrap_or(0),
            are_level: passed.all(|other| Some(other) == first),
        }
    }

    /// Ends of a period that lie behind a trainer after so many of its steps, which are fewer than all.
    fn ends_until(&self, period: Period, trainer: usize, steps: u64) -> u64 {
        match period {
            Period::Steps(every) => steps / every,
            Period::Epochs(every) => {
                let (now, _) = self.place(trainer, steps);
                // Of an epoch that others have left it nothing of it does not see the end.
                let epochs = (self.origin.epoch..now).take(self.begun.len());
                let unseen = epochs.filter(|&epoch| {
                    (u64::from(epoch) + 1).is_multiple_of(every) && self.steps_in(epoch, trainer) == 0
                });
                u64::from(now) / every - unseen.count() as u64
            }
        }
    }
}
