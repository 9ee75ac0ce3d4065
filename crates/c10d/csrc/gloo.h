// c10d's Gloo backend, for several groups in one process.
#pragma once

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <mutex>
#include <vector>

// ProcessGroupGloo may start one operation at a time in the whole process: it counts them without a lock, and notes
// each group's first one in a map of the process-wide FlightRecorder, again without a lock. Two ranks that are threads,
// or two groups used by two threads, crash there. So every start takes one lock, whoever calls it: Rust or the Reducer.
// No start waits for another rank. Some are made of others, so the lock is recursive.
class Gloo final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  using Started = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Base = c10d::ProcessGroupGloo;

  Started broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::broadcast(tensors, options);
  }
  Started allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::allreduce(tensors, options);
  }
  Started allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::allreduce_sparse(tensors, options);
  }
  Started allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::allreduce_coalesced(tensors, options);
  }
  Started reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::reduce(tensors, options);
  }
  Started _reduce_scatter_base(at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::_reduce_scatter_base(to, from, options);
  }
  Started _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::_allgather_base(to, from, options);
  }
  Started allgather(Lists& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::allgather(to, from, options);
  }
  Started allgather_coalesced(Lists& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::allgather_coalesced(to, from, options);
  }
  Started allgather_into_tensor_coalesced(Tensors& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::allgather_into_tensor_coalesced(to, from, options);
  }
  Started gather(Lists& to, Tensors& from, const c10d::GatherOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::gather(to, from, options);
  }
  Started scatter(Tensors& to, Lists& from, const c10d::ScatterOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::scatter(to, from, options);
  }
  Started reduce_scatter(Tensors& to, Lists& from, const c10d::ReduceScatterOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::reduce_scatter(to, from, options);
  }
  Started reduce_scatter_tensor_coalesced(Tensors& to, Tensors& from, const c10d::ReduceScatterOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::reduce_scatter_tensor_coalesced(to, from, options);
  }
  Started alltoall_base(
      at::Tensor& to,
      at::Tensor& from,
      std::vector<int64_t>& to_rows,
      std::vector<int64_t>& from_rows,
      const c10d::AllToAllOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::alltoall_base(to, from, to_rows, from_rows, options);
  }
  Started send(Tensors& tensors, int to, int tag) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::send(tensors, to, tag);
  }
  Started recv(Tensors& tensors, int from, int tag) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::recv(tensors, from, tag);
  }
  Started recvAnysource(Tensors& tensors, int tag) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::recvAnysource(tensors, tag);
  }
  Started barrier(const c10d::BarrierOptions& options) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return Base::barrier(options);
  }

 private:
  static std::recursive_mutex& starting() {
    // Never destroyed: threads may start operations while the process ends.
    static auto* mutex = new std::recursive_mutex;
    return *mutex;
  }
};
