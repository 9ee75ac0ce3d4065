// A module's objects anew, so that a run may use tensors of its caller's.
#pragma once

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "script_slots.h"

// A copy of a module with tensors of the caller's wherever the module holds one of its own, and one mode in all of it. The
// module's own tensors are also in lists, tuples, dictionaries and objects of other classes: `nn.LSTM` computes with the
// list `_flat_weights`. Whatever could be changed is copied, so that runs at once do not meet; tensors that are in no slot
// are shared.
class Copy {
 public:
  Copy(const Places& places, const std::vector<at::Tensor>& tensors, bool train)
      : places_(places), tensors_(tensors), train_(train) {}

  ObjectPtr of(const ObjectPtr& object) {
    auto& copy = objects_[object.get()];
    if (copy) {
      return copy;
    }
    const auto type = object->type();
    const auto& slots = object->slots();
    // C++'s own, which is nothing but a pointer.
    if (!slots.empty() && slots[0].isCapsule()) {
      return copy = object;
    }
    auto fresh = c10::ivalue::Object::create(c10::StrongTypePtr(object->compilation_unit(), type), slots.size());
    copy = fresh;
    for (size_t i = 0; i < slots.size(); ++i) {
      fresh->setSlot(i, value(slots[i]));
    }
    if (const auto training = type->findAttributeSlot("training"); training && type->is_module()) {
      fresh->setSlot(*training, train_);
    }
    return fresh;
  }

  // What the slots hold after a run.
  void slots_of(const ObjectPtr& object, std::vector<at::Tensor>& now) {
    const auto type = object->type();
    const auto& copy = objects_.at(object.get());
    for (size_t i = 0; i < type->numAttributes(); ++i) {
      const c10::IValue& value = object->getSlot(i);
      if (is_module(value)) {
        slots_of(value.toObject(), now);
      } else if (const auto place = place_of(value); place != places_.end() && copy->getSlot(i).isTensor()) {
        now[place->second] = copy->getSlot(i).toTensor();
      }
    }
  }

 private:
  Places::const_iterator place_of(const c10::IValue& value) const {
    return value.isTensor() && value.isPtrType() ? places_.find(value.unsafeToTensorImpl()) : places_.end();
  }

  c10::IValue value(const c10::IValue& value) {
    if (value.isTensor()) {
      const auto place = place_of(value);
      return place == places_.end() ? value : c10::IValue(tensors_[place->second]);
    }
    if (value.isObject()) {
      return of(value.toObject());
    }
    if (!value.isList() && !value.isTuple() && !value.isGenericDict()) {
      return value;
    }
    // Two attributes may hold the same one.
    const auto before = containers_.find(value.internalToPointer());
    if (before != containers_.end()) {
      return before->second;
    }
    auto copy = container(value);
    containers_.emplace(value.internalToPointer(), copy);
    return copy;
  }

  c10::IValue container(const c10::IValue& original) {
    if (original.isList()) {
      const auto list = original.toList();
      c10::impl::GenericList copy(list.elementType());
      copy.reserve(list.size());
      for (const c10::IValue& element : list.vec()) {
        copy.push_back(value(element));
      }
      return copy;
    }
    if (original.isGenericDict()) {
      const auto dict = original.toGenericDict();
      c10::impl::GenericDict copy(dict.keyType(), dict.valueType());
      for (const auto& entry : dict) {
        copy.insert(value(entry.key()), value(entry.value()));
      }
      return copy;
    }
    const auto& tuple = original.toTupleRef();
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : tuple.elements()) {
      elements.push_back(value(element));
    }
    const auto type = tuple.type<c10::TupleType>();
    return type->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                          : c10::ivalue::Tuple::create(std::move(elements));
  }

  const Places& places_;
  const std::vector<at::Tensor>& tensors_;
  const bool train_;
  std::unordered_map<const c10::ivalue::Object*, ObjectPtr> objects_;
  std::unordered_map<const void*, c10::IValue> containers_;
};

// All tensors that a value leads to, each once.
inline std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> found;
  std::unordered_set<const c10::TensorImpl*> seen;
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor() && part.isPtrType() && seen.insert(part.unsafeToTensorImpl()).second) {
      found.push_back(part.toTensor());
    }
    return false;
  });
  return found;
}

// Do two tensors have an element in common? The parameters of an LSTM from a GPU lie one behind the other in one storage.
inline bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage() || !b.has_storage() || !a.storage().is_alias_of(b.storage()) || a.numel() * b.numel() == 0) {
    return false;
  }
  if (a.itemsize() != b.itemsize()) {
    return true;
  }
  const auto elements = static_cast<int64_t>(a.storage().nbytes() / a.itemsize());
  auto marked = at::zeros({elements}, at::kBool);
  marked.as_strided(a.sizes(), a.strides(), a.storage_offset()).fill_(true);
  return marked.as_strided(b.sizes(), b.strides(), b.storage_offset()).any().item<bool>();
}

// The first slot with a tensor that a copy with others in its place would still use, itself or by a view; `slots.size()` if
// there is none. Of a module on the CPU: a view loses its origin on the way to another device.
inline size_t first_kept(const ObjectPtr& module, const Places& places, const std::vector<Slot>& slots) {
  std::vector<at::Tensor> others;
  for (const Slot& slot : slots) {
    others.push_back(at::empty_like(slot.tensor));
  }
  const auto left = tensors_in(Copy(places, others, false).of(module));
  const auto own = tensors_in(module);
  for (size_t at = 0; at < slots.size(); ++at) {
    const auto& tensor = slots[at].tensor;
    const auto is_it = [&](const at::Tensor& other) { return other.is_same(tensor); };
    const auto is_view = [&](const at::Tensor& other) { return !other.is_same(tensor) && overlap(other, tensor); };
    if (std::any_of(left.begin(), left.end(), is_it) ||
        (tensor.requires_grad() && std::any_of(own.begin(), own.end(), is_view))) {
      return at;
    }
  }
  return slots.size();
}
