#include "group.h"

#include <ATen/core/grad_mode.h>
#include "batch_threads.h"
#include "gloo.h"
#include "guard.h"

namespace {

using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using BackendType = c10d::ProcessGroup::BackendType;

template <typename Options>
Options options(const ShimCall& call) {
  Options options;
  options.timeout = milliseconds(call.timeout_ms);
  options.asyncOp = call.asynchronous;
  return options;
}

template <typename Options>
Options reducing(const ShimCall& call) {
  auto reducing = options<Options>(call);
  const auto op = static_cast<c10d::ReduceOp::RedOpType>(call.reduce_op);
  reducing.reduceOp =
      op == c10d::ReduceOp::PREMUL_SUM ? c10d::makeNCCLPreMulSum(call.factor) : c10d::ReduceOp(op);
  return reducing;
}

Tensors both(Tensors list, const Tensors& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// One list for each rank's tensors at the root; no list elsewhere.
std::vector<Tensors> lists_of(ShimTensors tensors, size_t n) {
  return n > 0 ? std::vector<Tensors>{tensors_of(tensors, n)} : std::vector<Tensors>{};
}

// Starts an operation, and boxes its work together with all its tensors.
template <typename Start>
char* started(Tensors held, WorkBox** work, Start&& start) {
  return guarded([&] {
    auto running = start();
    TORCH_CHECK(running, "the backend gave no work");
    *work = new WorkBox{std::move(running), std::move(held)};
  });
}

} // namespace

extern "C" {

char* shim_backend_gloo(
    const StoreBox* store,
    const char* prefix,
    int rank,
    int size,
    int64_t join_timeout_ms,
    int64_t timeout_ms,
    const char* host,
    Announced announced,
    BackendBox** backend) {
  return guarded([&] {
    const BatchThreads started_here;
    auto options = Gloo::Options::create(milliseconds(join_timeout_ms));
    // Whatever the environment says, not one that connects only when it has something to send: nobody gets in by then.
    options->devices = {host != nullptr ? Gloo::createDeviceForHostname(host) : Gloo::createDefaultDevice()};
    auto own = c10::make_intrusive<Announcing>(prefix, store->store, rank, announced);
    auto gloo = c10::make_intrusive<Gloo>(std::move(own), rank, size, std::move(options));
    gloo->setSequenceNumberForGroup();
    gloo->setTimeout(milliseconds(timeout_ms));
    *backend = new BackendBox{std::move(gloo)};
  });
}

void shim_backend_drop(BackendBox* backend) {
  delete backend;
}

char* shim_group_new(const StoreBox* store, int rank, int size, uint8_t backend_type, GroupBox** group) {
  return guarded([&] {
    auto made = c10::make_intrusive<c10d::ProcessGroup>(store->store, rank, size);
    made->setDefaultBackend(static_cast<BackendType>(backend_type));
    *group = new GroupBox{std::move(made)};
  });
}

char* shim_group_bind(const GroupBox* group, int8_t cuda_device) {
  return guarded([&] { group->group->setBoundDeviceId(c10::Device(c10::DeviceType::CUDA, cuda_device)); });
}

char* shim_group_set_backend(
    const GroupBox* group,
    int8_t device_type,
    uint8_t backend_type,
    const BackendBox* backend) {
  return guarded([&] {
    group->group->setBackend(
        static_cast<c10::DeviceType>(device_type), static_cast<BackendType>(backend_type), backend->backend);
  });
}

char* shim_group_set_name(const GroupBox* group, const char* name) {
  return guarded([&] { group->group->setGroupName(name); });
}

char* shim_group_abort(const GroupBox* group) {
  return guarded([&] { group->group->abort(); });
}

void shim_group_drop(GroupBox* group) {
  delete group;
}

bool shim_grad_enabled() {
  return at::GradMode::is_enabled();
}

char* shim_broadcast(const GroupBox* group, const ShimCall* call, const at::Tensor* tensor, int root, WorkBox** work) {
  Tensors tensors{*tensor};
  auto opts = options<c10d::BroadcastOptions>(*call);
  opts.rootRank = root;
  return started(tensors, work, [&] { return group->group->broadcast(tensors, opts); });
}

char* shim_all_reduce(const GroupBox* group, const ShimCall* call, const at::Tensor* tensor, WorkBox** work) {
  Tensors tensors{*tensor};
  return started(tensors, work, [&] {
    return group->group->allreduce(tensors, reducing<c10d::AllreduceOptions>(*call));
  });
}

char* shim_all_reduce_coalesced(
    const GroupBox* group,
    const ShimCall* call,
    ShimTensors tensors,
    size_t n,
    WorkBox** work) {
  auto list = tensors_of(tensors, n);
  return started(list, work, [&] {
    return group->group->allreduce_coalesced(list, reducing<c10d::AllreduceCoalescedOptions>(*call));
  });
}

char* shim_reduce(const GroupBox* group, const ShimCall* call, const at::Tensor* tensor, int root, WorkBox** work) {
  Tensors tensors{*tensor};
  return started(tensors, work, [&] {
    auto opts = reducing<c10d::ReduceOptions>(*call);
    opts.rootRank = root;
    return group->group->reduce(tensors, opts);
  });
}

char* shim_all_gather(
    const GroupBox* group,
    const ShimCall* call,
    ShimTensors outputs,
    size_t n,
    const at::Tensor* input,
    WorkBox** work) {
  Tensors inputs{*input};
  std::vector<Tensors> lists{tensors_of(outputs, n)};
  return started(both(lists[0], inputs), work, [&] {
    return group->group->allgather(lists, inputs, options<c10d::AllgatherOptions>(*call));
  });
}

char* shim_all_gather_into(
    const GroupBox* group,
    const ShimCall* call,
    const at::Tensor* output,
    const at::Tensor* input,
    WorkBox** work) {
  at::Tensor to = *output, from = *input;
  return started({to, from}, work, [&] {
    return group->group->_allgather_base(to, from, options<c10d::AllgatherOptions>(*call));
  });
}

char* shim_all_gather_into_coalesced(
    const GroupBox* group,
    const ShimCall* call,
    ShimTensors outputs,
    ShimTensors inputs,
    size_t n,
    WorkBox** work) {
  auto to = tensors_of(outputs, n), from = tensors_of(inputs, n);
  return started(both(to, from), work, [&] {
    return group->group->allgather_into_tensor_coalesced(to, from, options<c10d::AllgatherOptions>(*call));
  });
}

char* shim_gather(
    const GroupBox* group,
    const ShimCall* call,
    ShimTensors outputs,
    size_t n,
    const at::Tensor* input,
    int root,
    WorkBox** work) {
  Tensors inputs{*input};
  auto lists = lists_of(outputs, n);
  auto opts = options<c10d::GatherOptions>(*call);
  opts.rootRank = root;
  return started(both(inputs, tensors_of(outputs, n)), work, [&] {
    return group->group->gather(lists, inputs, opts);
  });
}

char* shim_scatter(
    const GroupBox* group,
    const ShimCall* call,
    const at::Tensor* output,
    ShimTensors inputs,
    size_t n,
    int root,
    WorkBox** work) {
  Tensors outputs{*output};
  auto lists = lists_of(inputs, n);
  auto opts = options<c10d::ScatterOptions>(*call);
  opts.rootRank = root;
  return started(both(outputs, tensors_of(inputs, n)), work, [&] {
    return group->group->scatter(outputs, lists, opts);
  });
}

char* shim_reduce_scatter(
    const GroupBox* group,
    const ShimCall* call,
    const at::Tensor* output,
    ShimTensors inputs,
    size_t n,
    WorkBox** work) {
  Tensors outputs{*output};
  std::vector<Tensors> lists{tensors_of(inputs, n)};
  return started(both(lists[0], outputs), work, [&] {
    return group->group->reduce_scatter(outputs, lists, reducing<c10d::ReduceScatterOptions>(*call));
  });
}

char* shim_reduce_scatter_tensor(
    const GroupBox* group,
    const ShimCall* call,
    const at::Tensor* output,
    const at::Tensor* input,
    WorkBox** work) {
  at::Tensor to = *output, from = *input;
  return started({to, from}, work, [&] {
    return group->group->_reduce_scatter_base(to, from, reducing<c10d::ReduceScatterOptions>(*call));
  });
}

char* shim_reduce_scatter_coalesced(
    const GroupBox* group,
    const ShimCall* call,
    ShimTensors outputs,
    ShimTensors inputs,
    size_t n,
    WorkBox** work) {
  auto to = tensors_of(outputs, n), from = tensors_of(inputs, n);
  return started(both(to, from), work, [&] {
    return group->group->reduce_scatter_tensor_coalesced(to, from, reducing<c10d::ReduceScatterOptions>(*call));
  });
}

char* shim_all_to_all_single(
    const GroupBox* group,
    const ShimCall* call,
    const at::Tensor* output,
    const at::Tensor* input,
    const int64_t* output_splits,
    size_t n_output_splits,
    const int64_t* input_splits,
    size_t n_input_splits,
    WorkBox** work) {
  at::Tensor to = *output, from = *input;
  std::vector<int64_t> to_rows(output_splits, output_splits + n_output_splits);
  std::vector<int64_t> from_rows(input_splits, input_splits + n_input_splits);
  return started({to, from}, work, [&] {
    return group->group->alltoall_base(to, from, to_rows, from_rows, options<c10d::AllToAllOptions>(*call));
  });
}

char* shim_barrier(const GroupBox* group, const ShimCall* call, int8_t device_type, WorkBox** work) {
  // Not ProcessGroup::barrier: it keeps its tensor in a static variable, which threads would write at once.
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("c10d::barrier", "")
                       .typed<c10::intrusive_ptr<c10d::Work>(
                           at::Tensor,
                           const c10::intrusive_ptr<c10d::ProcessGroup>&,
                           const std::vector<int64_t>&,
                           bool,
                           int64_t)>();
  const c10::Device device(static_cast<c10::DeviceType>(device_type));
  at::Tensor place = at::empty({1}, at::TensorOptions().device(device).dtype(at::kByte));
  return started({place}, work, [&] {
    return op.call(place, group->group, {}, call->asynchronous, call->timeout_ms);
  });
}

char* shim_send(const GroupBox* group, const at::Tensor* tensor, int to, int tag, WorkBox** work) {
  Tensors tensors{*tensor};
  return started(tensors, work, [&] { return group->group->send(tensors, to, tag); });
}

char* shim_recv(const GroupBox* group, const at::Tensor* tensor, int from, int tag, WorkBox** work) {
  Tensors tensors{*tensor};
  return started(tensors, work, [&] { return group->group->recv(tensors, from, tag); });
}

char* shim_recv_any(const GroupBox* group, const at::Tensor* tensor, int tag, WorkBox** work) {
  Tensors tensors{*tensor};
  return started(tensors, work, [&] { return group->group->recvAnysource(tensors, tag); });
}
}
