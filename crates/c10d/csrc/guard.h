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
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("a C++ exception that is no std::exception");
  }
}
