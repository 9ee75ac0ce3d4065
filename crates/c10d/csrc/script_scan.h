// What the code of a forward does, without running it.
#pragma once

#include <ATen/core/function_schema.h>

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

struct Scanned {
  bool draws = false;
  bool names_cuda = false;
  std::vector<torch::jit::Node*> norms;
  // Attributes of modules that are no buffers, by class and name.
  std::set<std::pair<std::string, std::string>> read;
  std::set<std::pair<std::string, std::string>> written;
};

// The attribute that a node reads or sets, if it is a module's and what it holds is not in a slot.
inline void note_attribute(
    const torch::jit::Value* module,
    const std::string& name,
    std::set<std::pair<std::string, std::string>>& into) {
  const auto type = module->type()->cast<c10::ClassType>();
  if (!type || !type->is_module()) {
    return;
  }
  const auto at = type->findAttributeSlot(name);
  const bool in_slot = at && (type->is_buffer(*at) || type->is_parameter(*at)) &&
      type->getAttribute(*at)->isSubtypeOf(*c10::TensorType::get());
  if (at && !in_slot) {
    into.emplace(type->annotation_str(), name);
  }
}

// Notes an attribute whose list, dictionary or tensor a node changes in place.
inline void note_change(const torch::jit::Node* node, Scanned& scanned) {
  const auto* schema = node->maybeSchema();
  for (size_t i = 0; schema != nullptr && i < schema->arguments().size() && i < node->inputs().size(); ++i) {
    const auto* alias = schema->arguments()[i].alias_info();
    const auto* from = node->inputs()[i]->node();
    if (alias != nullptr && alias->isWrite() && from->kind() == c10::prim::GetAttr) {
      note_attribute(from->inputs()[0], from->s(c10::attr::name), scanned.written);
    }
  }
}

inline void scan(torch::jit::Block* block, Scanned& scanned) {
  for (auto* node : block->nodes()) {
    // What cannot be looked into, a call by an interface's name, may draw.
    scanned.draws |= node->isNondeterministic() || node->kind() == c10::prim::CallMethod ||
        node->kind() == c10::prim::CallFunction;
    if (node->kind() == c10::aten::batch_norm) {
      scanned.norms.push_back(node);
    }
    if (node->kind() == c10::prim::Constant) {
      const auto value = torch::jit::toIValue(node->output());
      scanned.names_cuda |= value && value->isDevice() && value->toDevice().is_cuda();
    }
    if (node->kind() == c10::prim::GetAttr) {
      note_attribute(node->inputs()[0], node->s(c10::attr::name), scanned.read);
    } else if (node->kind() == c10::prim::SetAttr) {
      note_attribute(node->inputs()[0], node->s(c10::attr::name), scanned.written);
    } else {
      note_change(node, scanned);
    }
    for (auto* inner : node->blocks()) {
      scan(inner, scanned);
    }
  }
}

// The name of an attribute by which one forward tells the next one something, or nothing.
inline std::string carried(const Scanned& scanned) {
  for (const auto& attribute : scanned.written) {
    if (scanned.read.count(attribute) != 0) {
      return attribute.second;
    }
  }
  return "";
}
