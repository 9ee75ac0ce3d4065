// libtorch's autograd engine, as Rust calls it. See guard.h for how errors come back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// The gradients of `outputs`, seeded with `seeds` (one for each), with respect to `inputs`. Marks will do for both.
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

// A tensor without elements that has the same place in the graph as `tensor`.
char* shim_mark(const at::Tensor* tensor, at::Tensor** mark);

// A tensor over the same memory as `tensor`, at the start of a graph of its own, and the mark of that place.
char* shim_receive(const at::Tensor* tensor, at::Tensor** received, at::Tensor** mark);

// Which place that is: a node's address, and which of its inputs. The address is the node's own as long as a tensor or
// a mark at this place lives.
char* shim_place(const at::Tensor* tensor, uintptr_t* node, uint32_t* input_nr);

// A backward of the caller's. `run` gets the gradient of the output and behind it what was kept, which become the caller's,
// and writes the gradient of each input, which becomes ours, or null where there is none. False: the reason is in `reason`, of
// which it writes `capacity` bytes at most, the last a zero. `drop` ends `state`.
struct ShimBackward {
  void* state;
  bool (*run)(
      void* state,
      at::Tensor* const* given,
      size_t n_given,
      at::Tensor** results,
      size_t n_results,
      char* reason,
      size_t capacity);
  void (*drop)(void* state);
};

// `output`, which was computed of `inputs` and belongs to no graph, in one, with this backward. `kept` are inputs that it
// needs; it is an error there if they were written to. `backward` is taken over, also when this fails.
char* shim_with_backward(
    const at::Tensor* const* inputs,
    size_t n_inputs,
    const at::Tensor* const* kept,
    size_t n_kept,
    const at::Tensor* output,
    ShimBackward backward,
    at::Tensor** result);

void shim_free(char* message);
}
