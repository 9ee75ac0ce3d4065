//! Modules of TorchScript: what of a file trains here, and its forward.
//!
//! A forward gets the parameters that it is to use, fixed ones as they are, and copies of the buffers; what it made of
//! the copies is a [`Statistics`] like that of layers, and is folded in the same way. Batch normalisations hand over
//! what their batch had, so their running statistics come about as those of our own layers. Of any other buffer that a
//! training forward writes, whole numbers count up (each forward adds what it added), and of others the last one to be
//! folded stands.

use std::path::Path;

use c10d::TorchError;
use c10d::script::{Run, Script, Slot};
use tch::{Device, Kind, TchError, Tensor, with_grad};

use super::dtype::torch_name;
use super::statistics::{Seen, Statistics};
use super::{Mode, ModelError, ParameterInfo};
use crate::human::counted;
use crate::job::{ModuleSpec, NamedOutput, TorchScript, suggest};
use crate::layers::{InputDtype, Signal, masks::MaskSource, rng};
use crate::optimizers::matches;

/// A loaded module, and what each of its slots is here.
#[derive(Debug)]
pub(super) struct ScriptBody {
    script: Script,
    file: String,
    roles: Vec<Role>,
}

/// Where a slot's tensor comes from in a forward; the number is the place among its kind.
#[derive(Clone, Copy, Debug)]
enum Role {
    Parameter(usize),
    Fixed(usize),
    Buffer(usize),
}

/// What a module keeps of a loaded file.
pub(super) struct Loaded {
    pub body: ScriptBody,
    pub parameters: Vec<ParameterInfo>,
    pub fixed: Vec<(String, Tensor)>,
    pub buffers: Vec<(String, Tensor)>,
    /// Further names of tensors, with the first.
    pub tied: Vec<(String, String)>,
}

/// Loads what `spec` names on `device`, and proves that it does what the job says.
pub(super) fn load(spec: &ModuleSpec, script: &TorchScript, device: Device) -> Result<Loaded, ModelError> {
    let file = &script.file;
    let loaded = Script::load(file, device).map_err(|error| not_loaded(file, &error.message))?;
    forward_fits(file, &loaded, spec.inputs.len(), script.outputs.len())?;
    state_fits(file, &loaded)?;
    buffers_named(file, &loaded, &script.non_persistent)?;
    let frozen = |number: usize| {
        let names = loaded.slots().iter().filter(|slot| slot.first == number);
        names.into_iter().any(|slot| spec.is_frozen(&slot.name))
    };
    patterns_match(file, spec, loaded.slots())?;
    let trains = |number: usize, slot: &Slot| slot.is_parameter && slot.requires_grad && !frozen(number);
    let trained = loaded.slots().iter().enumerate().filter(|(number, slot)| trains(*number, slot));
    dtypes_fit(file, trained.map(|(_, slot)| slot))?;
    let named = |number: usize, slot: &Slot| {
        let tensor = loaded.tensor(number).map_err(|error| no_copy(&spec.name, &error))?;
        Ok::<_, ModelError>((slot.name.clone(), tensor))
    };
    let (mut parameters, mut fixed, mut buffers, mut tied) = (vec![], vec![], vec![], vec![]);
    let mut roles: Vec<Role> = Vec::new();
    for (number, slot) in loaded.slots().iter().enumerate() {
        let role = match (slot.first == number, slot.is_parameter) {
            (false, _) => {
                tied.push((slot.name.clone(), loaded.slots()[slot.first].name.clone()));
                roles[slot.first]
            }
            (true, true) if trains(number, slot) => {
                parameters.push(ParameterInfo {
                    name: slot.name.clone(),
                    shape: slot.shape.clone(),
                    kind: slot.kind,
                    device,
                });
                Role::Parameter(parameters.len() - 1)
            }
            (true, true) => {
                fixed.push(named(number, slot)?);
                Role::Fixed(fixed.len() - 1)
            }
            (true, false) => {
                buffers.push(named(number, slot)?);
                Role::Buffer(buffers.len() - 1)
            }
        };
        roles.push(role);
    }
    let body = ScriptBody { script: loaded, file: file.display().to_string(), roles };
    body.try_out(file, spec, script, device)?;
    Ok(Loaded { body, parameters, fixed, buffers, tied })
}

impl ScriptBody {
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The parameters as the file has them: copies.
    pub fn initial_parameters(&self, module: &str) -> Result<Vec<Tensor>, ModelError> {
        let first = |(number, slot): &(usize, &Slot)| {
            slot.first == *number && matches!(self.roles[*number], Role::Parameter(_))
        };
        let slots = self.script.slots().iter().enumerate().filter(first);
        slots.map(|(number, _)| self.script.tensor(number).map_err(|error| no_copy(module, &error))).collect()
    }

    /// One forward; `buffers` are copies of the module's, which it may write.
    pub fn forward(
        &self,
        module: &str,
        (params, fixed, buffers): (&[Tensor], Vec<Tensor>, Vec<Tensor>),
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<(Vec<Tensor>, Statistics), ModelError> {
        let shapes =
            || inputs.iter().map(|input| format!("{:?}", input.size())).collect::<Vec<_>>().join(", ");
        let failed = |message| ModelError::ScriptForward { module: module.into(), inputs: shapes(), message };
        let tensor = |role: &Role| match *role {
            Role::Parameter(at) => params[at].shallow_clone(),
            Role::Fixed(at) => fixed[at].shallow_clone(),
            Role::Buffer(at) => buffers[at].shallow_clone(),
        };
        let tensors: Vec<Tensor> = self.roles.iter().map(tensor).collect();
        let before = counters(&buffers).map_err(|error| failed(c10d::torch_message(&error)))?;
        let run = || self.script.run(&tensors, inputs, mode.train);
        let run = self.seeded(MaskSource::new(mode.dropout_seed, module, 0).seed(), run);
        let run = run.map_err(|error| failed(error.message))?;
        if !mode.train {
            return Ok((run.outputs, Statistics::default()));
        }
        let mut seen = Statistics::default();
        for (slot, now) in &run.written {
            seen.push(self.written(module, *slot, now, &before)?);
        }
        self.normalised(&run, &mut seen);
        Ok((run.outputs, seen))
    }

    /// What a forward made of a slot.
    fn written(
        &self,
        module: &str,
        slot: usize,
        now: &Tensor,
        before: &[Option<Tensor>],
    ) -> Result<Seen, ModelError> {
        let own = &self.script.slots()[slot];
        let wrote = |problem, hint| ModelError::ScriptWrote { module: module.into(), problem, hint };
        let Role::Buffer(buffer) = self.roles[slot] else {
            let problem = format!("its forward writes parameter `{}`", own.name);
            return Err(wrote(
                problem,
                "parameters change by the optimizer; what a forward writes is a buffer",
            ));
        };
        if now.size() != own.shape || now.kind() != own.kind {
            let problem = format!(
                "its forward makes {} of buffer `{}`, which is {}",
                shown(&now.size(), now.kind()),
                own.name,
                shown(&own.shape, own.kind)
            );
            return Err(wrote(problem, "let the buffer keep its shape and dtype"));
        }
        let failed = |error| ModelError::Build {
            module: module.into(),
            what: format!("what a forward added to `{}`", own.name),
            message: c10d::torch_message(&error),
        };
        Ok(match &before[buffer] {
            Some(before) => Seen::Counted { buffer, by: now.f_sub(before).map_err(failed)? },
            None => Seen::Written { buffer, now: now.shallow_clone() },
        })
    }

    fn normalised(&self, run: &Run, seen: &mut Statistics) {
        for norm in &run.norms {
            if let (Role::Buffer(mean), Role::Buffer(var)) =
                (self.roles[norm.mean_slot], self.roles[norm.var_slot])
            {
                for (buffer, value) in [(mean, &norm.mean), (var, &norm.var)] {
                    let (seen_value, momentum) = (value.shallow_clone(), norm.momentum);
                    seen.push(Seen::Mean { buffer, seen: seen_value, momentum });
                }
            }
        }
    }

    /// Runs a batch of two samples: only a forward tells its outputs' shapes.
    fn try_out(
        &self,
        file: &Path,
        spec: &ModuleSpec,
        said: &TorchScript,
        device: Device,
    ) -> Result<(), ModelError> {
        let batch = |signal: &Signal| -> Vec<i64> {
            std::iter::once(2).chain(signal.shape.iter().copied()).collect()
        };
        let refused =
            |problem, hint: &str| ModelError::Script { file: file.into(), problem, hint: hint.into() };
        let zeros = || -> Result<Vec<Tensor>, TchError> {
            spec.inputs
                .iter()
                .map(|input| Tensor::f_zeros(batch(input), (kind(input.dtype), device)))
                .collect()
        };
        let run = |train| {
            let zeros = zeros().map_err(|error| c10d::torch_message(&error))?;
            let own = self.leaves().map_err(|error| error.message)?;
            self.seeded(0, || self.script.run(&own, &zeros, train)).map_err(|error| error.message)
        };
        let gives = with_grad(|| run(false)).map_err(|message| {
            let shapes: Vec<String> = spec.inputs.iter().map(|input| format!("{:?}", batch(input))).collect();
            let problem = format!("a forward of zeros of shape {} fails: {message}", shapes.join(", "));
            refused(
                problem,
                match message.contains("dtype") {
                    true => "numbers come as `input_dtype` says: call module.float(), or let its forward convert them",
                    false => "`input` is the shape of one sample, and the forward takes batches of any size",
                },
            )
        })?;
        for (given, said) in gives.outputs.iter().zip(&said.outputs) {
            self.output_fits(file, given, said, &batch(&said.signal))?;
        }
        // In training it may do something else; what fails there is told when it is trained.
        let trains = |run: &Run| run.outputs.iter().any(Tensor::requires_grad);
        let in_training = || with_grad(|| run(true)).is_ok_and(|run| trains(&run));
        if self.has_parameters() && !trains(&gives) && !in_training() {
            return Err(refused(
                "no gradient comes from its output to its parameters, so none of them would be trained"
                    .into(),
                "was it quantised, or does its forward compute under torch.no_grad() or with detach()?",
            ));
        }
        Ok(())
    }

    /// If it draws: its draws are libtorch's own, so nobody else may draw while it runs (M-3).
    fn seeded<T>(&self, seed: u64, run: impl FnOnce() -> T) -> T {
        match self.script.forward().draws {
            true => rng::seeded(seed, run),
            false => run(),
        }
    }

    fn has_parameters(&self) -> bool {
        self.roles.iter().any(|role| matches!(role, Role::Parameter(_)))
    }

    /// What the file has for each slot: leaves, where it is trained.
    fn leaves(&self) -> Result<Vec<Tensor>, TorchError> {
        let leaf = |(number, role): (usize, &Role)| {
            let tensor = self.script.tensor(number)?;
            Ok(tensor.set_requires_grad(matches!(role, Role::Parameter(_))))
        };
        self.roles.iter().enumerate().map(leaf).collect()
    }

    /// Compares an output of a batch of two with what the job says of it.
    fn output_fits(
        &self,
        file: &Path,
        given: &Tensor,
        said: &NamedOutput,
        wanted: &[i64],
    ) -> Result<(), ModelError> {
        let refused =
            |problem, hint: &str| ModelError::Script { file: file.into(), problem, hint: hint.into() };
        let wanted_kind = kind(said.signal.dtype);
        if given.size() == wanted && given.kind() == wanted_kind {
            return Ok(());
        }
        let (of, shape_key, dtype_key) = match &said.name {
            None => (String::new(), "output", "output_dtype"),
            Some(name) => (format!(" for its output `{name}`"), "shape", "dtype"),
        };
        let problem = format!(
            "it makes {} of a batch of 2, where {} was said{of}",
            shown(&given.size(), given.kind()),
            shown(wanted, wanted_kind)
        );
        Err(match (given.size().as_slice(), KINDS.iter().any(|(_, known)| *known == given.kind())) {
            ([2, shape @ ..], true) if !shape.is_empty() => {
                let dtype = match given.kind() {
                    Kind::Int64 => format!(", {dtype_key} = \"int64\""),
                    _ => String::new(),
                };
                refused(problem, &format!("write {shape_key} = {shape:?}{dtype}"))
            }
            ([2, ..], false) => refused(problem, "let its forward end with .float()"),
            _ => refused(problem, "the output's first dimension is the batch's"),
        })
    }
}

fn shown(shape: &[i64], kind: Kind) -> String {
    format!("{shape:?} of {}", torch_name(kind))
}

fn no_copy(module: &str, error: &TorchError) -> ModelError {
    let what = "a copy of a tensor of its TorchScript".into();
    ModelError::Build { module: module.into(), what, message: error.message.clone() }
}

const KINDS: [(InputDtype, Kind); 2] = [(InputDtype::Float32, Kind::Float), (InputDtype::Int64, Kind::Int64)];

fn kind(dtype: InputDtype) -> Kind {
    KINDS.iter().find(|(known, _)| *known == dtype).map_or(Kind::Float, |(_, kind)| *kind)
}

/// What the buffers that count in whole numbers are before a forward.
fn counters(buffers: &[Tensor]) -> Result<Vec<Option<Tensor>>, TchError> {
    let counts = |buffer: &Tensor| matches!(buffer.kind(), Kind::Int64 | Kind::Int);
    buffers.iter().map(|buffer| counts(buffer).then(|| buffer.f_detach_copy()).transpose()).collect()
}

fn not_loaded(file: &Path, message: &str) -> ModelError {
    // What torch.save writes is a zip too, and has no code.
    let pickle = message.contains("constants.pkl");
    let hint = match pickle {
        true => "torch.save writes no code: use torch.jit.script(module).save(\"model.pt\")",
        false => "torch.jit.script(module).save(\"model.pt\") writes one; a copy may have been cut short",
    };
    let problem = match pickle {
        true => "it has no TorchScript".into(),
        false => format!("it is not a TorchScript file, or damaged: {message}"),
    };
    ModelError::Script { file: file.into(), problem, hint: hint.into() }
}

fn forward_fits(file: &Path, script: &Script, inputs: usize, outputs: usize) -> Result<(), ModelError> {
    let forward = script.forward();
    let takes = |what: usize| counted(what as u64, "tensor");
    let (problem, hint) = match forward {
        _ if forward.names_cuda => (
            "its code names a CUDA device".into(),
            "move the module to the CPU before it is scripted or traced; the job puts it on its device".into(),
        ),
        _ if forward.arguments > inputs => (
            format!("its forward takes {} arguments, and the job gives it {}", forward.arguments, takes(inputs)),
            "name as many fields or modules in `from`, in the order of the arguments, or give the others defaults".into(),
        ),
        _ if forward.tensors < inputs => (
            format!("the job gives its forward {}, and it takes {}", takes(inputs), forward.tensors),
            "annotate each of its arguments as torch.Tensor, or name fewer in `from`".into(),
        ),
        _ if forward.outputs == 0 => (
            "its forward gives something else than tensors".into(),
            "wrap it in a module whose forward returns a tensor or a tuple of tensors".into(),
        ),
        _ if forward.outputs != outputs => (
            format!("its forward gives {}, and the job says of {}", takes(forward.outputs), takes(outputs)),
            match forward.outputs {
                1 => "write output, the shape of it for one sample".into(),
                _ => format!("write outputs, a list of {} with name and shape for each", forward.outputs),
            },
        ),
        _ => return Ok(()),
    };
    Err(ModelError::Script { file: file.into(), problem, hint })
}

/// Parameters and buffers have to be all that a forward depends on beside its input.
fn state_fits(file: &Path, script: &Script) -> Result<(), ModelError> {
    let (problem, hint) = match (script.kept(), script.carried()) {
        (Some(name), _) => (
            format!("it holds `{name}` where nothing can take its place, so that would stay as it is"),
            "keep parameters and buffers in modules, lists, tuples and dictionaries only".into(),
        ),
        (None, Some(name)) => (
            format!(
                "its forward leaves something in attribute `{name}` for the next one, and it is not a buffer"
            ),
            format!("only buffers outlive a forward here: use register_buffer(\"{name}\", ...)"),
        ),
        (None, None) => return Ok(()),
    };
    Err(ModelError::Script { file: file.into(), problem, hint })
}

/// What the job says of buffers has to be said of some that there are.
fn buffers_named(file: &Path, script: &Script, names: &[String]) -> Result<(), ModelError> {
    let buffers = || script.slots().iter().filter(|slot| !slot.is_parameter).map(|slot| slot.name.as_str());
    let Some(wrong) = names.iter().find(|name| buffers().all(|buffer| buffer != *name)) else {
        return Ok(());
    };
    let problem = format!("it has no buffer `{wrong}`, which `non_persistent_buffers` names");
    Err(ModelError::Script { file: file.into(), problem, hint: suggest(wrong, "buffers", buffers()) })
}

/// Each pattern of what is frozen is to have a parameter.
fn patterns_match(file: &Path, spec: &ModuleSpec, slots: &[Slot]) -> Result<(), ModelError> {
    let names = slots.iter().filter(|slot| slot.is_parameter);
    let names: Vec<String> = names.map(|slot| spec.whole_parameter_name(&slot.name)).collect();
    let unmatched = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
    let Some(pattern) = spec.freeze.iter().find(unmatched) else { return Ok(()) };
    let problem = format!("none of its parameters matches \"{pattern}\", a pattern of `freeze`");
    let hint = match names.first() {
        None => "it has no parameters: leave `freeze` out".into(),
        Some(first) => format!("the first of its {} parameters is `{first}`", names.len()),
    };
    Err(ModelError::Script { file: file.into(), problem, hint })
}

fn dtypes_fit<'a>(file: &Path, trained: impl Iterator<Item = &'a Slot>) -> Result<(), ModelError> {
    let wrong: Vec<String> = trained
        .filter(|slot| !matches!(slot.kind, Kind::Float | Kind::Double))
        .map(|slot| format!("`{}` of {}", slot.name, torch_name(slot.kind)))
        .collect();
    let Some(first) = wrong.first() else { return Ok(()) };
    let more = match wrong.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let problem = format!("parameters are trained in float32 or float64, and it has {first}{more}");
    let hint =
        "call module.float() before it is scripted, or requires_grad_(False) on what is not to be trained";
    Err(ModelError::Script { file: file.into(), problem, hint: hint.into() })
}
