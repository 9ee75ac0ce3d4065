// c10d's Backend over MPI, for CPU tensors. Written from the MPI standard and c10d's interface.
//
// A group has a communicator of its own (meeting.h). Each function checks its arguments on the caller's thread, copies
// lists of tensors into one buffer where MPI wants one (arguments.h), and leaves the rest to the driver.

#include <ATen/ATen.h>

#include "../object.h"
#include "arguments.h"
#include "driver.h"
#include "guard.h"
#include "meeting.h"
#include "types.h"

namespace pstrain_mpi {
namespace {

using Kind = Operation::Kind;
using Requests = Operation::Requests;
using Statuses = Operation::Statuses;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Adds a request to `requests` and hands it to the MPI call in `with`.
template <typename Call>
void request(Requests& requests, const char* name, Call&& with) {
  MPI_Request made = MPI_REQUEST_NULL;
  check(with(&made), name);
  requests.push_back(made);
}

class MpiBackend : public c10d::Backend {
 public:
  MpiBackend(c10d::Store& store, int rank, int size, milliseconds timeout)
      : Backend(rank, size), timeout_(timeout), channel_(std::make_shared<Channel>()) {
    TORCH_CHECK_VALUE(0 <= rank && rank < size, "mpi: rank ", rank, " in a group of ", size);
    Driver::get().open();
    const auto members = meet(store, rank, size, timeout);
    Driver::get().call([&] {
      channel_->comm = make_communicator(members);
      largest_tag_ = largest_tag();
    });
  }

  ~MpiBackend() override {
    Driver::get().close(channel_);
  }

  const std::string getBackendName() const override {
    return "mpi";
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("mpi", timeout_.load());
  }
  void setTimeout(milliseconds timeout) override {
    timeout_ = timeout;
  }
  void abort() override {
    Driver::get().abort(channel_);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const auto tensor = only("broadcast", tensors);
    const int root = member("broadcast", opts.rootRank);
    return submit({c10d::OpType::BROADCAST, "broadcast", tensor, opts.timeout}, {tensor}, {}, [=](MPI_Comm comm, Requests& out) {
      request(out, "MPI_Ibcast", [&](MPI_Request* made) {
        return MPI_Ibcast(tensor.data_ptr(), count(tensor), type_to_move(tensor), root, comm, made);
      });
    });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    only("allreduce", tensors);
    return allreduce_each(c10d::OpType::ALLREDUCE, tensors, opts);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return allreduce_each(c10d::OpType::ALLREDUCE_COALESCED, tensors, opts);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const auto tensor = only("reduce", tensors);
    const int root = member("reduce", opts.rootRank);
    const auto with = reduction(tensor, opts.reduceOp);
    const bool is_root = root == rank_;
    return submit(
        {c10d::OpType::REDUCE, "reduce", tensor, opts.timeout}, {tensor}, {},
        [=](MPI_Comm comm, Requests& out) {
          request(out, "MPI_Ireduce", [&](MPI_Request* made) {
            return MPI_Ireduce(
                is_root ? MPI_IN_PLACE : tensor.data_ptr(), is_root ? tensor.data_ptr() : nullptr, count(tensor),
                with.type, with.op, root, comm, made);
          });
        },
        [tensor, size = size_, divides = is_root && is_average(opts.reduceOp)](MpiWork&, Statuses&) {
          if (divides) {
            divide(tensor, size);
          }
        });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    const auto input = only("allgather", inputs);
    TORCH_CHECK_VALUE(outputs.size() == 1, "mpi: allgather: one list of outputs is wanted, not ", outputs.size());
    const auto parts = outputs[0];
    check_parts("allgather", parts, size_, input);
    const auto buffer = buffer_for(input, size_);
    return submit(
        {c10d::OpType::ALLGATHER, "allgather", input, opts.timeout}, parts, {input, buffer},
        [=](MPI_Comm comm, Requests& out) { start_allgather(comm, out, buffer, input); },
        [=](MpiWork&, Statuses&) { split_into(buffer, parts); });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_each(c10d::OpType::_ALLGATHER_BASE, "allgather", outputs, inputs, opts);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return allgather_into_each(c10d::OpType::COALESCED, "coalesced allgather", outputs, inputs, opts);
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    const auto input = only("gather", inputs);
    const int root = member("gather", opts.rootRank);
    const bool is_root = root == rank_;
    TORCH_CHECK_VALUE(outputs.size() == (is_root ? 1 : 0), "mpi: gather: the root, and nobody else, gives a list of outputs");
    const auto parts = is_root ? outputs[0] : Tensors{};
    at::Tensor buffer;
    if (is_root) {
      check_parts("gather", parts, size_, input);
      buffer = buffer_for(input, size_);
    }
    return submit(
        {c10d::OpType::GATHER, "gather", input, opts.timeout}, parts, {input, buffer},
        [=](MPI_Comm comm, Requests& out) {
          request(out, "MPI_Igather", [&](MPI_Request* made) {
            return MPI_Igather(
                input.data_ptr(), count(input), type_to_move(input), is_root ? buffer.data_ptr() : nullptr,
                count(input), type_to_move(input), root, comm, made);
          });
        },
        [=](MpiWork&, Statuses&) {
          if (is_root) {
            split_into(buffer, parts);
          }
        });
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    const auto output = only("scatter", outputs);
    const int root = member("scatter", opts.rootRank);
    const bool is_root = root == rank_;
    TORCH_CHECK_VALUE(inputs.size() == (is_root ? 1 : 0), "mpi: scatter: the root, and nobody else, gives a list of inputs");
    at::Tensor buffer;
    if (is_root) {
      check_parts("scatter", inputs[0], size_, output);
      buffer = joined(inputs[0]);
    }
    return submit(
        {c10d::OpType::SCATTER, "scatter", output, opts.timeout}, {output}, {buffer},
        [=](MPI_Comm comm, Requests& out) {
          request(out, "MPI_Iscatter", [&](MPI_Request* made) {
            return MPI_Iscatter(
                is_root ? buffer.data_ptr() : nullptr, count(output), type_to_move(output), output.data_ptr(),
                count(output), type_to_move(output), root, comm, made);
          });
        });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    const auto output = only("reduce_scatter", outputs);
    TORCH_CHECK_VALUE(inputs.size() == 1, "mpi: reduce_scatter: one list of inputs is wanted, not ", inputs.size());
    check_parts("reduce_scatter", inputs[0], size_, output);
    return reduce_scatter_each(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", {output}, {joined(inputs[0])}, opts);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    return reduce_scatter_each(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", {output}, {input}, opts);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    return reduce_scatter_each(c10d::OpType::COALESCED, "coalesced reduce_scatter", outputs, inputs, opts);
  }

  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts) override {
    check_tensor("alltoall", output);
    check_tensor("alltoall", input);
    check_same_type("alltoall", output, input);
    const auto to = layout_of(input, input_splits, size_), from = layout_of(output, output_splits, size_);
    return exchange({c10d::OpType::ALLTOALL_BASE, "alltoall", input, opts.timeout}, {output}, output, from, input, to);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    for (const auto* list : {&outputs, &inputs}) {
      TORCH_CHECK_VALUE(
          list->size() == static_cast<size_t>(size_), "mpi: alltoall: ", list->size(), " tensors for ", size_, " ranks");
      for (const auto& tensor : *list) {
        check_tensor("alltoall", tensor);
        check_same_type("alltoall", tensor, inputs[0]);
      }
    }
    const auto from = layout_of_parts(outputs), to = layout_of_parts(inputs);
    const auto buffer = at::empty({from.offsets.back() + from.counts.back()}, inputs[0].options());
    return exchange(
        {c10d::OpType::ALLTOALL, "alltoall", inputs[0], opts.timeout}, outputs, buffer, from, joined(inputs), to,
        [buffer, outputs](MpiWork&, Statuses&) { split_into(buffer, outputs); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return submit(
        {c10d::OpType::BARRIER, "barrier", {}, opts.timeout}, {}, {},
        [](MPI_Comm comm, Requests& out) {
          request(out, "MPI_Ibarrier", [&](MPI_Request* made) { return MPI_Ibarrier(comm, made); });
        },
        {}, Kind::kBarrier);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    const auto tensor = only("send", tensors);
    check_peer("send", to, tag);
    return submit(
        {c10d::OpType::SEND, c10::str("send to rank ", to, " with tag ", tag), tensor}, {}, {tensor},
        [=](MPI_Comm comm, Requests& out) {
          request(out, "MPI_Isend", [&](MPI_Request* made) {
            return MPI_Isend(tensor.data_ptr(), count(tensor), type_to_move(tensor), to, tag, comm, made);
          });
        },
        {}, Kind::kSend);
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    check_peer("recv", from, tag);
    return receive(c10d::OpType::RECV, c10::str("recv from rank ", from, " with tag ", tag), tensors, from, tag);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    check_peer("recv", rank_, tag);
    return receive(c10d::OpType::RECVANYSOURCE, c10::str("recv from any rank with tag ", tag), tensors, MPI_ANY_SOURCE, tag);
  }

 private:
  // What a message about an operation says.
  struct Description {
    c10d::OpType type;
    std::string name;
    at::Tensor like;
    milliseconds timeout = c10d::kUnsetTimeout;
  };

  WorkPtr submit(
      const Description& about,
      Tensors outputs,
      Tensors held,
      std::function<void(MPI_Comm, Requests&)> start,
      std::function<void(MpiWork&, Statuses&)> finish = {},
      Kind kind = Kind::kCollective) {
    auto operation = std::make_shared<Operation>();
    operation->kind = kind;
    auto what = std::string(about.name);
    if (about.like.defined()) {
      what += c10::str(" of ", about.like.numel(), " elements of ", about.like.scalar_type());
    }
    operation->what = c10::str(what, " on rank ", rank_, " of ", size_);
    operation->channel = channel_;
    operation->timeout = about.timeout > kNoTimeout ? about.timeout : timeout_.load();
    operation->work = c10::make_intrusive<MpiWork>(rank_, about.type, operation->what, outputs);
    operation->held = std::move(held);
    operation->held.insert(operation->held.end(), outputs.begin(), outputs.end());
    operation->start = std::move(start);
    operation->finish = std::move(finish);
    auto work = operation->work;
    Driver::get().submit(std::move(operation));
    return work;
  }

  WorkPtr allreduce_each(c10d::OpType type, const Tensors& tensors, const c10d::AllreduceOptions& opts) {
    TORCH_CHECK_VALUE(!tensors.empty(), "mpi: allreduce: no tensor");
    std::vector<Reduction> with;
    for (const auto& tensor : tensors) {
      check_tensor("allreduce", tensor);
      with.push_back(reduction(tensor, opts.reduceOp));
    }
    return submit(
        {type, "allreduce", tensors[0], opts.timeout}, tensors, {},
        [=](MPI_Comm comm, Requests& out) {
          for (size_t i = 0; i < tensors.size(); ++i) {
            request(out, "MPI_Iallreduce", [&](MPI_Request* made) {
              return MPI_Iallreduce(
                  MPI_IN_PLACE, tensors[i].data_ptr(), count(tensors[i]), with[i].type, with[i].op, comm, made);
            });
          }
        },
        [tensors, size = size_, divides = is_average(opts.reduceOp)](MpiWork&, Statuses&) {
          for (size_t i = 0; divides && i < tensors.size(); ++i) {
            divide(tensors[i], size);
          }
        });
  }

  WorkPtr allgather_into_each(
      c10d::OpType type,
      const char* name,
      const Tensors& outputs,
      const Tensors& inputs,
      const c10d::AllgatherOptions& opts) {
    check_pairs(name, outputs, inputs, size_);
    return submit({type, name, inputs[0], opts.timeout}, outputs, inputs, [=](MPI_Comm comm, Requests& out) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        start_allgather(comm, out, outputs[i], inputs[i]);
      }
    });
  }

  void start_allgather(MPI_Comm comm, Requests& out, const at::Tensor& output, const at::Tensor& input) const {
    const auto* own_place = static_cast<const char*>(output.data_ptr()) + rank_ * input.nbytes();
    const bool is_in_place = input.data_ptr() == own_place;
    request(out, "MPI_Iallgather", [&](MPI_Request* made) {
      return MPI_Iallgather(
          is_in_place ? MPI_IN_PLACE : input.data_ptr(), count(input), type_to_move(input), output.data_ptr(),
          count(input), type_to_move(input), comm, made);
    });
  }

  WorkPtr reduce_scatter_each(
      c10d::OpType type,
      const char* name,
      const Tensors& outputs,
      Tensors inputs,
      const c10d::ReduceScatterOptions& opts) {
    check_pairs(name, inputs, outputs, size_);
    std::vector<Reduction> with;
    for (size_t i = 0; i < inputs.size(); ++i) {
      with.push_back(reduction(inputs[i], opts.reduceOp));
      // MPI's input and output must not overlap.
      if (inputs[i].is_alias_of(outputs[i])) {
        inputs[i] = inputs[i].detach().clone();
      }
    }
    return submit(
        {type, name, outputs[0], opts.timeout}, outputs, inputs,
        [=](MPI_Comm comm, Requests& out) {
          for (size_t i = 0; i < outputs.size(); ++i) {
            request(out, "MPI_Ireduce_scatter_block", [&](MPI_Request* made) {
              return MPI_Ireduce_scatter_block(
                  inputs[i].data_ptr(), outputs[i].data_ptr(), count(outputs[i]), with[i].type, with[i].op, comm, made);
            });
          }
        },
        [outputs, size = size_, divides = is_average(opts.reduceOp)](MpiWork&, Statuses&) {
          for (size_t i = 0; divides && i < outputs.size(); ++i) {
            divide(outputs[i], size);
          }
        });
  }

  // MPI reads the layouts until the operation is complete: the closure has them.
  WorkPtr exchange(
      const Description& about,
      const Tensors& outputs,
      const at::Tensor& into,
      const Layout& from,
      const at::Tensor& input,
      const Layout& to,
      std::function<void(MpiWork&, Statuses&)> finish = {}) {
    auto layouts = std::make_shared<std::pair<Layout, Layout>>(from, to);
    return submit(
        about, outputs, {into, input},
        [=](MPI_Comm comm, Requests& out) {
          const auto& [from, to] = *layouts;
          request(out, "MPI_Ialltoallv", [&](MPI_Request* made) {
            return MPI_Ialltoallv(
                input.data_ptr(), to.counts.data(), to.offsets.data(), type_to_move(input), into.data_ptr(),
                from.counts.data(), from.offsets.data(), type_to_move(into), comm, made);
          });
        },
        std::move(finish));
  }

  WorkPtr receive(c10d::OpType type, const std::string& name, const Tensors& tensors, int from, int tag) {
    const auto tensor = only("recv", tensors);
    return submit(
        {type, name, tensor}, {tensor}, {},
        [=](MPI_Comm comm, Requests& out) {
          request(out, "MPI_Irecv", [&](MPI_Request* made) {
            return MPI_Irecv(tensor.data_ptr(), count(tensor), type_to_move(tensor), from, tag, comm, made);
          });
        },
        [=](MpiWork& work, Statuses& statuses) {
          int sent = 0;
          check(MPI_Get_count(&statuses[0], type_to_move(tensor), &sent), "MPI_Get_count");
          TORCH_CHECK_VALUE(
              sent == count(tensor), "mpi: ", name, ": rank ", statuses[0].MPI_SOURCE, " sent ", sent,
              " elements, the tensor has ", count(tensor));
          work.set_source(statuses[0].MPI_SOURCE);
        },
        Kind::kReceive);
  }

  int member(const char* name, int64_t rank) const {
    TORCH_CHECK_VALUE(0 <= rank && rank < size_, "mpi: ", name, ": rank ", rank, " in a group of ", size_);
    return static_cast<int>(rank);
  }

  void check_peer(const char* name, int rank, int tag) const {
    member(name, rank);
    TORCH_CHECK_VALUE(0 <= tag && tag <= largest_tag_, "mpi: ", name, ": tag ", tag, ", MPI takes 0 to ", largest_tag_);
  }

  std::atomic<milliseconds> timeout_;
  std::shared_ptr<Channel> channel_;
  int largest_tag_ = 0;
};

} // namespace
} // namespace pstrain_mpi

const char c10d_backend_built_for[] = PSTRAIN_BUILT_FOR;

char* c10d_backend_new(c10d::Store* store, int rank, int size, int64_t timeout_ms, c10d::Backend** out) {
  return guarded([&] {
    auto backend = c10::make_intrusive<pstrain_mpi::MpiBackend>(*store, rank, size, std::chrono::milliseconds(timeout_ms));
    *out = backend.release();
  });
}

bool c10d_backend_finalize(int64_t timeout_ms) {
  return pstrain_mpi::Driver::get().finalize(std::chrono::milliseconds(timeout_ms));
}
