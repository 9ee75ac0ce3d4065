//! A trainer's modules as they are judged: all of them with what the first trainer's keep, and with what the first hosts keep
//! (VA-2).

use std::sync::Arc;

use anyhow::{Result, ensure};
use tch::{Tensor, no_grad};

use crate::autograd::Autograd;
use crate::job::{ModuleSpec, Placement, Training};
use crate::parallel::{ModuleHandle, RemoteModule};
use crate::runner::step::Stepper;

/// What has been replaced for a while.
pub struct StandIn {
    /// This trainer's own running statistics.
    buffers: Vec<Tensor>,
    /// By the place of their modules.
    handles: Vec<(usize, ModuleHandle)>,
}

/// What this trainer's modules keep beside their parameters, as it is, module by module.
pub fn own_buffers(stepper: &Stepper) -> Vec<Tensor> {
    let local = |handle: &ModuleHandle| match handle {
        ModuleHandle::Replica(replica) => replica.module().share_buffers(),
        ModuleHandle::Pulled(pulled) => pulled.copy().module().share_buffers(),
        ModuleHandle::Remote(_) | ModuleHandle::Sharded(_) => Vec::new(),
    };
    stepper.modules.iter().flat_map(local).collect()
}

impl StandIn {
    /// `first` has come from the first trainer, or is this one's own.
    ///
    /// # Errors
    /// It does not fit, or a host cannot be asked.
    pub fn begin(
        stepper: &mut Stepper,
        job: &Training,
        autograd: &Arc<Autograd>,
        trainer: u32,
        first: &[Tensor],
    ) -> Result<StandIn> {
        let buffers = if trainer == 0 { Vec::new() } else { exchange(&own_buffers(stepper), first)? };
        let mut handles = Vec::new();
        for (at, spec) in job.modules.iter().enumerate().filter(|(_, spec)| has_hosts_that_differ(spec)) {
            let host = spec.place.ranks[0];
            if spec.host_of(trainer as usize) != host {
                let module = ModuleHandle::Remote(RemoteModule::get(autograd, host, &spec.name)?);
                handles.push((at, std::mem::replace(&mut stepper.modules[at], module)));
            }
        }
        Ok(StandIn { buffers, handles })
    }

    /// # Errors
    /// When libtorch cannot copy.
    pub fn end(self, stepper: &mut Stepper) -> Result<()> {
        for (at, handle) in self.handles {
            stepper.modules[at] = handle;
        }
        if !self.buffers.is_empty() {
            exchange(&own_buffers(stepper), &self.buffers)?;
        }
        Ok(())
    }
}

/// The hosts' parameters are the same, what they keep beside them is not.
fn has_hosts_that_differ(spec: &ModuleSpec) -> bool {
    spec.placement == Placement::Remote && spec.place.ranks.len() > 1 && spec.has_buffers()
}

/// Writes `values` into `buffers`, and gives what was there.
fn exchange(buffers: &[Tensor], values: &[Tensor]) -> Result<Vec<Tensor>> {
    let form = |tensor: &Tensor| (tensor.size(), tensor.kind());
    ensure!(
        buffers.iter().map(form).eq(values.iter().map(form)),
        "the first trainer's modules keep other tensors beside their parameters than this one's"
    );
    no_grad(|| {
        let before = buffers.iter().map(Tensor::f_detach_copy).collect::<Result<Vec<_>, _>>()?;
        for (buffer, value) in buffers.iter().zip(values) {
            buffer.shallow_clone().f_copy_(value)?;
        }
        Ok(before)
    })
}
