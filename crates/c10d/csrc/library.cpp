#include "library.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/engine.h>

#include <cstring>

extern "C" char* shim_libtorch_path() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&torch::autograd::Engine::get_default_engine), &info) == 0 || info.dli_fname == nullptr) {
    return nullptr;
  }
  return strdup(info.dli_fname);
}
