//! Parameters with a version: snapshots for the steps that read, copy-on-write for the updates.

use std::sync::Arc;

use tch::Tensor;

/// The current parameters of a module. Invariants:
///
/// - `V-1` A tensor that a live [`Snapshot`] holds is never written.
/// - `V-2` The version grows by one with each update.
pub struct Versioned {
    version: u64,
    tensors: Vec<Tensor>,
    /// Cloned into each snapshot of the present tensors: more than one holder means that somebody reads them.
    readers: Arc<()>,
}

/// One version of the parameters, as a step uses it.
pub struct Snapshot {
    pub version: u64,
    /// Share their storage with the parameters until the next update.
    pub tensors: Vec<Tensor>,
    _reader: Arc<()>,
}

impl Versioned {
    pub fn new(tensors: Vec<Tensor>) -> Versioned {
        Versioned { version: 0, tensors, readers: Arc::new(()) }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn snapshot(&self) -> Snapshot {
        let tensors = self.tensors.iter().map(Tensor::shallow_clone).collect();
        Snapshot { version: self.version, tensors, _reader: self.readers.clone() }
    }

    /// Runs `write`, which changes the tensors it is given in place; they are copied first where a snapshot still
    /// reads them.
    ///
    /// # Errors
    /// What `write` returns; the version does not grow then.
    pub fn update<E: From<tch::TchError>>(
        &mut self,
        write: impl FnOnce(&[Tensor]) -> Result<(), E>,
    ) -> Result<u64, E> {
        // Unlike the count this also orders what the last reader did before what is written now.
        if Arc::get_mut(&mut self.readers).is_none() {
            let copies: Result<Vec<Tensor>, _> = self.tensors.iter().map(copy).collect();
            self.tensors = copies?;
            self.readers = Arc::new(());
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

    #[test]
    fn a_snapshot_keeps_its_version_while_the_parameters_go_on() {
        let mut parameters = Versioned::new(vec![Tensor::zeros([2], (Kind::Float, Device::Cpu))]);
        let before = parameters.snapshot();
        assert_eq!(parameters.update(add_one).unwrap(), 1);
        assert_eq!(before.tensors[0].double_value(&[0]), 0.0, "V-1");
        assert_eq!(parameters.snapshot().tensors[0].double_value(&[0]), 1.0);
        assert_eq!((before.version, parameters.version()), (0, 1), "V-2");
    }

    #[test]
    fn without_readers_the_update_is_in_place() {
        let mut parameters = Versioned::new(vec![Tensor::zeros([2], (Kind::Float, Device::Cpu))]);
        let address = parameters.snapshot().tensors[0].data_ptr();
        parameters.update(add_one).unwrap();
        assert_eq!(parameters.snapshot().tensors[0].data_ptr(), address);
    }

    #[test]
    fn a_failed_update_leaves_the_version() {
        let mut parameters = Versioned::new(vec![Tensor::zeros([2], (Kind::Float, Device::Cpu))]);
        let failed = parameters.update(|_| Err(TchError::Torch("no".into())));
        assert!(failed.is_err());
        assert_eq!(parameters.version(), 0);
    }
}
