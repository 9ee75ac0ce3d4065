// Key-value stores, where ranks find one another. See guard.h for how errors come back.
#pragma once

#include "handles.h"

#include <cstdint>

extern "C" {

// A value: `data` is freed with `shim_bytes_free`.
struct ShimBytes {
  uint8_t* data;
  size_t size;
};
void shim_bytes_free(ShimBytes bytes);

struct ShimTcpOptions {
  const char* host;
  uint16_t port;
  bool is_server;
  bool wait_workers;
  bool multi_tenant;
  bool use_libuv;
  // Below 0: not known.
  int64_t workers;
  int64_t timeout_ms;
};

// `port` becomes the one in use.
char* shim_store_tcp(const ShimTcpOptions* options, uint16_t* port, StoreBox** store);
char* shim_store_file(const char* path, int workers, int64_t timeout_ms, StoreBox** store);
char* shim_store_hash(int64_t timeout_ms, StoreBox** store);
char* shim_store_prefix(const StoreBox* inner, const char* prefix, StoreBox** store);

// What keeps a store's keys outside of c10d. Each function gives null, or why it failed as a malloc'ed string that becomes
// ours; so do the values. Any thread may call them, several at once. `drop` ends `state`.
struct ShimKeyValues {
  void* state;
  // Whether all are there, `within_ms` from now at the latest.
  char* (*wait)(void* state, const char* const* keys, size_t count, int64_t within_ms, bool* all_there);
  // Without data where the key is not there within that time.
  char* (*get)(void* state, const char* key, int64_t within_ms, ShimBytes* value);
  char* (*set)(void* state, const char* key, const uint8_t* value, size_t size);
  char* (*add)(void* state, const char* key, int64_t amount, int64_t* sum);
  char* (*compare_set)(
      void* state,
      const char* key,
      const uint8_t* expected,
      size_t expected_size,
      const uint8_t* wanted,
      size_t wanted_size,
      ShimBytes* now);
  char* (*remove)(void* state, const char* key, bool* was_there);
  char* (*count)(void* state, int64_t* keys);
  void (*drop)(void* state);
};
// `keys` is taken over, also when this fails.
char* shim_store_of(ShimKeyValues keys, int64_t timeout_ms, StoreBox** store);

// The same keys over a connection of its own.
char* shim_store_clone(const StoreBox* inner, StoreBox** store);
void shim_store_drop(StoreBox* store);

char* shim_store_set(const StoreBox* store, const char* key, const uint8_t* value, size_t size);
char* shim_store_get(const StoreBox* store, const char* key, ShimBytes* value);
char* shim_store_wait(const StoreBox* store, const char* const* keys, size_t count, int64_t timeout_ms);
char* shim_store_check(const StoreBox* store, const char* const* keys, size_t count, bool* all_there);
char* shim_store_add(const StoreBox* store, const char* key, int64_t amount, int64_t* sum);
char* shim_store_compare_set(
    const StoreBox* store,
    const char* key,
    const uint8_t* expected,
    size_t expected_size,
    const uint8_t* wanted,
    size_t wanted_size,
    ShimBytes* now);
char* shim_store_delete(const StoreBox* store, const char* key, bool* was_there);
char* shim_store_count(const StoreBox* store, int64_t* keys);
int64_t shim_store_timeout_ms(const StoreBox* store);
}
