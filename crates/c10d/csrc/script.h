// TorchScript modules, run with parameters that the caller brings. See guard.h for how errors come back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// A module read from a file. It is never written after that: any number of threads may run it at once.
struct ScriptBox;
// What one run gave.
struct RunBox;

struct ShimScriptFacts {
  // Of the module's parameters and buffers.
  size_t slots;
  // Its forward may draw random numbers.
  bool draws;
  // Its code names a CUDA device.
  bool names_cuda;
  // Arguments of its forward up to the last that has no default, and how many there are in front that are tensors.
  size_t arguments;
  size_t tensors;
  // Tensors that come back, as one or as a tuple; 0: it gives something else.
  size_t outputs;
  // A parameter or buffer that a run could not use another tensor for, and an attribute by which one forward tells the next
  // one something without being a buffer: malloc'ed strings for `shim_free`, or null.
  char* kept;
  char* carried;
};

struct ShimScriptSlot {
  // A malloc'ed string for `shim_free`, and the tensor itself, both the caller's: to look at its shape, not to keep.
  char* name;
  at::Tensor* tensor;
  // The first slot that holds the same tensor: its own number unless it is tied to one before it.
  size_t first;
  bool is_parameter;
};

// `device` is the index of a GPU; below 0: the CPU.
char* shim_script_load(const char* path, int device, ScriptBox** script, ShimScriptFacts* facts);
char* shim_script_slot(const ScriptBox* script, size_t slot, ShimScriptSlot* result);
// A copy of a slot's tensor, without a graph.
char* shim_script_tensor(const ScriptBox* script, size_t slot, at::Tensor** copy);
void shim_script_drop(ScriptBox* script);

// One forward of `inputs` with `tensors` in the place of the slots' own, one for each slot, and `train` on all of its modules.
char* shim_script_run(
    const ScriptBox* script,
    const at::Tensor* const* tensors,
    const at::Tensor* const* inputs,
    size_t count,
    bool train,
    RunBox** run);

struct ShimNorm {
  // Slots of the running statistics.
  size_t mean_slot;
  size_t var_slot;
  // What the batch had: tensors of the caller's.
  at::Tensor* mean;
  at::Tensor* var;
  double momentum;
};

size_t shim_run_outputs(const RunBox* run);
char* shim_run_output(const RunBox* run, size_t number, at::Tensor** output);
// What the run made of a slot's tensor, or null where it left it as it was.
char* shim_run_written(const RunBox* run, size_t slot, at::Tensor** written);
size_t shim_run_norms(const RunBox* run);
char* shim_run_norm(const RunBox* run, size_t norm, ShimNorm* result);
void shim_run_drop(RunBox* run);
}
