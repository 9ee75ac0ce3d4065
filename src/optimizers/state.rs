//! The state of an optimizer as named tensors, and back: what snapshots and checkpoints hold of it.

use std::sync::Arc;

use tch::{Kind, Tensor, no_grad};

use super::OptimizerError;
use super::optimizer::{Optimizer, ParameterState, Rule, torch};

/// The counter of steps, as PyTorch's `state_dict` calls it.
const STEP: &str = "step";

/// What an optimizer remembers of one parameter, under the names of PyTorch's `state_dict`. Empty before its first step.
///
/// It shares its memory with the optimizer while nobody steps; a step that comes while it is held writes to copies.
#[derive(Debug, Default)]
pub struct ParameterSlots {
    pub slots: Vec<NamedSlot>,
    _reader: Option<Arc<()>>,
}

/// One of them.
#[derive(Debug)]
pub struct NamedSlot {
    pub name: String,
    /// Of the parameter's shape, or one number for all of it.
    pub value: Tensor,
    /// One number for each of the parameter: it is cut and joined as the parameter is. The others are the same for all
    /// parts.
    pub per_element: bool,
}

impl Optimizer {
    /// For each parameter, in the order given to [`Optimizer::new`], what is remembered of it.
    ///
    /// # Errors
    /// Libtorch could not make a tensor (memory).
    pub fn state(&self) -> Result<Vec<ParameterSlots>, OptimizerError> {
        let of_parameter = |(index, state): (usize, &ParameterState)| {
            if state.steps == 0 {
                return Ok(ParameterSlots::default());
            }
            let Rule { spec, slots } = &self.rules[state.rule];
            let named = |(slot, value): (&super::Slot, &Tensor)| {
                let value = value.shallow_clone();
                NamedSlot { name: slot.name.into(), value, per_element: slot.per_element }
            };
            let mut slots: Vec<NamedSlot> = slots.iter().zip(&state.tensors).map(named).collect();
            if spec.rule().counts_steps() {
                let value = steps(state.steps).map_err(|error| torch(self.name, index, &error))?;
                slots.insert(0, NamedSlot { name: STEP.into(), value, per_element: false });
            }
            Ok(ParameterSlots { slots, _reader: Some(state.readers.clone()) })
        };
        self.states.iter().enumerate().map(of_parameter).collect()
    }

    /// Goes on from a state: for each parameter, in the order given to [`Optimizer::new`], its name (for messages) and its
    /// slots by name. None of them: as before its first step. The tensors are copied.
    ///
    /// # Errors
    /// A slot that is missing, unknown, of another shape or dtype, named with its parameter. Nothing has changed then.
    pub fn load_state(&mut self, state: &[(&str, &[NamedSlot])]) -> Result<(), OptimizerError> {
        let optimizer = self.name;
        if state.len() != self.states.len() {
            let (wanted, got) = (self.states.len(), state.len());
            return Err(OptimizerError::Count { optimizer, what: "states", wanted, got });
        }
        let loaded = state.iter().enumerate().map(|(index, (parameter, slots))| {
            let loaded = self.loaded(index, slots);
            loaded.map_err(|(slot, problem)| {
                let (parameter, slot) = ((*parameter).to_owned(), slot);
                OptimizerError::State { optimizer, parameter, slot, problem }
            })
        });
        self.states = loaded.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The state of one parameter, or the slot that does not fit and why.
    fn loaded(&self, index: usize, given: &[NamedSlot]) -> Result<ParameterState, (String, String)> {
        let own = &self.states[index];
        let Rule { spec, slots } = &self.rules[own.rule];
        let counts = spec.rule().counts_steps();
        let known = |name: &str| (counts && name == STEP) || slots.iter().any(|slot| slot.name == name);
        if let Some(unknown) = given.iter().find(|slot| !known(&slot.name)) {
            let mut names: Vec<&str> = slots.iter().map(|slot| slot.name).collect();
            names.extend(counts.then_some(STEP));
            let problem = match names.as_slice() {
                [] => "is not known: this optimizer remembers nothing".to_owned(),
                names => format!("is not known: this optimizer has {}", names.join(", ")),
            };
            return Err((unknown.name.clone(), problem));
        }
        let mut tensors = Vec::with_capacity(slots.len());
        for (slot, like) in slots.iter().zip(&own.tensors) {
            let failed = |problem: String| (slot.name.to_owned(), problem);
            let torch = |error: tch::TchError| failed(c10d::torch_message(&error));
            let mut fresh = no_grad(|| like.f_full_like(slot.first)).map_err(torch)?;
            if !given.is_empty() {
                let value = find(given, slot.name).map_err(failed)?;
                let (wanted, got) = ((like.size(), like.kind()), (value.size(), value.kind()));
                if wanted != got {
                    let problem =
                        format!("is {:?} {:?}, and {:?} {:?} is needed", got.1, got.0, wanted.1, wanted.0);
                    return Err(failed(problem));
                }
                no_grad(|| fresh.f_copy_(value)).map_err(torch)?;
            }
            tensors.push(fresh);
        }
        let steps = match (given.is_empty(), counts) {
            (true, _) => 0,
            (false, true) => {
                find(given, STEP).and_then(count).map_err(|problem| (STEP.to_owned(), problem))?
            }
            // All that it asks is whether this is the first step.
            (false, false) => 1,
        };
        Ok(ParameterState { rule: own.rule, tensors, steps, readers: Arc::new(()) })
    }
}

fn find<'a>(given: &'a [NamedSlot], name: &str) -> Result<&'a Tensor, String> {
    let found = given.iter().find(|slot| slot.name == name);
    found.map(|slot| &slot.value).ok_or_else(|| "is missing".to_owned())
}

/// f32 as PyTorch has it, or int64 where f32 has no such number.
fn steps(steps: u64) -> Result<Tensor, tch::TchError> {
    let kind = if steps as f32 as u64 == steps { Kind::Float } else { Kind::Int64 };
    Tensor::f_from_slice(&[steps.cast_signed()])?.f_to_kind(kind)?.f_view([] as [i64; 0])
}

fn count(value: &Tensor) -> Result<u64, String> {
    let number = match value.numel() {
        1 => value.f_double_value(&[]).map_err(|error| c10d::torch_message(&error))?,
        numbers => return Err(format!("has {numbers} numbers, and one is needed")),
    };
    // Above 2^53 nobody counts.
    let whole = number >= 0.0 && number.fract() == 0.0 && number < 9_007_199_254_740_992.0;
    if whole { Ok(number as u64) } else { Err(format!("is {number}, which is not a count of steps")) }
}
