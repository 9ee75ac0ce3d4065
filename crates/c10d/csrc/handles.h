// What Rust holds of libtorch's c10d: one box for each kind, made and freed here, and the way into them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstddef>
#include <vector>

struct StoreBox {
  c10::intrusive_ptr<c10d::Store> store;
};

// What a group sends with; see group.h.
struct BackendBox {
  c10::intrusive_ptr<c10d::Backend> backend;
};

struct GroupBox {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

struct WorkBox {
  c10::intrusive_ptr<c10d::Work> work;
  // The operation's tensors, so that their memory outlives it whatever the backend holds.
  std::vector<at::Tensor> held;
};

inline std::vector<at::Tensor> tensors_of(const at::Tensor* const* tensors, size_t count) {
  std::vector<at::Tensor> list;
  list.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    list.push_back(*tensors[i]);
  }
  return list;
}
