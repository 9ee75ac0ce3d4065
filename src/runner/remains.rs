//! What a trainer looks after so that its model can be saved as it was between two steps, should it not be able to go on (CP-4 in
//! `checkpoint`).

use anyhow::Result;
use tch::{Tensor, no_grad};

use super::checkpoint::Destination;
use super::step::Stepper;
use super::validation::own_buffers;

/// Of one trainer, step after step.
pub struct Remains {
    /// Where they would be saved. None: not at all.
    destination: Option<Destination>,
    now: Now,
    /// A validation is under way, behind so many.
    validates: Option<usize>,
}

enum Now {
    Between,
    /// In a step, which updates parameters last of all, or in a validation: what modules kept beside them when it began.
    Begun(Vec<Tensor>),
    /// In a validation, in which modules may have averages for their parameters.
    Averaged,
}

impl Remains {
    pub fn new(destination: Option<Destination>) -> Remains {
        Remains { destination, now: Now::Between, validates: None }
    }

    /// # Errors
    /// When libtorch cannot copy.
    pub fn step_begins(&mut self, stepper: &Stepper) -> Result<()> {
        if self.destination.is_some() {
            let kept = own_buffers(stepper);
            let copies = no_grad(|| kept.iter().map(Tensor::f_detach_copy).collect::<Result<_, _>>())?;
            self.now = Now::Begun(copies);
        }
        Ok(())
    }

    /// `judged`: what the validations before have found. `averages`: the model's averages are judged, too.
    ///
    /// # Errors
    /// When libtorch cannot copy.
    pub fn validation_begins(&mut self, stepper: &Stepper, judged: usize, averages: bool) -> Result<()> {
        // Modules get others' running statistics.
        self.step_begins(stepper)?;
        self.validates = Some(judged);
        if averages {
            self.now = Now::Averaged;
        }
        Ok(())
    }

    pub fn is_between(&mut self) {
        (self.now, self.validates) = (Now::Between, None);
    }

    /// Is it in a validation that nothing has come of, where `judged` is what all have found?
    pub fn awaits_validation(&self, judged: usize) -> bool {
        self.validates == Some(judged)
    }

    /// Undoes what a step, or a validation, has done that was not taken to its end. Gives where to save what is here then.
    ///
    /// # Errors
    /// When libtorch cannot copy.
    pub fn restore(self, stepper: &Stepper) -> Result<Option<Destination>> {
        match self.now {
            Now::Between => {}
            Now::Begun(before) => no_grad(|| {
                let kept = own_buffers(stepper);
                kept.into_iter()
                    .zip(&before)
                    .try_for_each(|(mut kept, before)| kept.f_copy_(before).map(drop))
            })?,
            Now::Averaged => return Ok(None),
        }
        Ok(self.destination)
    }
}
