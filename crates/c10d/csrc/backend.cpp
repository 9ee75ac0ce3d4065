#include "backend.h"

#include "guard.h"

extern "C" char* shim_backend_of_object(
    void* new_backend,
    const StoreBox* store,
    int rank,
    int size,
    int64_t join_timeout_ms,
    int64_t timeout_ms,
    BackendBox** backend) {
  using New = char* (*)(c10d::Store*, int, int, int64_t, c10d::Backend**);
  c10d::Backend* made = nullptr;
  if (char* message = reinterpret_cast<New>(new_backend)(store->store.get(), rank, size, join_timeout_ms, &made)) {
    return message;
  }
  auto owned = c10::intrusive_ptr<c10d::Backend>::reclaim(made);
  return guarded([&] {
    owned->setTimeout(std::chrono::milliseconds(timeout_ms));
    *backend = new BackendBox{std::move(owned)};
  });
}
