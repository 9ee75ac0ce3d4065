// The same start on all ranks: the same parameters, with the same values.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>
#include <vector>

namespace replicas {

// Throws, on all ranks alike, if a rank has other parameters than rank 0, and says which. A rank that runs PyTorch's
// own DistributedDataParallel sees the collectives that it expects.
void verify(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const std::vector<at::Tensor>& parameters,
    const std::vector<std::string>& names);

// Gives every rank the tensors of rank 0.
void share(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::vector<at::Tensor>& tensors);

} // namespace replicas
