#include "backend.h"

#include "guard.h"

extern "C" char* shim_backend_of_object(
    void* new_backend,
    const StoreBox* store,
    int rank,
    int size,
    int64_t timeout_ms,
    BackendBox** backend) {
  using New = char* (*)(c10d::Store*, int, int, int64_t, c10d::Backend**);
  c10d::Backend* made = nullptr;
  if (char* message = reinterpret_cast<New>(new_backend)(store->store.get(), rank, size, timeout_ms, &made)) {
    return message;
  }
  return guarded([&] { *backend = new BackendBox{c10::intrusive_ptr<c10d::Backend>::reclaim(made)}; });
}
