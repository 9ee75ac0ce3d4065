// A store of c10d's whose keys are kept elsewhere; see ShimKeyValues in store.h.
#pragma once

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store.h"

class KeyValues final : public c10d::Store {
 public:
  using Bytes = std::vector<uint8_t>;
  using Keys = std::vector<std::string>;

  // Shared by a store and its clones.
  struct Calls {
    const ShimKeyValues shim;
    explicit Calls(const ShimKeyValues& shim) : shim(shim) {}
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;
    ~Calls() {
      shim.drop(shim.state);
    }
  };

  explicit KeyValues(std::shared_ptr<const Calls> calls) : calls_(std::move(calls)) {}

  // Whoever keeps the keys serves several threads at once.
  c10::intrusive_ptr<Store> clone() override {
    auto same = c10::make_intrusive<KeyValues>(calls_);
    same->setTimeout(timeout_);
    return same;
  }

  void set(const std::string& key, const Bytes& value) override {
    passed(shim().set(shim().state, key.c_str(), value.data(), value.size()));
  }
  Bytes get(const std::string& key) override {
    ShimBytes value{nullptr, 0};
    passed(shim().get(shim().state, key.c_str(), timeout_.count(), &value));
    if (value.data == nullptr) {
      late({key}, timeout_);
    }
    return taken(value);
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) override {
    ShimBytes now{nullptr, 0};
    passed(shim().compare_set(
        shim().state, key.c_str(), expected.data(), expected.size(), wanted.data(), wanted.size(), &now));
    return taken(now);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    int64_t sum = 0;
    passed(shim().add(shim().state, key.c_str(), amount, &sum));
    return sum;
  }
  bool deleteKey(const std::string& key) override {
    bool was_there = false;
    passed(shim().remove(shim().state, key.c_str(), &was_there));
    return was_there;
  }
  int64_t getNumKeys() override {
    int64_t keys = 0;
    passed(shim().count(shim().state, &keys));
    return keys;
  }
  bool check(const Keys& keys) override {
    return all_there(keys, 0);
  }
  void wait(const Keys& keys) override {
    wait(keys, timeout_);
  }
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout) override {
    // Where c10d's own stores would wait without end.
    const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
    if (!all_there(keys, limit.count())) {
      late(keys, limit);
    }
  }

 private:
  const ShimKeyValues& shim() const {
    return calls_->shim;
  }

  bool all_there(const Keys& keys, int64_t within_ms) const {
    std::vector<const char*> names;
    for (const auto& key : keys) {
      names.push_back(key.c_str());
    }
    bool all_there = false;
    passed(shim().wait(shim().state, names.data(), names.size(), within_ms, &all_there));
    return all_there;
  }

  static void passed(char* failed) {
    if (failed != nullptr) {
      const std::string why(failed);
      std::free(failed);
      C10_THROW_ERROR(DistStoreError, why);
    }
  }

  static Bytes taken(ShimBytes bytes) {
    if (bytes.data == nullptr) {
      return {};
    }
    Bytes value(bytes.data, bytes.data + bytes.size);
    std::free(bytes.data);
    return value;
  }

  // In words that src/group/peers.rs knows.
  [[noreturn]] static void late(const Keys& keys, std::chrono::milliseconds limit) {
    const auto why = c10::str("wait timeout after ", limit.count(), " ms, keys: ", c10::Join(", ", keys));
    C10_THROW_ERROR(DistStoreError, why);
  }

  const std::shared_ptr<const Calls> calls_;
};
