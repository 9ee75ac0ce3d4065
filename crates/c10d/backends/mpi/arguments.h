// What an operation is given: checked, and as MPI takes it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace pstrain_mpi {

using Tensors = std::vector<at::Tensor>;

// How many elements go to or come from each rank, and where they lie.
struct Layout {
  std::vector<int> counts, offsets;
};

// These throw, with the operation's name, where MPI could not take what is given.
void check_tensor(const char* name, const at::Tensor& tensor);
const at::Tensor& only(const char* name, const Tensors& tensors);
void check_same_type(const char* name, const at::Tensor& tensor, const at::Tensor& like);
// One tensor for each rank, each of as many elements as `like`.
void check_parts(const char* name, const Tensors& parts, size_t size, const at::Tensor& like);
// `wholes[i]` holds `parts[i]` once for each rank.
void check_pairs(const char* name, const Tensors& wholes, const Tensors& parts, int size);

// One after the other in one buffer, and back.
at::Tensor joined(const Tensors& parts);
void split_into(const at::Tensor& buffer, const Tensors& parts);
at::Tensor buffer_for(const at::Tensor& part, int size);

Layout layout_of_parts(const Tensors& parts);
// Rows of one tensor; without splits each rank has as many.
Layout layout_of(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size);

bool is_average(const c10d::ReduceOp& op);
void divide(const at::Tensor& sum, int size);
} // namespace pstrain_mpi
