#include "recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <mutex>

#include "guard.h"
#include "handles.h"

namespace {

using torch::autograd::collect_next_edges;
using torch::autograd::Node;
using torch::autograd::variable_list;

class Forward {
 public:
  explicit Forward(ShimForward forward) : forward_(forward) {}
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;
  ~Forward() {
    forward_.drop(forward_.state);
  }

  at::Tensor run(const variable_list& inputs) const {
    std::vector<at::Tensor*> handles;
    for (const at::Tensor& input : inputs) {
      handles.push_back(new at::Tensor(input));
    }
    char reason[1024] = {0};
    std::unique_ptr<at::Tensor> output(
        forward_.run(forward_.state, handles.data(), handles.size(), reason, sizeof(reason)));
    TORCH_CHECK(output != nullptr, reason);
    return std::move(*output);
  }

 private:
  ShimForward forward_;
};

struct Recompute : public Node {
  Recompute(variable_list given, std::unique_ptr<Forward> forward)
      : inputs(std::move(given)), forward(std::move(forward)) {}

  variable_list apply(variable_list&& gradients) override {
    // A graph may be used by several threads at a time.
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(forward != nullptr, "a forward that is computed again in the backward was freed by a backward before");
    at::AutoGradMode recording(true);
    variable_list again, wanted;
    for (const at::Tensor& input : inputs) {
      at::Tensor start = input.detach();
      start.set_requires_grad(input.requires_grad());
      again.push_back(start);
      if (start.requires_grad()) {
        wanted.push_back(start);
      }
    }
    at::Tensor output = forward->run(again);
    auto found = torch::autograd::grad({output}, wanted, gradients, false, false, /*allow_unused=*/true);
    variable_list results(inputs.size());
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].requires_grad()) {
        results[i] = found[next++];
      }
    }
    return results;
  }

  std::string name() const override {
    return "Recompute";
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    inputs.clear();
    forward.reset();
  }

  variable_list inputs;
  std::unique_ptr<Forward> forward;
};

} // namespace

char* shim_recomputed(
    const at::Tensor* const* inputs,
    size_t n_inputs,
    ShimForward taken,
    at::Tensor** output) {
  auto forward = std::make_unique<Forward>(taken);
  return guarded([&] {
    variable_list given = tensors_of(inputs, n_inputs);
    at::Tensor result;
    {
      at::NoGradGuard no_grad;
      result = forward->run(given);
    }
    if (at::GradMode::is_enabled() && torch::autograd::compute_requires_grad(given)) {
      auto node = std::make_shared<Recompute>(given, std::move(forward));
      node->set_next_edges(collect_next_edges(given));
      // The forward may give an input, or a view of one, which is part of another graph.
      result = result.detach();
      torch::autograd::set_history(result, node);
    }
    *output = new at::Tensor(std::move(result));
  });
}
