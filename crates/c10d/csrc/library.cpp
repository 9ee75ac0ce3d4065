#include "library.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

extern "C" char* shim_libtorch_path() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&torch::autograd::grad), &info) == 0 || info.dli_fname == nullptr) {
    return nullptr;
  }
  return strdup(info.dli_fname);
}
