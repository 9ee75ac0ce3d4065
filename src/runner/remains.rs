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
}

enum Now {
    Between,
    /// What modules kept beside their parameters when the step began, which updates these last of all.
    InStep(Vec<Tensor>),
    /// Modules have others' running statistics, or averages for their parameters.
    Judged,
}

impl Remains {
    pub fn new(destination: Option<Destination>) -> Remains {
        Remains { destination, now: Now::Between }
    }

    /// # Errors
    /// When libtorch cannot copy.
    pub fn step_begins(&mut self, stepper: &Stepper) -> Result<()> {
        if self.destination.is_some() {
            let kept = own_buffers(stepper);
            let copies = no_grad(|| kept.iter().map(Tensor::f_detach_copy).collect::<Result<_, _>>())?;
            self.now = Now::InStep(copies);
        }
        Ok(())
    }

    pub fn is_judged(&mut self) {
        self.now = Now::Judged;
    }

    pub fn is_between(&mut self) {
        self.now = Now::Between;
    }

    /// Undoes what a step has done that was not taken to its end. Gives where to save what is here then.
    ///
    /// # Errors
    /// When libtorch cannot copy.
    pub fn restore(self, stepper: &Stepper) -> Result<Option<Destination>> {
        match self.now {
            Now::Between => {}
            Now::InStep(before) => no_grad(|| {
                let kept = own_buffers(stepper);
                kept.into_iter()
                    .zip(&before)
                    .try_for_each(|(mut kept, before)| kept.f_copy_(before).map(drop))
            })?,
            Now::Judged => return Ok(None),
        }
        Ok(self.destination)
    }
}
