// Backends that are no part of libtorch_cpu.so: objects that src/backend/object.rs has opened.
#pragma once

#include "handles.h"

#include <cstdint>

extern "C" {

// `new_backend` is the object's c10d_backend_new (backends/object.h).
char* shim_backend_of_object(
    void* new_backend,
    const StoreBox* store,
    int rank,
    int size,
    int64_t join_timeout_ms,
    int64_t timeout_ms,
    BackendBox** backend);
}
