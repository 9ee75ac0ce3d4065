// Process groups, and the operations on them. See guard.h for how errors come back.
//
// Every operation goes through c10d::ProcessGroup, never to a backend, so that all backends and the Reducer share one
// path. Each starts the operation and gives its work. Tensors are passed by pointer and their handles copied.
#pragma once

#include "announcing.h"
#include "handles.h"

#include <cstdint>

extern "C" {

typedef const at::Tensor* const* ShimTensors;

// What operations have in common.
struct ShimCall {
  // -1: the group's own.
  int64_t timeout_ms;
  // False: the caller waits at once, which lets NCCL use the caller's stream.
  bool asynchronous;
  // A c10d::ReduceOp::RedOpType, and the factor of PREMUL_SUM.
  uint8_t reduce_op;
  double factor;
};

// Meets the others within `join_timeout_ms`, in the part `prefix` of the group's store. `host`: where they reach this
// process; null for the machine's own name.
char* shim_backend_gloo(
    const StoreBox* store,
    const char* prefix,
    int rank,
    int size,
    int64_t join_timeout_ms,
    int64_t timeout_ms,
    const char* host,
    Announced announced,
    BackendBox** backend);
void shim_backend_drop(BackendBox* backend);

// `backend_type` is a c10d::ProcessGroup::BackendType; the group has no backend yet.
char* shim_group_new(const StoreBox* store, int rank, int size, uint8_t backend_type, GroupBox** group);
// Before its backend is set: on which CUDA device this rank's tensors are.
char* shim_group_bind(const GroupBox* group, int8_t cuda_device);
// `device_type` is a c10::DeviceType.
char* shim_group_set_backend(
    const GroupBox* group,
    int8_t device_type,
    uint8_t backend_type,
    const BackendBox* backend);
char* shim_group_set_name(const GroupBox* group, const char* name);
// Ends what is in flight with an error, as far as the backend can, and refuses what comes later.
char* shim_group_abort(const GroupBox* group);
void shim_group_drop(GroupBox* group);

// Whether this thread records operations for autograd.
bool shim_grad_enabled();

char* shim_broadcast(const GroupBox*, const ShimCall*, const at::Tensor* tensor, int root, WorkBox**);
char* shim_all_reduce(const GroupBox*, const ShimCall*, const at::Tensor* tensor, WorkBox**);
char* shim_all_reduce_coalesced(const GroupBox*, const ShimCall*, ShimTensors tensors, size_t n, WorkBox**);
char* shim_reduce(const GroupBox*, const ShimCall*, const at::Tensor* tensor, int root, WorkBox**);
char* shim_all_gather(const GroupBox*, const ShimCall*, ShimTensors outputs, size_t n, const at::Tensor* input, WorkBox**);
char* shim_all_gather_into(const GroupBox*, const ShimCall*, const at::Tensor* output, const at::Tensor* input, WorkBox**);
char* shim_all_gather_into_coalesced(const GroupBox*, const ShimCall*, ShimTensors outputs, ShimTensors inputs, size_t n, WorkBox**);
// `outputs` is empty except at the root, where there is one for each rank.
char* shim_gather(const GroupBox*, const ShimCall*, ShimTensors outputs, size_t n, const at::Tensor* input, int root, WorkBox**);
// `inputs` is empty except at the root, where there is one for each rank.
char* shim_scatter(const GroupBox*, const ShimCall*, const at::Tensor* output, ShimTensors inputs, size_t n, int root, WorkBox**);
char* shim_reduce_scatter(const GroupBox*, const ShimCall*, const at::Tensor* output, ShimTensors inputs, size_t n, WorkBox**);
char* shim_reduce_scatter_tensor(const GroupBox*, const ShimCall*, const at::Tensor* output, const at::Tensor* input, WorkBox**);
char* shim_reduce_scatter_coalesced(const GroupBox*, const ShimCall*, ShimTensors outputs, ShimTensors inputs, size_t n, WorkBox**);
// The splits count rows, one for each rank; without any, the rows are split evenly.
char* shim_all_to_all_single(
    const GroupBox*,
    const ShimCall*,
    const at::Tensor* output,
    const at::Tensor* input,
    const int64_t* output_splits,
    size_t n_output_splits,
    const int64_t* input_splits,
    size_t n_input_splits,
    WorkBox**);
char* shim_barrier(const GroupBox*, const ShimCall*, int8_t device_type, WorkBox**);
char* shim_send(const GroupBox*, const at::Tensor* tensor, int to, int tag, WorkBox**);
char* shim_recv(const GroupBox*, const at::Tensor* tensor, int from, int tag, WorkBox**);
char* shim_recv_any(const GroupBox*, const at::Tensor* tensor, int tag, WorkBox**);
}
