#include "autocast.h"

#include <ATen/autocast_mode.h>

#include "guard.h"

namespace {

void set(const ShimAutocast& to) {
  const auto device = static_cast<at::DeviceType>(to.device_type);
  at::autocast::set_autocast_enabled(device, to.enabled);
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(to.dtype));
  at::autocast::set_autocast_cache_enabled(to.cache);
}

}  // namespace

char* shim_autocast_begin(ShimAutocast wanted, ShimAutocast* before) {
  return guarded([&] {
    const auto device = static_cast<at::DeviceType>(wanted.device_type);
    *before = {
        wanted.device_type,
        at::autocast::is_autocast_enabled(device),
        static_cast<int8_t>(at::autocast::get_autocast_dtype(device)),
        at::autocast::is_autocast_cache_enabled()};
    set(wanted);
    at::autocast::increment_nesting();
  });
}

char* shim_autocast_end(ShimAutocast before) {
  return guarded([&] {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    set(before);
  });
}
