#include "engine.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "graph.h"
#include "guard.h"
#include "handles.h"

namespace {

using namespace graph;

// A set of inputs, one bit each.
class Inputs {
 public:
  explicit Inputs(size_t count) : words_((count + 63) / 64, 0) {}
  void add(size_t input) {
    words_[input / 64] |= uint64_t{1} << (input % 64);
  }
  void add(const Inputs& others) {
    for (size_t i = 0; i < words_.size(); ++i) {
      words_[i] |= others.words_[i];
    }
  }
  bool has(size_t input) const {
    return (words_[input / 64] >> (input % 64)) & 1;
  }

 private:
  std::vector<uint64_t> words_;
};

// Walks graphs from the outputs down, each node once for all outputs, with a stack of its own: a graph may be deeper
// than the thread's stack.
class Walk {
 public:
  Walk(size_t count) : count_(count) {}

  void expect(const Edge& edge, size_t input) {
    if (edge.is_valid()) {
      wanted_[edge.function.get()].emplace_back(edge.input_nr, input);
    }
  }

  // What a gradient that arrives at `edge` reaches.
  Inputs from(const Edge& edge) {
    Inputs found(count_);
    if (edge.is_valid()) {
      visit(edge.function.get());
      take(edge, found);
    }
    return found;
  }

 private:
  struct Frame {
    Node* node;
    size_t next;
  };

  // Adds what lies at `edge` and below it; the node must have been visited.
  void take(const Edge& edge, Inputs& into) {
    if (auto wanted = wanted_.find(edge.function.get()); wanted != wanted_.end()) {
      for (const auto& [input_nr, input] : wanted->second) {
        if (input_nr == edge.input_nr) {
          into.add(input);
        }
      }
    }
    into.add(below_.at(edge.function.get()));
  }

  void visit(Node* root) {
    if (!below_.emplace(root, Inputs(count_)).second) {
      return;
    }
    std::vector<Frame> stack{{root, 0}};
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      const auto& edges = node->next_edges();
      if (next == edges.size()) {
        Inputs& below = below_.at(node);
        for (const Edge& edge : edges) {
          if (edge.is_valid()) {
            take(edge, below);
          }
        }
        stack.pop_back();
        continue;
      }
      const Edge& edge = edges[next++];
      // An acyclic graph: a node met for the second time is finished, never on the stack.
      if (edge.is_valid() && below_.emplace(edge.function.get(), Inputs(count_)).second) {
        stack.push_back({edge.function.get(), 0});
      }
    }
  }

  size_t count_;
  std::unordered_map<const Node*, std::vector<std::pair<uint32_t, size_t>>> wanted_;
  std::unordered_map<const Node*, Inputs> below_;
};

class Backward {
 public:
  explicit Backward(ShimBackward backward) : backward_(backward) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() {
    backward_.drop(backward_.state);
  }

  variable_list run(const variable_list& given, size_t n_results) const {
    std::vector<at::Tensor*> handles;
    for (const at::Tensor& tensor : given) {
      handles.push_back(new at::Tensor(tensor));
    }
    std::vector<at::Tensor*> made(n_results, nullptr);
    char reason[1024] = {0};
    const bool done =
        backward_.run(backward_.state, handles.data(), handles.size(), made.data(), n_results, reason, sizeof(reason));
    variable_list results(n_results);
    for (size_t i = 0; i < n_results; ++i) {
      if (std::unique_ptr<at::Tensor> result{made[i]}) {
        results[i] = std::move(*result);
      }
    }
    TORCH_CHECK(done, reason);
    return results;
  }

 private:
  ShimBackward backward_;
};

struct Custom : public Node {
  Custom(const variable_list& kept_, std::unique_ptr<Backward> backward_) : backward(std::move(backward_)) {
    for (const at::Tensor& tensor : kept_) {
      kept.emplace_back(tensor, /*is_output=*/false);
    }
  }

  variable_list apply(variable_list&& gradients) override {
    // A graph may be used by several threads at a time.
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(backward != nullptr, "what a backward needs was freed by a backward before: specify retain_graph = true");
    if (!gradients[0].defined()) {
      return variable_list(num_outputs());
    }
    variable_list given{gradients[0]};
    for (const torch::autograd::SavedVariable& saved : kept) {
      given.push_back(saved.unpack());
    }
    return backward->run(given, num_outputs());
  }

  std::string name() const override {
    return "Custom";
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    kept.clear();
    backward.reset();
  }

  std::vector<torch::autograd::SavedVariable> kept;
  std::unique_ptr<Backward> backward;
};

} // namespace

extern "C" {

char* shim_grad(
    const at::Tensor* const* outputs,
    const at::Tensor* const* seeds,
    size_t n_outputs,
    const at::Tensor* const* inputs,
    size_t n_inputs,
    bool retain_graph,
    at::Tensor** results) {
  return guarded([&] {
    // Not torch::autograd::grad: it compares the seeds' shapes with the outputs', and a mark has none. The engine
    // compares them with what the graph knows.
    edge_list roots, captures;
    for (size_t o = 0; o < n_outputs; ++o) {
      roots.push_back(entrance(*outputs[o]));
    }
    for (size_t i = 0; i < n_inputs; ++i) {
      captures.push_back(capture(*inputs[i], i));
    }
    auto gradients = torch::autograd::Engine::get_default_engine().execute(
        roots, tensors_of(seeds, n_outputs), retain_graph, /*create_graph=*/false, /*accumulate_grad=*/false, captures);
    TORCH_CHECK(gradients.size() == n_inputs, "grad gave ", gradients.size(), " gradients for ", n_inputs, " inputs");
    hand_over(std::move(gradients), results);
  });
}

char* shim_reach(
    const at::Tensor* const* outputs,
    size_t n_outputs,
    const at::Tensor* const* inputs,
    size_t n_inputs,
    uint8_t* table) {
  return guarded([&] {
    // First the outputs' edges: for an output that is a leaf itself this makes the node that `arrival` looks for.
    std::vector<Edge> roots;
    roots.reserve(n_outputs);
    for (size_t o = 0; o < n_outputs; ++o) {
      roots.push_back(torch::autograd::impl::gradient_edge(*outputs[o]));
    }
    // Held until the end, so that no node's address is used twice.
    std::vector<Edge> arrivals;
    arrivals.reserve(n_inputs);
    Walk walk(n_inputs);
    for (size_t i = 0; i < n_inputs; ++i) {
      arrivals.push_back(arrival(*inputs[i]));
      walk.expect(arrivals.back(), i);
    }
    for (size_t o = 0; o < n_outputs; ++o) {
      const Inputs found = walk.from(roots[o]);
      for (size_t i = 0; i < n_inputs; ++i) {
        table[o * n_inputs + i] = found.has(i) ? 1 : 0;
      }
    }
  });
}

char* shim_mark(const at::Tensor* tensor, at::Tensor** mark) {
  return guarded([&] { *mark = new at::Tensor(mark_of(*tensor, entrance(*tensor))); });
}

char* shim_receive(const at::Tensor* tensor, at::Tensor** received, at::Tensor** mark) {
  return guarded([&] {
    at::Tensor start = tensor->detach();
    torch::autograd::set_history(start, std::make_shared<Received>());
    at::Tensor place = mark_of(start, entrance(start));
    *received = new at::Tensor(std::move(start));
    *mark = new at::Tensor(std::move(place));
  });
}

char* shim_place(const at::Tensor* tensor, uintptr_t* node, uint32_t* input_nr) {
  return guarded([&] {
    const Edge edge = entrance(*tensor);
    *node = reinterpret_cast<uintptr_t>(edge.function.get());
    *input_nr = edge.input_nr;
  });
}

char* shim_with_backward(
    const at::Tensor* const* inputs,
    size_t n_inputs,
    const at::Tensor* const* kept,
    size_t n_kept,
    const at::Tensor* output,
    ShimBackward taken,
    at::Tensor** result) {
  auto backward = std::make_unique<Backward>(taken);
  return guarded([&] {
    const variable_list given = tensors_of(inputs, n_inputs);
    at::Tensor computed = output->detach();
    if (at::GradMode::is_enabled() && torch::autograd::compute_requires_grad(given)) {
      auto node = std::make_shared<Custom>(tensors_of(kept, n_kept), std::move(backward));
      node->set_next_edges(torch::autograd::collect_next_edges(given));
      torch::autograd::set_history(computed, node);
    }
    *result = new at::Tensor(std::move(computed));
  });
}

void shim_free(char* message) {
  std::free(message);
}
}
