//! Parameters with a version: snapshots for the steps that read, copy-on-write for the updates.

use std::sync::Arc;

use tch::Tensor;

/// The current parameters of a module. Invariants:
///
/// - `V-1` A tensor that a live [`Snapshot`] holds is never written, but where updates are made in place.
/// - `V-2` The version grows by one with each update.
pub struct Versioned {
    version: u64,
    tensors: Vec<Tensor>,
    /// One for each tensor, cloned into each snapshot of it: more than one holder means that somebody reads it.
    readers: Vec<Arc<()>>,
    /// Readers are not looked at: what they read goes on changing.
    in_place: bool,
}

/// One version of the parameters, as a step uses it.
pub struct Snapshot {
    /// Share their storage with the parameters until the next update.
    pub tensors: Vec<Tensor>,
    _readers: Vec<Arc<()>>,
}

impl Versioned {
    pub fn new(tensors: Vec<Tensor>) -> Versioned {
        let readers = tensors.iter().map(|_| Arc::new(())).collect();
        Versioned { version: 0, tensors, readers, in_place: false }
    }

    /// A handle on the same tensors that writes them in place, whoever reads.
    pub fn in_place(&self) -> Versioned {
        let tensors = self.tensors.iter().map(Tensor::shallow_clone).collect();
        Versioned { version: self.version, tensors, readers: self.readers.clone(), in_place: true }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// As they are now, for whoever has this locked.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub fn snapshot(&self) -> Snapshot {
        let tensors = self.tensors.iter().map(Tensor::shallow_clone).collect();
        Snapshot { tensors, _readers: self.readers.clone() }
    }

    /// Runs `write`, which changes the `touched` ones of the tensors it is given in place; these are copied first where a
    /// snapshot still reads them.
    ///
    /// # Errors
    /// What `write` returns; the version does not grow then.
    pub fn update<E: From<tch::TchError>>(
        &mut self,
        touched: &[bool],
        write: impl FnOnce(&[Tensor]) -> Result<(), E>,
    ) -> Result<u64, E> {
        if !self.in_place {
            let each = self.tensors.iter_mut().zip(&mut self.readers).zip(touched);
            for ((tensor, readers), _) in each.filter(|(_, touched)| **touched) {
                // Unlike the count this also orders what the last reader did before what is written now.
                if Arc::get_mut(readers).is_none() {
                    *tensor = copy(tensor)?;
                    *readers = Arc::new(());
                }
            }
        }
        write(&self.tensors)?;
        self.version += 1;
        Ok(self.version)
    }
}

fn copy(tensor: &Tensor) -> Result<Tensor, tch::TchError> {
    let mut copy = tensor.f_detach()?.f_empty_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, TchError};

    use super::*;

    fn add_one(tensors: &[Tensor]) -> Result<(), TchError> {
        let _ = tensors[0].shallow_clone().f_add_scalar_(1.0)?;
        Ok(())
    }

    fn zeros() -> Versioned {
        Versioned::new(vec![Tensor::zeros([2], (Kind::Float, Device::Cpu)), Tensor::from(7.0)])
    }

    const FIRST: [bool; 2] = [true, false];

    #[test]
    fn a_snapshot_keeps_its_version_while_the_parameters_go_on() {
        let mut parameters = zeros();
        let before = parameters.snapshot();
        assert_eq!(parameters.update(&FIRST, add_one).unwrap(), 1);
        assert_eq!(before.tensors[0].double_value(&[0]), 0.0, "V-1");
        assert_eq!(parameters.snapshot().tensors[0].double_value(&[0]), 1.0);
        assert_eq!(parameters.version(), 1, "V-2");
    }

    #[test]
    fn what_an_update_does_not_touch_is_not_copied() {
        let mut parameters = zeros();
        let before = parameters.snapshot();
        parameters.update(&FIRST, add_one).unwrap();
        let after = parameters.snapshot();
        let shared = |at: usize| before.tensors[at].data_ptr() == after.tensors[at].data_ptr();
        assert_eq!([shared(0), shared(1)], [false, true]);
    }

    #[test]
    fn without_readers_the_update_is_in_place() {
        let mut parameters = zeros();
        let address = parameters.snapshot().tensors[0].data_ptr();
        parameters.update(&FIRST, add_one).unwrap();
        assert_eq!(parameters.snapshot().tensors[0].data_ptr(), address);
    }

    #[test]
    fn a_handle_in_place_copies_for_nobody() {
        let parameters = zeros();
        let before = parameters.snapshot();
        parameters.in_place().update(&FIRST, add_one).unwrap();
        assert_eq!(before.tensors[0].double_value(&[0]), 1.0);
    }

    #[test]
    fn a_failed_update_leaves_the_version() {
        let mut parameters = zeros();
        let failed = parameters.update(&FIRST, |_| Err(TchError::Torch("no".into())));
        assert!(failed.is_err());
        assert_eq!(parameters.version(), 0);
    }
}
