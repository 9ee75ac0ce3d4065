#include "store.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>

#include "guard.h"
#include "key_values.h"

namespace {

using std::chrono::milliseconds;

StoreBox* boxed(c10::intrusive_ptr<c10d::Store> store, int64_t timeout_ms) {
  store->setTimeout(milliseconds(timeout_ms));
  return new StoreBox{std::move(store)};
}

std::vector<uint8_t> bytes(const uint8_t* data, size_t size) {
  return size == 0 ? std::vector<uint8_t>() : std::vector<uint8_t>(data, data + size);
}

ShimBytes copied(const std::vector<uint8_t>& value) {
  // One byte more, so that an empty value has an address too.
  auto* data = static_cast<uint8_t*>(std::malloc(value.size() + 1));
  TORCH_CHECK(data != nullptr, "no memory for a value of ", value.size(), " bytes");
  if (!value.empty()) {
    std::memcpy(data, value.data(), value.size());
  }
  return ShimBytes{data, value.size()};
}

std::vector<std::string> keys_of(const char* const* keys, size_t count) {
  return std::vector<std::string>(keys, keys + count);
}

} // namespace

extern "C" {

char* shim_store_tcp(const ShimTcpOptions* options, uint16_t* port, StoreBox** store) {
  return guarded([&] {
    c10d::TCPStoreOptions wanted;
    wanted.port = options->port;
    wanted.isServer = options->is_server;
    wanted.waitWorkers = options->wait_workers;
    wanted.multiTenant = options->multi_tenant;
    wanted.useLibUV = options->use_libuv;
    wanted.timeout = milliseconds(options->timeout_ms);
    if (options->workers >= 0) {
      wanted.numWorkers = static_cast<size_t>(options->workers);
    }
    auto tcp = c10::make_intrusive<c10d::TCPStore>(options->host, wanted);
    *port = tcp->getPort();
    *store = boxed(std::move(tcp), options->timeout_ms);
  });
}

char* shim_store_file(const char* path, int workers, int64_t timeout_ms, StoreBox** store) {
  return guarded([&] { *store = boxed(c10::make_intrusive<c10d::FileStore>(path, workers), timeout_ms); });
}

char* shim_store_hash(int64_t timeout_ms, StoreBox** store) {
  return guarded([&] { *store = boxed(c10::make_intrusive<c10d::HashStore>(), timeout_ms); });
}

char* shim_store_prefix(const StoreBox* inner, const char* prefix, StoreBox** store) {
  return guarded([&] { *store = new StoreBox{c10::make_intrusive<c10d::PrefixStore>(prefix, inner->store)}; });
}

char* shim_store_of(ShimKeyValues keys, int64_t timeout_ms, StoreBox** store) {
  return guarded([&] {
    auto shared = std::make_shared<const KeyValues::Calls>(keys);
    *store = boxed(c10::make_intrusive<KeyValues>(std::move(shared)), timeout_ms);
  });
}

char* shim_store_clone(const StoreBox* inner, StoreBox** store) {
  return guarded([&] { *store = new StoreBox{inner->store->clone()}; });
}

void shim_store_drop(StoreBox* store) {
  delete store;
}

void shim_bytes_free(ShimBytes bytes) {
  std::free(bytes.data);
}

char* shim_store_set(const StoreBox* store, const char* key, const uint8_t* value, size_t size) {
  return guarded([&] { store->store->set(key, bytes(value, size)); });
}

char* shim_store_get(const StoreBox* store, const char* key, ShimBytes* value) {
  return guarded([&] { *value = copied(store->store->get(key)); });
}

char* shim_store_wait(const StoreBox* store, const char* const* keys, size_t count, int64_t timeout_ms) {
  return guarded([&] { store->store->wait(keys_of(keys, count), milliseconds(timeout_ms)); });
}

char* shim_store_check(const StoreBox* store, const char* const* keys, size_t count, bool* all_there) {
  return guarded([&] { *all_there = store->store->check(keys_of(keys, count)); });
}

char* shim_store_add(const StoreBox* store, const char* key, int64_t amount, int64_t* sum) {
  return guarded([&] { *sum = store->store->add(key, amount); });
}

char* shim_store_compare_set(
    const StoreBox* store,
    const char* key,
    const uint8_t* expected,
    size_t expected_size,
    const uint8_t* wanted,
    size_t wanted_size,
    ShimBytes* now) {
  return guarded([&] {
    *now = copied(store->store->compareSet(key, bytes(expected, expected_size), bytes(wanted, wanted_size)));
  });
}

char* shim_store_delete(const StoreBox* store, const char* key, bool* was_there) {
  return guarded([&] { *was_there = store->store->deleteKey(key); });
}

char* shim_store_count(const StoreBox* store, int64_t* keys) {
  return guarded([&] { *keys = store->store->getNumKeys(); });
}

int64_t shim_store_timeout_ms(const StoreBox* store) {
  return store->store->getTimeout().count();
}
}
