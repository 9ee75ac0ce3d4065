// What a backend's shared object has for the crate, which opens it with dlopen (src/backend.rs). The object is linked
// with no library of torch: the process has libtorch already.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/headeronly/version.h>

#include <cstdint>

#define PSTRAIN_EXPORT __attribute__((visibility("default")))

extern "C" {

// For which torch and which version of this header the object was built. Read from the file before it is opened: an
// object for another torch may fail in the loader, with an unfriendly message, or later, with none.
PSTRAIN_EXPORT extern const char c10d_backend_built_for[];
#define PSTRAIN_BUILT_FOR "c10d-backend interface=1 torch=" TORCH_VERSION

// Makes the backend of one rank of a group. `store` is the group's, borrowed; keys should be few, and are of this
// group only. On success null, and `*out` is a reference that the caller owns; else a message for free(). Collective:
// all ranks of the group call it, and groups are made in the same order everywhere.
PSTRAIN_EXPORT char* c10d_backend_new(c10d::Store* store, int rank, int size, int64_t timeout_ms, c10d::Backend** out);

// Which device a tensor on `device` of this process lives on, the same text in each process that sees this device: as
// a string for free(). Only in an object that cannot serve two ranks on one device.
PSTRAIN_EXPORT char* c10d_backend_device(int device, char** id);

// Ends what the object holds for the process (MPI_Finalize), once nothing is in flight. False if that took longer.
PSTRAIN_EXPORT bool c10d_backend_finalize(int64_t timeout_ms);
}
