// A TorchScript module's tensors: its parameters and buffers by name.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <unordered_map>
#include <vector>

struct Slot {
  std::string name;
  at::Tensor tensor;
  size_t first;
  bool is_parameter;
};

// By the tensor's own address.
using Places = std::unordered_map<const c10::TensorImpl*, size_t>;

using ObjectPtr = c10::intrusive_ptr<c10::ivalue::Object>;

// A module as an attribute, whether its type says its class or an interface.
inline bool is_module(const c10::IValue& value) {
  return value.isObject() && value.toObjectRef().type()->is_module();
}

// As state_dict has them: a module's parameters, its buffers, then its modules'.
inline void collect(const ObjectPtr& object, const std::string& prefix, Places& seen, std::vector<Slot>& slots) {
  const auto type = object->type();
  for (const bool parameters : {true, false}) {
    for (size_t i = 0; i < type->numAttributes(); ++i) {
      const c10::IValue& value = object->getSlot(i);
      const bool wanted = parameters ? type->is_parameter(i) : type->is_buffer(i);
      if (wanted && value.isTensor() && value.toTensor().defined()) {
        const auto first = seen.emplace(value.unsafeToTensorImpl(), slots.size()).first->second;
        slots.push_back({prefix + type->getAttributeName(i), value.toTensor(), first, parameters});
      }
    }
  }
  for (size_t i = 0; i < type->numAttributes(); ++i) {
    const c10::IValue& value = object->getSlot(i);
    if (is_module(value)) {
      collect(value.toObject(), prefix + type->getAttributeName(i) + ".", seen, slots);
    }
  }
}
