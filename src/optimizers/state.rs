//! The state of an optimizer as named tensors, and back: what snapshots and checkpoints hold of it.

use std::sync::Arc;

use tch::{Kind, Tensor, no_grad};

use super::OptimizerError;
use super::average::{AVERAGE, AVERAGED, Average};
use super::optimizer::{Optimizer, ParameterState, Rule, torch};

/// The counter of steps, as PyTorch's `state_dict` calls it.
const STEP: &str = "step";

/// What an optimizer remembers of one parameter, under the names of PyTorch's `state_dict`, and its average under those of
/// `AveragedModel`. Empty before its first step.
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
    /// A tensor of the parameter's shape, or one number for all of it.
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
            let failed = |error| torch(self.name, index, &error);
            let mut all = self.slots_of_rule(state).map_err(failed)?;
            if let Some(average) = state.average.as_ref().filter(|average| average.steps > 0) {
                all.push(NamedSlot::new(AVERAGE, &average.mean, true));
                all.push(NamedSlot::new(AVERAGED, &steps(average.steps).map_err(failed)?, false));
            }
            Ok(ParameterSlots { slots: all, _reader: Some(state.readers.clone()) })
        };
        self.states.iter().enumerate().map(of_parameter).collect()
    }

    fn slots_of_rule(&self, state: &ParameterState) -> Result<Vec<NamedSlot>, tch::TchError> {
        let Rule { spec, slots } = &self.rules[state.rule];
        let mut named = Vec::new();
        if state.steps > 0 {
            if spec.rule().counts_steps() {
                named.push(NamedSlot::new(STEP, &steps(state.steps)?, false));
            }
            let slots = slots.iter().zip(&state.tensors);
            named.extend(slots.map(|(slot, value)| NamedSlot::new(slot.name, value, slot.per_element)));
        }
        Ok(named)
    }

    /// Goes on from a state: for each parameter, in the order given to [`Optimizer::new`], its name (for messages) and its
    /// slots by name. None of them: as before its first step. Without an average it begins with the next step. The tensors are
    /// copied.
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
        let of_average = |slot: &&NamedSlot| [AVERAGE, AVERAGED].contains(&slot.name.as_str());
        let (of_average, given): (Vec<&NamedSlot>, Vec<&NamedSlot>) = given.iter().partition(of_average);
        let average = own.average.as_ref().map(|own| averaged(own, &of_average)).transpose()?;
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
            tensors.push(match given.is_empty() {
                true => no_grad(|| like.f_full_like(slot.first))
                    .map_err(|error| (slot.name.to_owned(), c10d::torch_message(&error)))?,
                false => copied(&given, slot.name, like)?,
            });
        }
        let steps = match (given.is_empty(), counts) {
            (true, _) => 0,
            (false, true) => counted(&given, STEP)?,
            // All that it asks is whether this is the first step.
            (false, false) => 1,
        };
        Ok(ParameterState { rule: own.rule, tensors, steps, average, readers: Arc::new(()) })
    }
}

impl NamedSlot {
    /// Shares the memory of `value`.
    fn new(name: &str, value: &Tensor, per_element: bool) -> NamedSlot {
        NamedSlot { name: name.into(), value: value.shallow_clone(), per_element }
    }
}

/// The average that goes on from `given`, or begins with the next step.
fn averaged(own: &Average, given: &[&NamedSlot]) -> Result<Average, (String, String)> {
    let failed = |error: tch::TchError| (AVERAGE.to_owned(), c10d::torch_message(&error));
    match given.is_empty() {
        true => Average::of(&own.mean).map_err(failed),
        false => Ok(Average { mean: copied(given, AVERAGE, &own.mean)?, steps: counted(given, AVERAGED)? }),
    }
}

/// A slot's numbers, of the shape and dtype of `like`.
fn copied(given: &[&NamedSlot], name: &str, like: &Tensor) -> Result<Tensor, (String, String)> {
    let failed = |problem: String| (name.to_owned(), problem);
    let torch = |error: tch::TchError| failed(c10d::torch_message(&error));
    let value = find(given, name)?;
    let (wanted, got) = ((like.size(), like.kind()), (value.size(), value.kind()));
    if wanted != got {
        let problem = format!("is {:?} {:?}, and {:?} {:?} is needed", got.1, got.0, wanted.1, wanted.0);
        return Err(failed(problem));
    }
    let mut copy = no_grad(|| like.f_empty_like()).map_err(torch)?;
    no_grad(|| copy.f_copy_(value)).map_err(torch)?;
    Ok(copy)
}

fn counted(given: &[&NamedSlot], name: &str) -> Result<u64, (String, String)> {
    count(find(given, name)?).map_err(|problem| (name.to_owned(), problem))
}

fn find<'a>(given: &[&'a NamedSlot], name: &str) -> Result<&'a Tensor, (String, String)> {
    let found = given.iter().find(|slot| slot.name == name);
    found.map(|slot| &slot.value).ok_or_else(|| (name.to_owned(), "is missing".to_owned()))
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
