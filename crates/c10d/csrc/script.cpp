#include "script.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/zeros_like.h>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "guard.h"
#include "script_copy.h"
#include "script_scan.h"
#include "script_slots.h"

using c10::IValue;
using torch::jit::Graph;
using torch::jit::Stack;

namespace {

struct Norm {
  size_t mean_slot;
  size_t var_slot;
  at::Tensor mean;
  at::Tensor var;
  double momentum;
};

// The run that this thread is in, for the operator below.
struct Observer {
  Places handed_in;
  std::vector<Norm> norms;
};
thread_local Observer* observer = nullptr;

struct Observing {
  Observer* before;
  explicit Observing(Observer* now) : before(observer) {
    observer = now;
  }
  ~Observing() {
    observer = before;
  }
};

// aten::batch_norm, but where it would update running statistics of the run it hands the batch's own ones out: it writes
// them into fresh tensors, with momentum 1.
void batch_norm(Stack& stack) {
  auto arguments = torch::jit::pop(stack, 9);
  auto optional = [&](size_t i) { return arguments[i].toOptional<at::Tensor>(); };
  const auto input = arguments[0].toTensor();
  auto mean = optional(3);
  auto var = optional(4);
  const bool training = arguments[5].toBool();
  double momentum = arguments[6].toDouble();
  if (observer != nullptr && training && mean && var && mean->defined() && var->defined()) {
    const auto mean_at = observer->handed_in.find(mean->unsafeGetTensorImpl());
    const auto var_at = observer->handed_in.find(var->unsafeGetTensorImpl());
    if (mean_at != observer->handed_in.end() && var_at != observer->handed_in.end()) {
      mean = at::zeros_like(*mean);
      var = at::zeros_like(*var);
      observer->norms.push_back({mean_at->second, var_at->second, *mean, *var, momentum});
      momentum = 1.0;
    }
  }
  torch::jit::push(
      stack,
      at::batch_norm(
          input, optional(1), optional(2), mean, var, training, momentum, arguments[7].toDouble(), arguments[8].toBool()));
}

// On the first load, not when the library is loaded: not every program runs TorchScript.
void register_operator() {
  static const bool once = [] {
    torch::jit::registerOperator(torch::jit::Operator(
        "pstrain::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
        "bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor",
        batch_norm,
        c10::AliasAnalysisKind::CONSERVATIVE));
    return true;
  }();
  (void)once;
}

void hand_statistics_out(Graph& graph, const std::vector<torch::jit::Node*>& norms) {
  const auto kind = c10::Symbol::fromQualString("pstrain::batch_norm");
  for (auto* node : norms) {
    auto* ours = graph.create(kind, node->inputs(), 1)->insertBefore(node);
    ours->output()->setType(node->output()->type());
    ours->setSourceRange(node->sourceRange());
    node->output()->replaceAllUsesWith(ours->output());
    node->destroy();
  }
}

} // namespace

struct ScriptBox {
  torch::jit::Module module;
  torch::jit::Code code;
  std::vector<Slot> slots;
  // Of each tensor of the module: its first slot.
  Places places;
  // What its forward's arguments are when nobody gives them: one for each.
  std::vector<std::optional<IValue>> defaults;
};

struct RunBox {
  std::vector<at::Tensor> outputs;
  // One for each slot; undefined where the run wrote nothing.
  std::vector<at::Tensor> written;
  std::vector<Norm> norms;
};

namespace {

// Of a tuple of nothing but tensors, how many.
size_t tensors_of(const c10::TypePtr& type) {
  const auto& tensor = *c10::TensorType::get();
  if (type->isSubtypeOf(tensor)) {
    return 1;
  }
  const auto tuple = type->cast<c10::TupleType>();
  if (!tuple) {
    return 0;
  }
  const auto& elements = tuple->elements();
  const bool all = std::all_of(elements.begin(), elements.end(), [&](auto& each) { return each->isSubtypeOf(tensor); });
  return all ? elements.size() : 0;
}

ShimScriptFacts look_at_forward(const torch::jit::Method& forward, std::vector<std::optional<IValue>>& defaults) {
  ShimScriptFacts facts{};
  const auto& schema = forward.function().getSchema();
  const auto& tensor = *c10::TensorType::get();
  const auto& arguments = schema.arguments();
  // The first is the module itself.
  for (size_t i = 1; i < arguments.size(); ++i) {
    defaults.push_back(arguments[i].default_value());
    if (!defaults.back()) {
      facts.arguments = i;
    }
    if (facts.tensors == i - 1 && arguments[i].type()->isSubtypeOf(tensor)) {
      facts.tensors = i;
    }
  }
  facts.outputs = schema.returns().size() == 1 ? tensors_of(schema.returns()[0].type()) : 0;
  return facts;
}

// Looks at the file once more where it went to another device.
char* name_of_kept(const char* path, const ScriptBox& box, c10::Device where) {
  auto module = where.is_cpu() ? box.module : torch::jit::load(path, c10::Device(c10::kCPU));
  Places places;
  std::vector<Slot> slots;
  collect(module._ivalue(), "", places, slots);
  const size_t kept = first_kept(module._ivalue(), places, slots);
  return kept == slots.size() ? nullptr : strdup(slots[kept].name.c_str());
}

} // namespace

extern "C" {

char* shim_script_load(const char* path, int device, ScriptBox** script, ShimScriptFacts* facts) {
  return guarded([&] {
    register_operator();
    const auto where = device < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
    auto box = std::make_unique<ScriptBox>();
    box->module = torch::jit::load(path, where);
    const auto forward = box->module.find_method("forward");
    TORCH_CHECK(forward.has_value(), "it has no forward");
    *facts = look_at_forward(*forward, box->defaults);
    collect(box->module._ivalue(), "", box->places, box->slots);
    facts->slots = box->slots.size();
    facts->kept = name_of_kept(path, *box, where);
    // Inlined. Run by the interpreter as it is: the executors around it would profile the first runs and then use other
    // kernels, so that numbers depended on how often and by how many threads a module has run.
    auto graph = torch::jit::toGraphFunction(forward->function()).optimized_graph()->copy();
    Scanned scanned;
    scan(graph->block(), scanned);
    facts->draws = scanned.draws;
    facts->names_cuda = scanned.names_cuda;
    const std::string attribute = carried(scanned);
    facts->carried = attribute.empty() ? nullptr : strdup(attribute.c_str());
    hand_statistics_out(*graph, scanned.norms);
    torch::jit::runRequiredPasses(graph);
    box->code = torch::jit::Code(graph, "forward");
    *script = box.release();
  });
}

char* shim_script_slot(const ScriptBox* script, size_t slot, ShimScriptSlot* result) {
  return guarded([&] {
    const auto& own = script->slots.at(slot);
    *result = {strdup(own.name.c_str()), new at::Tensor(own.tensor), own.first, own.is_parameter};
  });
}

char* shim_script_tensor(const ScriptBox* script, size_t slot, at::Tensor** copy) {
  return guarded([&] { *copy = new at::Tensor(script->slots.at(slot).tensor.detach().clone()); });
}

void shim_script_drop(ScriptBox* script) {
  delete script;
}

char* shim_script_run(
    const ScriptBox* script,
    const at::Tensor* const* tensors,
    const at::Tensor* const* inputs,
    size_t count,
    bool train,
    RunBox** run) {
  return guarded([&] {
    std::vector<at::Tensor> given;
    std::vector<uint32_t> versions;
    Observer observed;
    for (size_t i = 0; i < script->slots.size(); ++i) {
      given.push_back(*tensors[i]);
      versions.push_back(given[i]._version());
      observed.handed_in.emplace(given[i].unsafeGetTensorImpl(), i);
    }
    Copy copy(script->places, given, train);
    Stack stack{copy.of(script->module._ivalue())};
    for (size_t i = 0; i < count; ++i) {
      stack.push_back(*inputs[i]);
    }
    TORCH_CHECK(count <= script->defaults.size(), "its forward takes ", script->defaults.size(), " arguments at most");
    for (size_t i = count; i < script->defaults.size(); ++i) {
      TORCH_CHECK(script->defaults[i].has_value(), "its forward takes more than ", count, " arguments");
      stack.push_back(*script->defaults[i]);
    }
    {
      torch::jit::GraphOptimizerEnabledGuard as_written(false);
      Observing observing(&observed);
      torch::jit::InterpreterState(script->code).run(stack);
    }
    auto box = std::make_unique<RunBox>();
    const auto given_back = torch::jit::pop(stack);
    if (given_back.isTensor()) {
      box->outputs.push_back(given_back.toTensor());
    } else {
      for (const auto& element : given_back.toTupleRef().elements()) {
        box->outputs.push_back(element.toTensor());
      }
    }
    std::vector<at::Tensor> now(given);
    copy.slots_of(script->module._ivalue(), now);
    for (size_t i = 0; i < given.size(); ++i) {
      const bool same = now[i].is_same(given[i]) && given[i]._version() == versions[i];
      box->written.push_back(same ? at::Tensor() : now[i].detach());
    }
    box->norms = std::move(observed.norms);
    *run = box.release();
  });
}

size_t shim_run_outputs(const RunBox* run) {
  return run->outputs.size();
}

char* shim_run_output(const RunBox* run, size_t number, at::Tensor** output) {
  return guarded([&] { *output = new at::Tensor(run->outputs.at(number)); });
}

char* shim_run_written(const RunBox* run, size_t slot, at::Tensor** written) {
  return guarded([&] {
    const auto& tensor = run->written.at(slot);
    *written = tensor.defined() ? new at::Tensor(tensor) : nullptr;
  });
}

size_t shim_run_norms(const RunBox* run) {
  return run->norms.size();
}

char* shim_run_norm(const RunBox* run, size_t norm, ShimNorm* result) {
  return guarded([&] {
    const auto& own = run->norms.at(norm);
    *result = {own.mean_slot, own.var_slot, new at::Tensor(own.mean), new at::Tensor(own.var), own.momentum};
  });
}

void shim_run_drop(RunBox* run) {
  delete run;
}
}
