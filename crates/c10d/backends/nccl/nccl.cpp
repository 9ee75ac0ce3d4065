// c10d's ProcessGroupNCCL, which is in libtorch_cuda.so. An object of its own because that library is missing on
// machines without a GPU, where the rest of the crate has to load. Whoever opens this has opened libtorch_cuda.so for
// all (RTLD_GLOBAL) before.

#define USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "../object.h"
#include "guard.h"

const char c10d_backend_built_for[] = PSTRAIN_BUILT_FOR;

char* c10d_backend_new(c10d::Store* store, int rank, int size, int64_t timeout_ms, c10d::Backend** out) {
  return guarded([&] {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    auto shared = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store);
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(shared), rank, size, std::move(options));
    nccl->setSequenceNumberForGroup();
    *out = nccl.release();
  });
}

char* c10d_backend_device(int device, char** id) {
  return guarded([&] {
    const auto& uuid = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->uuid.bytes;
    std::string text = "GPU-";
    for (const char byte : uuid) {
      const char* digits = "0123456789abcdef";
      text += digits[(byte >> 4) & 15];
      text += digits[byte & 15];
    }
    *id = strdup(text.c_str());
  });
}

// Its groups end with their last owner; the process holds nothing.
bool c10d_backend_finalize(int64_t) {
  return true;
}
