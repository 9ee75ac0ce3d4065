#include "work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/ivalue_inl.h>

#include "guard.h"

extern "C" {

char* shim_work_wait(const WorkBox* work, int64_t timeout_ms) {
  return guarded([&] {
    TORCH_CHECK(work->work->wait(std::chrono::milliseconds(timeout_ms)), "the operation was aborted");
  });
}

char* shim_work_is_completed(const WorkBox* work, bool* completed) {
  return guarded([&] { *completed = work->work->isCompleted(); });
}

char* shim_work_source(const WorkBox* work, int* rank) {
  return guarded([&] { *rank = work->work->sourceRank(); });
}

char* shim_work_on_done(
    const WorkBox* work,
    void* state,
    void (*call)(void* state, const char* message),
    void (*drop)(void* state)) {
  return guarded([&] {
    auto future = work->work->getFuture();
    TORCH_CHECK(future, "this backend has no futures");
    // From here on the callback owns the state; std::function is copied, so the pointer is shared.
    std::shared_ptr<void> owned(state, drop);
    future->addCallback([owned, call](c10::ivalue::Future& done) {
      if (done.hasError()) {
        call(owned.get(), done.tryRetrieveErrorMessage().c_str());
      } else {
        call(owned.get(), nullptr);
      }
    });
  });
}

void shim_work_drop(WorkBox* work) {
  delete work;
}
}
