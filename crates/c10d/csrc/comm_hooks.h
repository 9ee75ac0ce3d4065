// Communication hooks: how a bucket of gradients becomes its average.
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

// The average of one bucket, which somebody owes to the Reducer.
struct PromiseBox;

extern "C" {

// A hook written elsewhere.
struct ForeignHook {
  void* state;
  // Takes a bucket and the promise of its average; must not block, must not throw. The function owns the promise, the
  // buffer and the `count` gradients, which are views of the buffer; the array itself stays here.
  void (*take)(
      void* state,
      size_t index,
      bool is_last,
      at::Tensor* buffer,
      at::Tensor** gradients,
      size_t count,
      PromiseBox* promise);
  // Called once, when the Reducer goes.
  void (*drop)(void* state);
};

// Calls `body` with the stream current on which the bucket was filled. `body` must not throw.
char* shim_promise_within(const PromiseBox* promise, void (*body)(void*), void* argument);
// Both take the promise. To be called within shim_promise_within.
char* shim_promise_keep(PromiseBox* promise, const at::Tensor* average);
char* shim_promise_break(PromiseBox* promise, const char* why);

// Fills tensors, one after the other, with numbers of the standard normal distribution: what torch.randn gives after
// torch.manual_seed(seed), without a change to the seed of the process.
char* shim_fill_normal(const at::Tensor* const* tensors, size_t count, uint64_t seed);
}

namespace hooks {

// Sums a bucket in a smaller dtype.
class Cast : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  Cast(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::ScalarType dtype)
      : CppCommHookInterface(group), dtype_(dtype) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  at::ScalarType dtype_;
};

// An all-reduce, but for a bucket of which the others have so few bytes that messages cost more than what is in them: then
// each rank gathers all and adds them up itself, in the order of the ranks.
class Gather : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  Gather(const c10::intrusive_ptr<c10d::ProcessGroup>& group, uint64_t up_to_bytes)
      : CppCommHookInterface(group), up_to_bytes_(up_to_bytes) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

 private:
  // Of the messages, one for each bucket; src/group/p2p.rs refuses them.
  static constexpr int kTags = 1 << 16;
  static constexpr int kFirstTag = std::numeric_limits<int>::max() - kTags;

  uint64_t up_to_bytes_;
};

class Foreign : public c10d::CppCommHookInterface<std::shared_ptr<const ForeignHook>> {
 public:
  explicit Foreign(ForeignHook hook);
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
};

} // namespace hooks
