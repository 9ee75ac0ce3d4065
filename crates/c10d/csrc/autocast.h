// Autocasting, a region at a time. See guard.h for how errors come back.
#pragma once

#include <cstdint>

extern "C" {

// What holds on this thread for devices of one type: whether operations are cast, to what, and whether casts of parameters are
// kept until the region ends.
struct ShimAutocast {
  int8_t device_type;
  bool enabled;
  int8_t dtype;
  bool cache;
};

// Begins a region, as `torch.autocast.__enter__` does; `before` gets what held until now, for `shim_autocast_end`.
char* shim_autocast_begin(ShimAutocast wanted, ShimAutocast* before);
// Ends the innermost region of this thread.
char* shim_autocast_end(ShimAutocast before);
}
