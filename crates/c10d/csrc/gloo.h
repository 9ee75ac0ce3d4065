// c10d's Gloo backend, for several groups in one process, and with an end.
#pragma once

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "breakable.h"

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

  // The tag of `close_connections`; src/group/p2p.rs refuses it.
  static constexpr int kReservedTag = std::numeric_limits<int>::max();
  // For what is in flight to end by itself once its connections are closed.
  static constexpr std::chrono::milliseconds kGrace{200};

  // Closes the connections, so that those who wait for this rank learn at once that it has given up. What is in flight
  // here fails; so does all that is started later.
  void abort() override {
    std::lock_guard<std::mutex> lock(aborting_);
    {
      // From here on nothing is started that `end` does not see.
      std::lock_guard<std::recursive_mutex> none_starts(starting());
      given_up_ = true;
    }
    close_connections();
    in_flight_.end(kGrace);
  }

  Started broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return begin([&] { return Base::broadcast(tensors, options); });
  }
  Started allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return begin([&] { return Base::allreduce(tensors, options); });
  }
  Started allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return begin([&] { return Base::allreduce_sparse(tensors, options); });
  }
  Started allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return begin([&] { return Base::allreduce_coalesced(tensors, options); });
  }
  Started reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return begin([&] { return Base::reduce(tensors, options); });
  }
  Started _reduce_scatter_base(at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& options) override {
    return begin([&] { return Base::_reduce_scatter_base(to, from, options); });
  }
  Started _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& options) override {
    return begin([&] { return Base::_allgather_base(to, from, options); });
  }
  Started allgather(Lists& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return begin([&] { return Base::allgather(to, from, options); });
  }
  Started allgather_coalesced(Lists& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return begin([&] { return Base::allgather_coalesced(to, from, options); });
  }
  Started allgather_into_tensor_coalesced(Tensors& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return begin([&] { return Base::allgather_into_tensor_coalesced(to, from, options); });
  }
  Started gather(Lists& to, Tensors& from, const c10d::GatherOptions& options) override {
    return begin([&] { return Base::gather(to, from, options); });
  }
  Started scatter(Tensors& to, Lists& from, const c10d::ScatterOptions& options) override {
    return begin([&] { return Base::scatter(to, from, options); });
  }
  Started reduce_scatter(Tensors& to, Lists& from, const c10d::ReduceScatterOptions& options) override {
    return begin([&] { return Base::reduce_scatter(to, from, options); });
  }
  Started reduce_scatter_tensor_coalesced(Tensors& to, Tensors& from, const c10d::ReduceScatterOptions& options) override {
    return begin([&] { return Base::reduce_scatter_tensor_coalesced(to, from, options); });
  }
  Started alltoall_base(
      at::Tensor& to,
      at::Tensor& from,
      std::vector<int64_t>& to_rows,
      std::vector<int64_t>& from_rows,
      const c10d::AllToAllOptions& options) override {
    return begin([&] { return Base::alltoall_base(to, from, to_rows, from_rows, options); });
  }
  Started send(Tensors& tensors, int to, int tag) override {
    return begin([&] { return Base::send(tensors, to, tag); });
  }
  Started recv(Tensors& tensors, int from, int tag) override {
    return begin([&] { return Base::recv(tensors, from, tag); });
  }
  Started recvAnysource(Tensors& tensors, int tag) override {
    return begin([&] { return Base::recvAnysource(tensors, tag); });
  }
  Started barrier(const c10d::BarrierOptions& options) override {
    return begin([&] { return Base::barrier(options); });
  }

 private:
  template <typename Start>
  Started begin(Start&& start) {
    std::lock_guard<std::recursive_mutex> lock(starting());
    TORCH_CHECK(!given_up_, breakable::kGivenUp);
    return kept(start());
  }

  Started kept(Started work) {
    using c10d::OpType;
    const auto type = work->retrieveOpType();
    if (dynamic_cast<AsyncWork*>(work.get()) != nullptr) {
      work = breakable::Collective::follow(rank_, std::move(work));
    } else if (type == OpType::SEND || type == OpType::RECV || type == OpType::RECVANYSOURCE) {
      work = c10::make_intrusive<breakable::Message>(rank_, std::move(work));
    } else {
      // Made of others, which are kept.
      return work;
    }
    in_flight_.keep(c10::static_intrusive_pointer_cast<breakable::Breakable>(work));
    return work;
  }

  // Gloo has no call for that, but does it when a receive runs out of time: then it closes all of a group's connections.
  void close_connections() {
    for (int from = 0; from < size_; ++from) {
      if (from == rank_) {
        continue;
      }
      try {
        Tensors nothing{at::zeros({1}, at::kByte)};
        std::unique_lock<std::recursive_mutex> lock(starting());
        const auto receive = Base::recv(nothing, from, kReservedTag);
        lock.unlock();
        receive->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        // It ran out of time, or this connection is closed already.
      }
    }
  }

  static std::recursive_mutex& starting() {
    // Never destroyed: threads may start operations while the process ends.
    static auto* mutex = new std::recursive_mutex;
    return *mutex;
  }

  breakable::InFlight in_flight_;
  bool given_up_ = false; // under starting()
  std::mutex aborting_;
};
