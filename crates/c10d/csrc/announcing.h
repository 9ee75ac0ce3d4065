// The part of a store that a Gloo backend has, with a word to this rank before it tells the others where it listens.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <string>
#include <utility>
#include <vector>

// `entry` is what this rank is about to leave in the store. Null, or why the group is not to be made, malloc'ed.
using Announced = char* (*)(const uint8_t* entry, size_t size);

class Announcing final : public c10d::PrefixStore {
 public:
  Announcing(std::string prefix, c10::intrusive_ptr<c10d::Store> store, int rank, Announced announced)
      : PrefixStore(std::move(prefix), std::move(store)), own_("0/" + std::to_string(rank)), announced_(announced) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    look(key, value);
    PrefixStore::set(key, value);
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override {
    for (size_t i = 0; i < keys.size() && i < values.size(); ++i) {
      look(keys[i], values[i]);
    }
    PrefixStore::multiSet(keys, values);
  }

 private:
  void look(const std::string& key, const std::vector<uint8_t>& value) const {
    if (key != own_) {
      return;
    }
    if (char* failed = announced_(value.data(), value.size())) {
      const std::string why(failed);
      std::free(failed);
      TORCH_CHECK(false, why);
    }
  }

  // As Gloo calls it: the first, and only, of a group's devices, and the rank.
  const std::string own_;
  const Announced announced_;
};
