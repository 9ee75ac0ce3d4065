// Activation recomputation. See guard.h for how errors come back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

extern "C" {

// A forward of the caller's. `run` gives a tensor that becomes ours, or null with the reason in `reason`, of which it
// writes `capacity` bytes at most, the last a zero. The inputs become the caller's. `drop` ends `state`.
struct ShimForward {
  void* state;
  at::Tensor* (*run)(void* state, at::Tensor* const* inputs, size_t n_inputs, char* reason, size_t capacity);
  void (*drop)(void* state);
};

// The forward's output, of which the graph keeps the inputs only: the backward runs the forward again, recorded.
// `forward` is taken over, also when this fails.
char* shim_recomputed(
    const at::Tensor* const* inputs,
    size_t n_inputs,
    ShimForward forward,
    at::Tensor** output);
}
