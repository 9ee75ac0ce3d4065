#include "comm_hooks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>
#include <utility>
#include <vector>

#include "guard.h"

using c10::ivalue::Future;

struct PromiseBox {
  c10::intrusive_ptr<Future> future;
  std::optional<c10::Stream> stream;

  void keep(const at::Tensor& average) {
    future->markCompleted(average);
  }
  void fail(const std::string& why) {
    future->setErrorIfNeeded(std::make_exception_ptr(std::runtime_error(why)));
  }
};

namespace hooks {

c10::intrusive_ptr<Future> Cast::runHook(c10d::GradBucket& bucket) {
  at::Tensor buffer = bucket.getBuffer();
  at::Tensor small = buffer.to(dtype_);
  // Divided before the sum, which might overflow otherwise.
  small.div_(state_->getSize());
  std::vector<at::Tensor> tensors{small};
  auto sum = state_->allreduce(tensors)->getFuture();
  return sum->then(
      [buffer](Future& done) {
        const c10::IValue& value = done.value();
        buffer.copy_(c10d::detail::parseCppCommHookResult(value));
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

c10::intrusive_ptr<Future> Gather::runHook(c10d::GradBucket& bucket) {
  at::Tensor buffer = bucket.getBuffer();
  const auto ranks = static_cast<size_t>(state_->getSize());
  // As the Reducer does it without a hook.
  buffer.div_(static_cast<int64_t>(ranks));
  std::vector<at::Tensor> own{buffer};
  if (buffer.nbytes() * (ranks - 1) > up_to_bytes_) {
    return state_->allreduce(own)->getFuture();
  }
  // Messages from rank to rank: Gloo moves them without a thread between the one that sends and the one that waits.
  const auto me = static_cast<size_t>(state_->getRank());
  const int tag = kFirstTag + static_cast<int>(bucket.getIndex() % kTags);
  const at::Tensor all = at::empty({static_cast<int64_t>(ranks), buffer.numel()}, buffer.options());
  std::vector<c10::intrusive_ptr<c10d::Work>> messages;
  for (size_t from = 0; from < ranks; ++from) {
    if (from != me) {
      std::vector<at::Tensor> to{all[from]};
      messages.push_back(state_->recv(to, static_cast<int>(from), tag));
    }
  }
  for (size_t to = 0; to < ranks; ++to) {
    if (to != me) {
      messages.push_back(state_->send(own, static_cast<int>(to), tag));
    }
  }
  all[me].copy_(buffer);
  auto gathered = c10::make_intrusive<Future>(c10::TensorType::get());
  const auto finish = [messages, buffer, all, gathered] {
    try {
      for (const auto& message : messages) {
        message->wait();
      }
      at::Tensor sum = buffer;
      at::sum_out(sum, all, /*dim=*/0);
      gathered->markCompleted(buffer);
    } catch (const std::exception&) {
      gathered->setError(std::current_exception());
    }
  };
  // At the end of the backward, before the Reducer waits there for its buckets. A bucket that no backward reaches is
  // ready before it begins.
  if (torch::autograd::get_current_graph_task_id() == -1) {
    finish();
  } else {
    torch::autograd::Engine::get_default_engine().queue_callback(finish);
  }
  return gathered;
}

Foreign::Foreign(ForeignHook hook)
    : CppCommHookInterface(std::shared_ptr<const ForeignHook>(new ForeignHook(hook), [](const ForeignHook* hook) {
        hook->drop(hook->state);
        delete hook;
      })) {}

c10::intrusive_ptr<Future> Foreign::runHook(c10d::GradBucket& bucket) {
  const at::Device device = bucket.getBuffer().device();
  std::vector<at::Device> devices;
  std::optional<c10::Stream> stream;
  if (!device.is_cpu()) {
    devices.push_back(device);
    stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }
  auto future = c10::make_intrusive<Future>(c10::TensorType::get(), devices);
  const auto gradients = bucket.getGradients();
  std::vector<at::Tensor*> owned;
  owned.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) {
    owned.push_back(new at::Tensor(gradient));
  }
  state_->take(
      state_->state,
      bucket.getIndex(),
      bucket.isLast(),
      new at::Tensor(bucket.getBuffer()),
      owned.data(),
      owned.size(),
      new PromiseBox{future, stream});
  return future;
}

} // namespace hooks

extern "C" {

char* shim_promise_within(const PromiseBox* promise, void (*body)(void*), void* argument) {
  return guarded([&] {
    c10::OptionalStreamGuard guard(promise->stream);
    body(argument);
  });
}

char* shim_promise_keep(PromiseBox* promise, const at::Tensor* average) {
  std::unique_ptr<PromiseBox> owned(promise);
  return guarded([&] {
    try {
      owned->keep(*average);
    } catch (const std::exception& error) {
      owned->fail(error.what());
    }
  });
}

char* shim_promise_break(PromiseBox* promise, const char* why) {
  std::unique_ptr<PromiseBox> owned(promise);
  return guarded([&] { owned->fail(why); });
}

char* shim_fill_normal(const at::Tensor* const* tensors, size_t count, uint64_t seed) {
  return guarded([&] {
    at::Generator numbers = at::make_generator<at::CPUGeneratorImpl>(seed);
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& tensor = *tensors[i];
      tensor.copy_(at::randn(tensor.sizes(), numbers, at::TensorOptions().dtype(tensor.scalar_type())));
    }
  });
}
}
