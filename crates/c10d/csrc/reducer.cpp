#include "reducer.h"

#include "guard.h"
#include "reducer_box.h"

extern "C" {

char* shim_reducer_new(
    const GroupBox* group,
    const at::Tensor* const* parameters,
    const char* const* names,
    size_t n_parameters,
    const at::Tensor* const* buffers,
    size_t n_buffers,
    const ReducerConfig* config,
    ReducerBox** reducer) {
  return guarded([&] {
    auto box = std::make_unique<ReducerBox>();
    box->group = group->group;
    box->buffers = tensors_of(buffers, n_buffers);
    box->names.assign(names, names + n_parameters);
    box->config = *config;
    box->build(tensors_of(parameters, n_parameters));
    *reducer = box.release();
  });
}

char* shim_reducer_free(ReducerBox* reducer) {
  return guarded([&] { delete reducer; });
}

char* shim_reducer_hook_cast(ReducerBox* reducer, int8_t dtype) {
  return guarded([&] {
    reducer->reducer->register_comm_hook(
        std::make_unique<hooks::Cast>(reducer->group, static_cast<at::ScalarType>(dtype)));
  });
}

char* shim_reducer_hook_gather(ReducerBox* reducer, uint64_t up_to_bytes) {
  return guarded(
      [&] { reducer->reducer->register_comm_hook(std::make_unique<hooks::Gather>(reducer->group, up_to_bytes)); });
}

char* shim_reducer_hook_foreign(ReducerBox* reducer, ForeignHook hook) {
  return guarded([&] { reducer->reducer->register_comm_hook(std::make_unique<hooks::Foreign>(hook)); });
}

char* shim_reducer_before_forward(ReducerBox* reducer, bool synchronise) {
  return guarded([&] { reducer->before_forward(synchronise); });
}

char* shim_reducer_before_backward(ReducerBox* reducer, const at::Tensor* const* outputs, size_t n_outputs) {
  return guarded([&] { reducer->before_backward(tensors_of(outputs, n_outputs)); });
}

char* shim_reducer_backward(
    ReducerBox* reducer,
    const at::Tensor* const* outputs,
    const at::Tensor* const* seeds,
    size_t n_outputs,
    bool retain_graph,
    bool synchronise,
    bool* broken) {
  char* error = guarded([&] {
    auto begin = reducer->begin(outputs, seeds, n_outputs);
    reducer->backward(begin, tensors_of(outputs, n_outputs), retain_graph, synchronise);
  });
  *broken = error && reducer->reducer->underway();
  return error;
}

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
    at::Tensor** results) {
  char* error = guarded([&] {
    auto begin = reducer->begin(outputs, seeds, n_outputs);
    graph::hand_over(
        reducer->grad(begin, tensors_of(outputs, n_outputs), tensors_of(inputs, n_inputs), retain_graph, synchronise),
        results);
  });
  *broken = error && reducer->reducer->underway();
  return error;
}

char* shim_reducer_since_last(const ReducerBox* reducer, int64_t* nanoseconds) {
  return guarded([&] {
    const auto since = std::chrono::steady_clock::now() - reducer->collected->last.load(std::memory_order_relaxed);
    *nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
  });
}

char* shim_reducer_zero_grad(const ReducerBox* reducer) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : reducer->parameters()) {
      if (parameter.grad().defined()) {
        parameter.mutable_grad().zero_();
      }
    }
  });
}

char* shim_reducer_statistic(const ReducerBox* reducer, const char* key, int64_t* value) {
  return guarded([&] {
    const auto data = reducer->logger->get_ddp_logging_data();
    const auto found = data.ints_map.find(key);
    *value = found == data.ints_map.end() ? -1 : found->second;
  });
}

char* shim_reducer_buckets(const ReducerBox* reducer, int64_t* bytes, size_t capacity, size_t* count) {
  return guarded([&] {
    const auto sizes = reducer->logger->get_bucket_sizes();
    *count = sizes.size();
    std::copy_n(sizes.begin(), std::min(capacity, sizes.size()), bytes);
  });
}
}
