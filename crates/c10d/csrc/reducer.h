// c10d's Reducer, as Rust calls it. See guard.h for how errors come back.
#pragma once

#include "comm_hooks.h"
#include "handles.h"

struct ReducerBox;

extern "C" {

struct ReducerConfig {
  int64_t bucket_bytes;
  int64_t first_bucket_bytes;
  bool find_unused_parameters;
  bool gradient_as_bucket_view;
  bool static_graph;
  bool broadcast_buffers;
  bool rebuild_buckets;
};

// Checks that all ranks have the same parameters, gives all those of rank 0, and hooks into their autograd.
// `names` has one entry for each parameter. Every rank of the group has to call it.
char* shim_reducer_new(
    const GroupBox* group,
    const at::Tensor* const* parameters,
    const char* const* names,
    size_t n_parameters,
    const at::Tensor* const* buffers,
    size_t n_buffers,
    const ReducerConfig* config,
    ReducerBox** reducer);
// Takes its hooks off the parameters.
char* shim_reducer_free(ReducerBox* reducer);

// Casts buckets to float16 (5) or bfloat16 (15: c10::ScalarType's numbers) to sum them.
char* shim_reducer_hook_cast(ReducerBox* reducer, int8_t dtype);
// Hands buckets to Rust.
// Gathers buckets of which the other ranks have together at most so many bytes.
char* shim_reducer_hook_gather(ReducerBox* reducer, uint64_t up_to_bytes);
char* shim_reducer_hook_foreign(ReducerBox* reducer, ForeignHook hook);

// Before the forward. Buffers become those of rank 0 where the reducer was made so.
char* shim_reducer_before_forward(ReducerBox* reducer, bool synchronise);
// Before a backward over `outputs` that this reducer does not run itself.
char* shim_reducer_before_backward(ReducerBox* reducer, const at::Tensor* const* outputs, size_t n_outputs);

// A whole backward into `.grad`. `seeds` as for shim_grad. After a failure, `broken` says whether communication had
// begun, so that this reducer and its peers no longer agree.
char* shim_reducer_backward(
    ReducerBox* reducer,
    const at::Tensor* const* outputs,
    const at::Tensor* const* seeds,
    size_t n_outputs,
    bool retain_graph,
    bool synchronise,
    bool* broken);

// As shim_grad, with the averages as the gradients of parameters. Without `synchronise` these wait in the reducer for
// the next run that does synchronise, and their results are null.
char* shim_reducer_grad(
    ReducerBox* reducer,
    const at::Tensor* const* outputs,
    const at::Tensor* const* seeds,
    size_t n_outputs,
    const at::Tensor* const* inputs,
    size_t n_inputs,
    bool retain_graph,
    bool synchronise,
    bool* broken,
    at::Tensor** results);

// Nanoseconds since the last gradient of a parameter came: behind a backward, how long it has waited for averages alone.
char* shim_reducer_since_last(const ReducerBox* reducer, int64_t* nanoseconds);
// Writes zeros to every parameter's `.grad`, where it lies.
char* shim_reducer_zero_grad(const ReducerBox* reducer);

// What the logger of c10d knows under `key`, or -1.
char* shim_reducer_statistic(const ReducerBox* reducer, const char* key, int64_t* value);
// The sizes of the buckets in bytes: their number, and of these at most `capacity` into `bytes`.
char* shim_reducer_buckets(const ReducerBox* reducer, int64_t* bytes, size_t capacity, size_t* count);
}
