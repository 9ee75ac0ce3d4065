//! The state of a whole module: its parameters wherever they are, what it keeps beside them, and its optimizer.

use anyhow::Result;
use tch::{Tensor, no_grad};

use super::{Entry, Extent, OwnerState, Restored};
use crate::model::Module;
use crate::optimizers::{NamedSlot, Optimizer};
use crate::topology::Rank;

/// The values of `parameters`, which are the module's, and of what it keeps beside them.
pub(in crate::parallel) fn add_module(
    state: &mut OwnerState,
    module: &Module,
    parameters: &[Tensor],
) -> Result<()> {
    for (info, parameter) in module.parameters().iter().zip(parameters) {
        state.add_whole(&info.name, parameter)?;
    }
    add_kept(state, module)
}

/// Buffers, as copies, and parameters that are not trained.
pub(in crate::parallel) fn add_kept(state: &mut OwnerState, module: &Module) -> Result<()> {
    for kept in module.kept() {
        let value = if kept.fixed { kept.tensor } else { kept.tensor.f_detach_copy()? };
        state.add_whole(&kept.name, &value)?;
    }
    state.aliases.extend(module.tied().iter().cloned());
    Ok(())
}

/// What an optimizer over the module's parameters remembers.
pub(in crate::parallel) fn add_slots(
    state: &mut OwnerState,
    module: &Module,
    lane: Option<Rank>,
    optimizer: &Optimizer,
) -> Result<()> {
    for (info, slots) in module.parameters().iter().zip(optimizer.state()?) {
        let to = info.shape.iter().product::<i64>() as u64;
        state.add_slots(&info.name, lane, &info.shape, Extent::Elements { from: 0, to }, slots)?;
    }
    Ok(())
}

/// What [`restore_module`] needs.
pub(in crate::parallel) fn wanted_by_module(module: &Module) -> Result<Vec<Entry>> {
    let mut state = OwnerState::default();
    // Values do not matter here: the module's initial ones have the shapes and dtypes.
    for info in module.parameters() {
        let like = Tensor::f_zeros([0i64; 0], (info.kind, tch::Device::Cpu))?;
        state.add_whole(&info.name, &like.f_expand(&info.shape, false)?)?;
    }
    add_kept(&mut state, module)?;
    Ok(state.into_entries())
}

/// Writes the values of a state into `parameters` and into what the module keeps.
pub(in crate::parallel) fn restore_module(
    module: &Module,
    parameters: &[Tensor],
    state: &Restored,
) -> Result<()> {
    for (info, parameter) in module.parameters().iter().zip(parameters) {
        let value = state.value(&info.name, &info.shape)?;
        no_grad(|| parameter.shallow_clone().f_copy_(&value))?;
    }
    restore_kept(module, state)
}

pub(in crate::parallel) fn restore_kept(module: &Module, state: &Restored) -> Result<()> {
    for mut kept in module.kept() {
        let value = state.value(&kept.name, &kept.tensor.size())?;
        no_grad(|| kept.tensor.f_copy_(&value))?;
    }
    Ok(())
}

/// Has an optimizer over the module's parameters go on from a state.
pub(in crate::parallel) fn restore_slots(
    module: &Module,
    lane: Option<Rank>,
    optimizer: &mut Optimizer,
    state: &Restored,
) -> Result<()> {
    let slots = |info: &crate::model::ParameterInfo| state.shaped_slots(&info.name, lane, &info.shape);
    let slots = module.parameters().iter().map(slots).collect::<Result<Vec<Vec<NamedSlot>>>>()?;
    let named: Vec<(&str, &[NamedSlot])> = module
        .parameters()
        .iter()
        .zip(&slots)
        .map(|(info, slots)| (info.name.as_str(), &slots[..]))
        .collect();
    Ok(optimizer.load_state(&named)?)
}
