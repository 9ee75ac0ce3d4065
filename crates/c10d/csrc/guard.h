// Nothing thrown may cross into Rust: every function of the shim returns null for success, or the message of what
// was thrown as a malloc'ed string that the caller hands back to `shim_free`.
#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <exception>

template <typename Body>
char* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    // Not a catch of its own: where libtorch's symbols are weak, a handler's type that is libtorch's would be null, and
    // null takes any exception for one of that type.
    const auto* torch = dynamic_cast<const c10::Error*>(&error);
    return strdup(torch != nullptr ? torch->what_without_backtrace() : error.what());
  } catch (...) {
    return strdup("a C++ exception that is not a std::exception");
  }
}
