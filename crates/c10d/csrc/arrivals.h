// How gradients reach the Reducer, also in a backward that captures them.
//
// c10d's Reducer hooks into AccumulateGrad, which a capturing backward does not run. But it calls the hooks that sit on
// the tensors: `OnArrival` does there what PyTorch's own distributed autograd does with its capture hook, puts the
// gradient into a context and calls the Reducer, which then looks for it in the context and leaves the average there.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "graph.h"

namespace arrivals {

using graph::Node;
using graph::variable_list;
using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::distributed::autograd::ContextPtr;
using torch::distributed::autograd::DistAutogradContext;
using torch::distributed::autograd::ThreadLocalDistAutogradContext;

// The Reducer, with a way to what it keeps for its own hooks.
class OpenReducer : public c10d::Reducer {
 public:
  using Reducer::Reducer;

  // A prepared backward has not come to its end.
  bool unfinished() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return expect_autograd_hooks_;
  }
  // A parameter was handed over for a reduction that has not come to its end.
  bool underway() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return require_finalize_;
  }
  // Where gradients are found and left from now on: null stands for `.grad`.
  void keep_gradients_in(const ContextPtr& context) {
    std::lock_guard<std::mutex> lock(mutex_);
    rpc_context_.context_ptr.store(context.get());
    rpc_context_.context_ptr_holder = context;
  }
  // The buckets stay as they are: c10d takes them for those that it has rebuilt (`should_rebuild_buckets`).
  void keep_buckets() {
    std::lock_guard<std::mutex> lock(mutex_);
    has_rebuilt_bucket_ = true;
  }
  Node* accumulator(size_t parameter) const {
    return grad_accumulators_[parameter].get();
  }
  // What happens after AccumulateGrad ran for a parameter, as far as this reducer asked for it.
  void arrived(size_t parameter) {
    (*reinterpret_cast<FunctionPostHook*>(hooks_[parameter].first))({}, {});
  }
  // Hands over the parameters that the graph does not reach, without waiting for one that it does. To be called by
  // the engine, in a backward.
  void hand_over_unused() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!expect_autograd_hooks_ || has_marked_unused_parameters_) {
      return;
    }
    has_marked_unused_parameters_ = true;
    for (size_t parameter : unused_parameters_) {
      mark_variable_ready(parameter);
    }
  }
};

// A node that the engine meets in one run and in no other. It tells that run from others over the same graph.
struct Start : public Node {
  variable_list apply(variable_list&&) override {
    return {};
  }
  std::string name() const override {
    return "ReducerStart";
  }
};

struct OnStart : public FunctionPreHook {
  explicit OnStart(OpenReducer& reducer) : reducer(reducer) {}
  variable_list operator()(const variable_list& gradients) override {
    reducer.hand_over_unused();
    return gradients;
  }
  OpenReducer& reducer;
};

struct Arrivals;

// Sits on a parameter: called for its gradient in every backward, also in those that capture it.
struct OnArrival : public FunctionPreHook {
  OnArrival(std::shared_ptr<Arrivals> arrivals, size_t parameter)
      : arrivals(std::move(arrivals)), parameter(parameter) {}
  variable_list operator()(const variable_list& gradients) override;
  std::shared_ptr<Arrivals> arrivals;
  size_t parameter;
};

// One run that captures gradients, instead of accumulating them into `.grad`.
struct Run {
  const Node* start;
  ContextPtr context;
  // The gradients are summed up for a later run.
  bool accumulate;
  // The reducer leaves the gradient where it is until the end of the run.
  bool late;
};

struct Arrivals {
  std::vector<at::Tensor> parameters;
  std::shared_ptr<OpenReducer> reducer;
  std::vector<std::atomic<bool>> seen;
  // When the last gradient came, by the steady clock.
  std::atomic<std::chrono::steady_clock::time_point> last{};
  std::mutex mutex;
  // Guarded by `mutex`; null between runs.
  std::shared_ptr<const Run> run;

  Arrivals(std::vector<at::Tensor> list, std::shared_ptr<OpenReducer> reducer)
      : parameters(std::move(list)), reducer(std::move(reducer)), seen(parameters.size()) {}

  std::shared_ptr<const Run> current() {
    std::shared_ptr<const Run> found;
    {
      std::lock_guard<std::mutex> lock(mutex);
      found = run;
    }
    const auto* nodes = found ? torch::autograd::get_current_graph_task_exec_info() : nullptr;
    return nodes && nodes->count(const_cast<Node*>(found->start)) ? found : nullptr;
  }
  void set(std::shared_ptr<const Run> next) {
    std::lock_guard<std::mutex> lock(mutex);
    run = std::move(next);
  }

  // As AccumulateGrad would, but into the run's context.
  void take(const Run& run, size_t index, const at::Tensor& gradient) {
    at::NoGradGuard no_grad;
    ThreadLocalDistAutogradContext here{ContextPtr(run.context)};
    const at::Tensor& parameter = parameters[index];
    bool borrowed = false;
    if (gradient.defined()) {
      run.context->runGradCallbackForVariable(parameter, [&](at::Tensor& held) {
        if (held.defined()) {
          held.add_(gradient);
          return false;
        }
        borrowed = !run.accumulate && !run.late;
        // Others may hold the same memory: what stays here must be a copy.
        held = borrowed ? gradient.detach() : torch::autograd::utils::clone_obey_contract(gradient, parameter);
        return true;
      });
    }
    reducer->arrived(index);
    if (borrowed) {
      run.context->runGradCallbackForVariable(parameter, [&](at::Tensor& held) {
        if (!held.is_alias_of(gradient)) {
          return false;
        }
        // It lies in its bucket now. The average will be written to memory of its own.
        held = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false));
        return true;
      });
    }
  }
};

inline variable_list OnArrival::operator()(const variable_list& gradients) {
  arrivals->seen[parameter] = true;
  arrivals->last.store(std::chrono::steady_clock::now(), std::memory_order_relaxed);
  if (const auto run = arrivals->current()) {
    arrivals->take(*run, parameter, gradients.at(0));
  }
  return gradients;
}

} // namespace arrivals
