// Places in autograd's graphs: where a gradient enters, where it arrives, and tensors that stand for places.
#pragma once

#include <ATen/Functions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

namespace graph {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// For each result a tensor that the caller owns, or null where there is none.
inline void hand_over(variable_list gradients, at::Tensor** results) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    results[i] = gradients[i].defined() ? new at::Tensor(std::move(gradients[i])) : nullptr;
  }
}

// Where a gradient for `output` enters the graph.
inline Edge entrance(const at::Tensor& output) {
  Edge edge = torch::autograd::impl::gradient_edge(output);
  TORCH_CHECK(edge.is_valid(), "a tensor that does not require grad has no place in a graph");
  return edge;
}

// Where the gradient of `input` would arrive. A leaf is known by its AccumulateGrad node, which exists only while
// some graph uses the leaf: an edge without a function means that nothing can reach it.
inline Edge arrival(const at::Tensor& input) {
  if (const auto& node = input.grad_fn()) {
    return Edge(node, input.output_nr());
  }
  return Edge(torch::autograd::impl::try_get_grad_accumulator(input), 0);
}

// Stands in the graph where a tensor came from elsewhere. The engine captures what arrives; it runs the node only in a
// backward that does not ask for it, whose gradient would be lost.
struct Received : public Node {
  variable_list apply(variable_list&&) override {
    TORCH_CHECK(false, "a backward reached a tensor received from another rank: only the backward of its autograd "
                "context sends its gradient on");
  }
  std::string name() const override {
    return "Received";
  }
};

// Where the engine captures the gradient of `input`: it wants a node for every input, also for one in no graph.
inline Edge capture(const at::Tensor& input, size_t index) {
  TORCH_CHECK(input.requires_grad(), "input ", index, " does not require grad");
  Edge edge = arrival(input);
  return edge.is_valid() ? edge : Edge(std::make_shared<Received>(), 0);
}

// A tensor without elements at the place of `edge`.
inline at::Tensor mark_of(const at::Tensor& like, Edge edge) {
  at::Tensor mark = at::empty({0}, at::TensorOptions().dtype(like.scalar_type()).device(like.device()));
  torch::autograd::impl::set_gradient_edge(mark, std::move(edge));
  return mark;
}

} // namespace graph
