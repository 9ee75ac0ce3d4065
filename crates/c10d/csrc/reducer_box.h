// A Reducer as Rust holds it: made and called as PyTorch's nn/parallel/distributed.py does it.
#pragma once

#include <torch/csrc/distributed/c10d/logger.hpp>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arrivals.h"
#include "graph.h"
#include "reducer.h"
#include "replicas.h"

inline std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : tensors) {
    list.push_back(tensor.detach());
  }
  return list;
}

struct ReducerBox {
  using Edge = graph::Edge;
  using edge_list = graph::edge_list;
  using Engine = torch::autograd::Engine;
  using Node = graph::Node;
  using variable_list = graph::variable_list;
  using Arrivals = arrivals::Arrivals;
  using ContextPtr = arrivals::ContextPtr;
  using OpenReducer = arrivals::OpenReducer;
  using Run = arrivals::Run;
  using Start = arrivals::Start;

  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<at::Tensor> buffers;
  std::vector<std::string> names;
  ReducerConfig config;
  std::shared_ptr<OpenReducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  std::shared_ptr<Arrivals> collected;
  // Gradients of runs that capture, since the last that synchronised; null if there was none since.
  ContextPtr context;
  bool static_graph_known = false;
  bool synchronise_buffers = true;

  ~ReducerBox() noexcept(false) {
    if (!collected) {
      return;
    }
    for (const at::Tensor& parameter : parameters()) {
      auto& hooks = torch::autograd::impl::hooks(parameter);
      hooks.erase(
          std::remove_if(
              hooks.begin(),
              hooks.end(),
              [&](const auto& hook) {
                const auto* ours = dynamic_cast<const arrivals::OnArrival*>(hook.get());
                return ours && ours->arrivals == collected;
              }),
          hooks.end());
    }
    reducer->remove_autograd_hooks();
  }

  const std::vector<at::Tensor>& parameters() const {
    return collected->parameters;
  }

  void same_start(const std::vector<at::Tensor>& parameters) const {
    replicas::verify(group, parameters, names);
    at::NoGradGuard no_grad;
    auto states = detached(parameters);
    if (config.broadcast_buffers) {
      const auto more = detached(buffers);
      states.insert(states.end(), more.begin(), more.end());
    }
    replicas::share(group, states);
  }

  std::vector<size_t> limits() const {
    return {static_cast<size_t>(config.first_bucket_bytes), static_cast<size_t>(config.bucket_bytes)};
  }

  // As PyTorch's, until they are filled anew.
  std::vector<std::vector<size_t>> first_buckets(const std::vector<at::Tensor>& parameters) const {
    // The first backward tells in which order gradients come; until then one bucket holds them all.
    const bool once = config.static_graph || !config.find_unused_parameters;
    const std::vector<size_t> all{static_cast<size_t>(std::numeric_limits<int64_t>::max())};
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, once ? all : limits()));
    // The last layers' gradients come first.
    std::reverse(buckets.begin(), buckets.end());
    return buckets;
  }

  // As if gradients had come from the last parameter to the first.
  std::vector<std::vector<size_t>> last_first(const std::vector<at::Tensor>& parameters) const {
    const std::vector<at::Tensor> reversed(parameters.rbegin(), parameters.rend());
    std::vector<int64_t> indices(parameters.size());
    std::iota(indices.rbegin(), indices.rend(), 0);
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(reversed, limits(), {}, indices));
    // Those that are not full come by dtype and device, in the order of a hash, which other ranks may have otherwise.
    std::sort(buckets.begin(), buckets.end(), [](const auto& one, const auto& other) { return one.back() > other.back(); });
    return buckets;
  }

  void build(std::vector<at::Tensor> parameters) {
    same_start(parameters);
    auto buckets = config.rebuild_buckets ? first_buckets(parameters) : last_first(parameters);
    std::unordered_map<size_t, std::string> named;
    for (size_t i = 0; i < names.size(); ++i) {
      named[i] = names[i];
    }
    reducer = std::make_shared<OpenReducer>(
        parameters,
        std::move(buckets),
        group,
        std::vector<bool>(parameters.size(), false),
        config.bucket_bytes,
        config.find_unused_parameters,
        config.gradient_as_bucket_view,
        std::move(named),
        config.first_bucket_bytes,
        /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false,
        std::vector<int64_t>());
    if (!config.rebuild_buckets) {
      reducer->keep_buckets();
    }
    logger = std::make_shared<c10d::Logger>(reducer);
    reducer->set_logger(logger);
    logger->set_construction_data_and_log("", {}, -1, config.broadcast_buffers, /*has_sync_bn=*/false, config.static_graph);
    if (config.static_graph) {
      reducer->set_static_graph();
      logger->set_static_graph();
    }
    collected = std::make_shared<Arrivals>(std::move(parameters), reducer);
    for (size_t i = 0; i < this->parameters().size(); ++i) {
      torch::autograd::impl::add_hook(this->parameters()[i], std::make_unique<arrivals::OnArrival>(collected, i));
    }
  }

  void before_forward(bool synchronise) {
    if (synchronise) {
      logger->set_runtime_stats_and_log();
      reducer->prepare_for_forward();
    }
    reducer->rebuild_buckets();
    // As in Python: not in a forward that follows one without synchronisation.
    if (config.broadcast_buffers && synchronise_buffers) {
      at::NoGradGuard no_grad;
      replicas::share(group, detached(buffers));
    }
    synchronise_buffers = synchronise;
  }

  void before_backward(const std::vector<at::Tensor>& outputs) {
    if (!config.find_unused_parameters || config.static_graph) {
      reducer->prepare_for_backward({});
      return;
    }
    // The search for unused parameters looks at what lies below an output's node; an output may be a leaf itself.
    edge_list entrances;
    for (const at::Tensor& output : outputs) {
      if (output.requires_grad()) {
        entrances.push_back(graph::entrance(output));
      }
    }
    auto above = std::make_shared<Start>();
    above->set_next_edges(std::move(entrances));
    reducer->prepare_for_backward({graph::mark_of(at::empty({0}), Edge(above, 0))});
  }

  struct Begin {
    edge_list roots;
    variable_list seeds;
    std::shared_ptr<Start> start;
  };

  Begin begin(const at::Tensor* const* outputs, const at::Tensor* const* seeds, size_t count) {
    Begin begin{{}, tensors_of(seeds, count), std::make_shared<Start>()};
    for (size_t o = 0; o < count; ++o) {
      begin.roots.push_back(graph::entrance(*outputs[o]));
    }
    const at::Tensor seed = at::zeros({1});
    begin.start->add_input_metadata(seed);
    begin.roots.emplace_back(begin.start, 0);
    begin.seeds.push_back(seed);
    return begin;
  }

  void prepare(Begin& begin, const variable_list& outputs, bool synchronise) {
    for (auto& seen : collected->seen) {
      seen = false;
    }
    if (!synchronise) {
      return;
    }
    before_backward(outputs);
    if (config.find_unused_parameters && !config.static_graph) {
      begin.start->add_tensor_pre_hook(std::make_unique<arrivals::OnStart>(*reducer));
    }
  }

  // After the engine: everything must have been reduced.
  void finish(bool synchronise) {
    if (!synchronise) {
      return;
    }
    if (config.static_graph && !static_graph_known) {
      // The first time the reducer only learns how often each parameter is used.
      static_graph_known = true;
      reducer->delay_all_reduce();
    }
    TORCH_CHECK(!reducer->unfinished(), missing());
  }

  std::string missing() const {
    std::string list;
    size_t count = 0;
    for (size_t i = 0; i < parameters().size(); ++i) {
      if (!collected->seen[i] && ++count <= 8) {
        list += c10::str(list.empty() ? "" : ", ", i, " (`", names[i], "`)");
      }
    }
    if (count > 8) {
      list += c10::str(" and ", count - 8, " more");
    }
    return c10::str(
        "the backward gave no gradient to ", count, " of ", parameters().size(), " parameters: ", list,
        "; with find_unused_parameters a parameter may stay unused");
  }

  void backward(Begin& begin, const variable_list& outputs, bool retain_graph, bool synchronise) {
    reducer->keep_gradients_in(nullptr);
    prepare(begin, outputs, synchronise);
    Engine::get_default_engine().execute(
        begin.roots, begin.seeds, retain_graph, /*create_graph=*/false, /*accumulate_grad=*/true);
    finish(synchronise);
  }

  // A context that knows all parameters.
  ContextPtr empty_context() const {
    auto fresh = std::make_shared<arrivals::DistAutogradContext>(0);
    c10::Dict<at::Tensor, at::Tensor> gradients = fresh->getGradients();
    for (const at::Tensor& parameter : parameters()) {
      gradients.insert(parameter, at::Tensor());
    }
    return fresh;
  }

  // Captures, for each input, its gradient; the first captures are the parameters'.
  variable_list capture_gradients(Begin& begin, edge_list captures, bool retain_graph, bool synchronise) {
    // Kept by whoever leaves: an error must not leave the reducer with gradients of this run.
    struct Leave {
      ReducerBox& box;
      bool keep;
      ~Leave() {
        box.collected->set(nullptr);
        box.reducer->keep_gradients_in(nullptr);
        if (!keep) {
          box.context = nullptr;
        }
      }
    } leave{*this, false};
    captures.emplace_back(begin.start, 0);
    const bool late = config.static_graph && !static_graph_known;
    collected->set(std::make_shared<const Run>(Run{begin.start.get(), context, !synchronise, late}));
    reducer->keep_gradients_in(context);
    auto gradients = Engine::get_default_engine().execute(
        begin.roots, begin.seeds, retain_graph, /*create_graph=*/false, /*accumulate_grad=*/false, captures);
    finish(synchronise);
    leave.keep = !synchronise;
    return gradients;
  }

  variable_list grad(
      Begin& begin,
      const variable_list& outputs,
      const variable_list& inputs,
      bool retain_graph,
      bool synchronise) {
    edge_list captures;
    std::unordered_map<const Node*, size_t> parameter_at;
    for (size_t i = 0; i < parameters().size(); ++i) {
      captures.push_back(graph::capture(parameters()[i], i));
      parameter_at[reducer->accumulator(i)] = i;
    }
    // For each input, a parameter's index or, beyond these, that of a capture.
    std::vector<size_t> found;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Edge edge = graph::capture(inputs[i], i);
      const auto parameter = parameter_at.find(edge.function.get());
      found.push_back(parameter == parameter_at.end() ? captures.size() : parameter->second);
      if (parameter == parameter_at.end()) {
        captures.push_back(std::move(edge));
      }
    }
    if (!context) {
      context = empty_context();
    }
    const ContextPtr here = context;
    prepare(begin, outputs, synchronise);
    const auto captured = capture_gradients(begin, std::move(captures), retain_graph, synchronise);
    const auto averages = here->getGradients();
    variable_list results;
    for (size_t index : found) {
      if (index >= parameters().size()) {
        results.push_back(captured[index]);
      } else {
        results.push_back(synchronise ? averages.at(parameters()[index]) : at::Tensor());
      }
    }
    return results;
  }
};
