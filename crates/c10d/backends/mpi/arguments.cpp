#include "arguments.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <climits>

#include "types.h"

namespace pstrain_mpi {

void check_tensor(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "mpi: ", name, ": an undefined tensor");
  TORCH_CHECK_TYPE(tensor.device().is_cpu(), "mpi: ", name, ": a tensor on ", tensor.device(), ", only CPU tensors can be sent");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "mpi: ", name, ": a tensor of layout ", tensor.layout());
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "mpi: ", name, ": the tensor is not contiguous");
  count(tensor);
}

const at::Tensor& only(const char* name, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "mpi: ", name, ": one tensor is wanted, not ", tensors.size());
  check_tensor(name, tensors[0]);
  return tensors[0];
}

void check_same_type(const char* name, const at::Tensor& tensor, const at::Tensor& like) {
  TORCH_CHECK_TYPE(
      tensor.scalar_type() == like.scalar_type(), "mpi: ", name, ": a tensor of ", tensor.scalar_type(), " beside one of ", like.scalar_type());
}

void check_parts(const char* name, const Tensors& parts, size_t size, const at::Tensor& like) {
  TORCH_CHECK_VALUE(parts.size() == size, "mpi: ", name, ": ", parts.size(), " tensors for ", size, " ranks");
  for (const auto& part : parts) {
    check_tensor(name, part);
    check_same_type(name, part, like);
    TORCH_CHECK_VALUE(
        part.numel() == like.numel(), "mpi: ", name, ": a tensor of ", part.numel(), " elements beside one of ", like.numel());
  }
}

at::Tensor joined(const Tensors& parts) {
  Tensors flat;
  for (const auto& part : parts) {
    flat.push_back(part.detach().view(-1));
  }
  return at::cat(flat);
}

void split_into(const at::Tensor& buffer, const Tensors& parts) {
  int64_t offset = 0;
  for (const auto& part : parts) {
    part.detach().view(-1).copy_(buffer.narrow(0, offset, part.numel()));
    offset += part.numel();
  }
}

Layout layout_of_parts(const Tensors& parts) {
  Layout layout;
  int64_t offset = 0;
  for (const auto& part : parts) {
    TORCH_CHECK_VALUE(offset + part.numel() <= INT_MAX, "mpi: more than ", INT_MAX, " elements in all");
    layout.counts.push_back(static_cast<int>(part.numel()));
    layout.offsets.push_back(static_cast<int>(offset));
    offset += part.numel();
  }
  return layout;
}

void divide(const at::Tensor& sum, int size) {
  sum.detach().div_(size);
}

bool is_average(const c10d::ReduceOp& op) {
  return static_cast<c10d::ReduceOp::RedOpType>(op) == c10d::ReduceOp::AVG;
}

void check_pairs(const char* name, const Tensors& wholes, const Tensors& parts, int size) {
  TORCH_CHECK_VALUE(
      !parts.empty() && wholes.size() == parts.size(), "mpi: ", name, ": ", wholes.size(), " and ", parts.size(), " tensors");
  for (size_t i = 0; i < parts.size(); ++i) {
    check_tensor(name, wholes[i]);
    check_tensor(name, parts[i]);
    check_same_type(name, wholes[i], parts[i]);
    TORCH_CHECK_VALUE(
        wholes[i].numel() == parts[i].numel() * size, "mpi: ", name, ": ", wholes[i].numel(), " elements for ", size,
        " ranks of ", parts[i].numel());
  }
}

Layout layout_of(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, "mpi: alltoall: a tensor without dimensions cannot be split");
  c10d::checkSplitSizes(splits, tensor, size);
  Layout layout{std::vector<int>(size), std::vector<int>(size)};
  c10d::computeLengthsAndOffsets(splits, tensor, &layout.counts, &layout.offsets);
  return layout;
}

at::Tensor buffer_for(const at::Tensor& part, int size) {
  TORCH_CHECK_VALUE(part.numel() * size <= INT_MAX, "mpi: more than ", INT_MAX, " elements in all");
  return at::empty({part.numel() * size}, part.options());
}
} // namespace pstrain_mpi
