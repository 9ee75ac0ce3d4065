//! TorchScript modules as functions of their parameters.
//!
//! [`Script`] is a module that `torch.jit.save` has written. Its own tensors are what training may start from;
//! [`Script::run`] computes with tensors of the caller's in their place, so that several runs with several versions of
//! the parameters may go on at once. A run writes to none of the module's own tensors.
//!
//! The code is interpreted as it is written, without the optimising executors: a run gives the numbers of PyTorch's eager
//! mode, and the same ones however often and wherever the module has run before. A file is a program: it is not
//! sandboxed, and should come from where the job comes from.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::{self, NonNull};

use tch::{Device, Kind, Tensor};

use crate::shim::script::{
    RunBox, ScriptBox, ShimNorm, ShimScriptFacts, ShimScriptSlot, shim_run_drop, shim_run_norm,
    shim_run_norms, shim_run_output, shim_run_outputs, shim_run_written, shim_script_drop, shim_script_load,
    shim_script_run, shim_script_slot, shim_script_tensor,
};
use crate::{TorchError, shim};

/// A TorchScript module.
#[derive(Debug)]
pub struct Script {
    script: NonNull<ScriptBox>,
    slots: Vec<Slot>,
    forward: Forward,
    kept: Option<String>,
    carried: Option<String>,
}

// SAFETY: what is behind the pointer is C++ on the heap that is not bound to a thread.
unsafe impl Send for Script {}
// SAFETY: after loading nothing writes to it: a run copies the module's objects, and libtorch's `Code` is made to be shared by
// interpreters on several threads, as in its own executors.
unsafe impl Sync for Script {}

/// A parameter or a buffer.
#[derive(Debug)]
pub struct Slot {
    /// As in the module's `state_dict`.
    pub name: String,
    pub shape: Vec<i64>,
    pub kind: Kind,
    /// Not of buffers, and not of parameters that are fixed.
    pub requires_grad: bool,
    /// The first slot with the same tensor: its own number, unless it is tied to one before it.
    pub first: usize,
    pub is_parameter: bool,
}

/// What is known of a module's forward without running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Up to the last without a default, the module itself left out.
    pub arguments: usize,
    /// How many in front are tensors.
    pub tensors: usize,
    /// Tensors that it gives: one, or those of a tuple. 0: something else.
    pub outputs: usize,
    /// It may draw random numbers from libtorch's generator.
    pub draws: bool,
    /// Its code names a CUDA device.
    pub names_cuda: bool,
}

/// What one run gave.
#[derive(Debug)]
pub struct Run {
    pub outputs: Vec<Tensor>,
    /// The slots that it wrote, by number, and what they hold after it, without a graph.
    pub written: Vec<(usize, Tensor)>,
    /// What its batch normalisations saw where they are in training; they have not written their running statistics.
    pub norms: Vec<Norm>,
}

/// A batch's own mean and (unbiased) variance, each of the shape of the running ones.
#[derive(Debug)]
pub struct Norm {
    /// Slots of the running statistics.
    pub mean_slot: usize,
    pub var_slot: usize,
    pub mean: Tensor,
    pub var: Tensor,
    /// PyTorch's: what the batch weighs in the running ones.
    pub momentum: f64,
}

impl Script {
    /// Reads a file of `torch.jit.save` and puts all of it on `device`, the CPU or a GPU.
    ///
    /// # Errors
    /// No file, no TorchScript, or no forward in it; libtorch's own words.
    pub fn load(path: &Path, device: Device) -> Result<Script, TorchError> {
        let path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| TorchError { message: "a NUL byte in its path".into() })?;
        let device = match device {
            Device::Cpu => -1,
            Device::Cuda(index) => i32::try_from(index).unwrap_or(i32::MAX),
            other => return Err(TorchError { message: format!("TorchScript is not put on {other:?} here") }),
        };
        let mut script = ptr::null_mut();
        let mut facts = ShimScriptFacts::default();
        // SAFETY: a NUL-terminated path, and pointers to where the results go.
        let returned = unsafe { shim_script_load(path.as_ptr(), device, &mut script, &mut facts) };
        // SAFETY: just returned by a guarded function.
        unsafe { shim::check(returned) }.map_err(of_the_interpreter)?;
        let script = NonNull::new(script).expect("the shim gives a script or an error");
        let forward = Forward {
            arguments: facts.arguments,
            tensors: facts.tensors,
            outputs: facts.outputs,
            draws: facts.draws,
            names_cuda: facts.names_cuda,
        };
        // SAFETY: made for us, taken once.
        let (kept, carried) = unsafe { (shim::take_text(facts.kept), shim::take_text(facts.carried)) };
        let slots = Vec::with_capacity(facts.slots);
        let mut loaded = Script { script, slots, forward, kept, carried };
        for number in 0..facts.slots {
            let slot = loaded.read_slot(number)?;
            loaded.slots.push(slot);
        }
        Ok(loaded)
    }

    /// Parameters and buffers: of each module its parameters, its buffers, then its own modules'.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// A copy of a slot's tensor as the file has it, on the device that it was loaded to.
    ///
    /// # Errors
    /// There is no such slot, or no memory.
    pub fn tensor(&self, slot: usize) -> Result<Tensor, TorchError> {
        let mut copy = ptr::null_mut();
        // SAFETY: a live script, and a pointer to where the result goes, which is made for us and taken once.
        let copy = unsafe {
            shim::check(shim_script_tensor(self.script.as_ptr(), slot, &mut copy))?;
            shim::adopt(copy)
        };
        Ok(copy.expect("the shim gives a copy or an error"))
    }

    pub fn forward(&self) -> Forward {
        self.forward
    }

    /// The name of a slot whose own tensor [`Script::run`] would use, whatever it is given: the module holds it where it
    /// cannot be replaced.
    pub fn kept(&self) -> Option<&str> {
        self.kept.as_deref()
    }

    /// The name of an attribute that is not a buffer and that a forward changes for the forwards after it. What a run
    /// leaves there is lost.
    pub fn carried(&self) -> Option<&str> {
        self.carried.as_deref()
    }

    /// The forward of `inputs` with `tensors` in the place of the slots' own, one for each. Gradients are recorded as this
    /// thread's grad mode says. `train` is the mode of all modules in it.
    ///
    /// # Errors
    /// What the module raises, and libtorch's own errors.
    pub fn run(&self, tensors: &[Tensor], inputs: &[Tensor], train: bool) -> Result<Run, TorchError> {
        if tensors.len() != self.slots.len() {
            let message = format!("{} tensors for {} slots", tensors.len(), self.slots.len());
            return Err(TorchError { message });
        }
        if tensors.iter().chain(inputs).any(|tensor| !tensor.defined()) {
            return Err(TorchError { message: "an undefined tensor".into() });
        }
        let (tensors, inputs) = (shim::pointers(tensors), shim::pointers(inputs));
        let mut run = ptr::null_mut();
        // SAFETY: pointers to borrowed tensors, as many as the script has slots (checked), and to as many inputs as it is told. The shim copies their handles,
        // keeps no pointer, and catches what is thrown; the script is not written (see `Sync`).
        let returned = unsafe {
            let (tensors, inputs, count) = (tensors.as_ptr(), inputs.as_ptr(), inputs.len());
            shim_script_run(self.script.as_ptr(), tensors, inputs, count, train, &mut run)
        };
        // SAFETY: just returned by a guarded function.
        unsafe { shim::check(returned) }.map_err(of_the_interpreter)?;
        let run = Ran(NonNull::new(run).expect("the shim gives a run or an error"));
        run.read(self.slots.len())
    }

    fn read_slot(&self, number: usize) -> Result<Slot, TorchError> {
        let mut slot =
            ShimScriptSlot { name: ptr::null_mut(), tensor: ptr::null_mut(), first: 0, is_parameter: false };
        // SAFETY: a live script, and a pointer to where the result goes.
        unsafe { shim::check(shim_script_slot(self.script.as_ptr(), number, &mut slot)) }?;
        // SAFETY: made for us, taken once.
        let (name, tensor) = unsafe { (shim::take_text(slot.name), shim::adopt(slot.tensor)) };
        let promise = "the shim gives both or an error";
        let tensor = tensor.expect(promise);
        Ok(Slot {
            name: name.expect(promise),
            shape: tensor.size(),
            kind: tensor.kind(),
            requires_grad: tensor.requires_grad(),
            first: slot.first,
            is_parameter: slot.is_parameter,
        })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // SAFETY: from `shim_script_load`, dropped once, and no run can be under way: each borrows it.
        unsafe { shim_script_drop(self.script.as_ptr()) };
    }
}

/// A `RunBox` of ours.
struct Ran(NonNull<RunBox>);

impl Ran {
    fn read(&self, slots: usize) -> Result<Run, TorchError> {
        // SAFETY: a live run.
        let count = unsafe { shim_run_outputs(self.0.as_ptr()) };
        let outputs = (0..count).map(|number| self.output(number)).collect::<Result<_, _>>()?;
        let mut written = Vec::new();
        for slot in 0..slots {
            let mut tensor = ptr::null_mut();
            // SAFETY: as above; null where the run wrote nothing.
            let tensor = unsafe {
                shim::check(shim_run_written(self.0.as_ptr(), slot, &mut tensor))?;
                shim::adopt(tensor)
            };
            written.extend(tensor.map(|tensor| (slot, tensor)));
        }
        // SAFETY: a live run.
        let count = unsafe { shim_run_norms(self.0.as_ptr()) };
        let norms = (0..count).map(|norm| self.norm(norm)).collect::<Result<_, _>>()?;
        Ok(Run { outputs, written, norms })
    }

    fn output(&self, number: usize) -> Result<Tensor, TorchError> {
        let mut output = ptr::null_mut();
        // SAFETY: a live run and a pointer to where the result goes, which is made for us and taken once.
        let output = unsafe {
            shim::check(shim_run_output(self.0.as_ptr(), number, &mut output))?;
            shim::adopt(output)
        };
        Ok(output.expect("the shim gives an output or an error"))
    }

    fn norm(&self, number: usize) -> Result<Norm, TorchError> {
        let mut norm = ShimNorm {
            mean_slot: 0,
            var_slot: 0,
            mean: ptr::null_mut(),
            var: ptr::null_mut(),
            momentum: 0.0,
        };
        // SAFETY: a live run, and a pointer to where the result goes.
        unsafe { shim::check(shim_run_norm(self.0.as_ptr(), number, &mut norm)) }?;
        // SAFETY: made for us, taken once.
        let (mean, var) = unsafe { (shim::adopt(norm.mean), shim::adopt(norm.var)) };
        let promise = "the shim gives both or an error";
        let ShimNorm { mean_slot, var_slot, momentum, .. } = norm;
        Ok(Norm { mean_slot, var_slot, mean: mean.expect(promise), var: var.expect(promise), momentum })
    }
}

impl Drop for Ran {
    fn drop(&mut self) {
        // SAFETY: from `shim_script_run`, dropped once.
        unsafe { shim_run_drop(self.0.as_ptr()) };
    }
}

/// What was raised, without the way through the module's code that TorchScript puts before it.
fn of_the_interpreter(error: TorchError) -> TorchError {
    let last = error.message.lines().rev().find(|line| !line.trim().is_empty());
    let message = match last.and_then(|line| line.split_once("Error: ")) {
        Some((_, reason)) if error.message.contains("Traceback of TorchScript") => reason.to_owned(),
        _ => error.message.lines().next().unwrap_or_default().to_owned(),
    };
    TorchError { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_a_script_is_told_without_its_traceback() {
        let raised = "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript, \
                      serialized code (most recent call last):\n  File \"code/x.py\", line 3, in forward\n    ~~~ <--- HERE\n\
                      RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 8x6)\n";
        let error = of_the_interpreter(TorchError { message: raised.into() });
        assert_eq!(error.message, "mat1 and mat2 shapes cannot be multiplied (2x4 and 8x6)");
        let plain =
            of_the_interpreter(TorchError { message: "open file failed, no such file\nframe".into() });
        assert_eq!(plain.message, "open file failed, no such file");
    }
}
