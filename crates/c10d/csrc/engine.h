// libtorch's autograd engine, as Rust calls it. See guard.h for how errors come back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// The gradients of `outputs`, seeded with `seeds` (one for each), with respect to `inputs`.
// results[i] becomes a tensor that the caller owns, or null where no output depends on input i.
char* shim_grad(
    const at::Tensor* const* outputs,
    const at::Tensor* const* seeds,
    size_t n_outputs,
    const at::Tensor* const* inputs,
    size_t n_inputs,
    bool retain_graph,
    at::Tensor** results);

// table[o * n_inputs + i] = 1 where the graph of output o reaches input i, else 0.
char* shim_reach(
    const at::Tensor* const* outputs,
    size_t n_outputs,
    const at::Tensor* const* inputs,
    size_t n_inputs,
    uint8_t* table);

void shim_free(char* message);
}
