// Operations of Gloo that can be broken off.
//
// An operation of Gloo ends by itself when its connections close, but for one case: where a write fails on the loop's
// thread just after the operation was taken off the list of those that wait, Gloo tells nobody, and the operation stands
// until its timeout. So what c10d hands out is not Gloo's work but one of these, which follows it and can end before it.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace breakable {

using std::chrono::milliseconds;

// What src/group/peers.rs looks for.
constexpr auto kGivenUp = "this rank has given the group up";

inline std::exception_ptr given_up() {
  return std::make_exception_ptr(std::runtime_error(kGivenUp));
}

// An operation that is in flight, as who breaks it off sees it.
class Breakable : public c10d::Work {
 public:
  using Work::Work;
  // Whether it may yet end by itself, so that it is worth a moment.
  virtual bool is_ending() = 0;
  virtual void break_off() = 0;
};

// A collective. It ends once: with the end of the inner work, or by being broken off. Then the inner work may go on, and
// holds its tensors until it ends.
class Collective final : public Breakable {
 public:
  static c10::intrusive_ptr<Work> follow(int rank, c10::intrusive_ptr<Work> inner) {
    auto future = inner->getFuture();
    auto outer = c10::make_intrusive<Collective>(rank, std::move(inner), *future);
    // Held by the callback: a work that nobody waits for may still have somebody who waits for its future.
    future->addCallback([outer](c10::ivalue::Future& done) {
      if (done.hasError()) {
        outer->fail(done.exception_ptr());
      } else {
        outer->succeed(done.constValue());
      }
    });
    return outer;
  }

  Collective(int rank, c10::intrusive_ptr<Work> inner, const c10::ivalue::Future& future)
      : Breakable(rank, inner->retrieveOpType()),
        inner_(std::move(inner)),
        future_(c10::make_intrusive<c10::ivalue::Future>(future.elementType(), future.devices())) {}

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  // Not the inner work's: it is complete a moment after its future, and this work with the future.
  std::vector<at::Tensor> result() override {
    TORCH_CHECK(isCompleted(), "the operation has not ended");
    const auto value = future_->value();
    TORCH_CHECK(value.isTensorList(), "the operation's result is not a list of tensors");
    return value.toTensorVector();
  }
  void synchronize() override {
    inner_->synchronize();
  }
  uint64_t getSequencenumber() const override {
    return inner_->getSequencenumber();
  }

  bool is_ending() override {
    return !ended_;
  }
  void break_off() override {
    fail(given_up());
  }

 private:
  // First the work, then the future: whoever is called back by the future may ask the work.
  void succeed(const c10::IValue& value) {
    if (!ended_.exchange(true)) {
      finish();
      future_->markCompleted(value);
    }
  }
  void fail(std::exception_ptr why) {
    if (!ended_.exchange(true)) {
      finish(why);
      future_->setError(std::move(why));
    }
  }

  const c10::intrusive_ptr<Work> inner_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> ended_{false};
};

// A send or receive, which ends in its `wait` only. Broken off, it still ends well if its bytes have passed.
class Message final : public Breakable {
 public:
  // For a wait that begins after the end of the group.
  static constexpr milliseconds kLastLook{10};

  Message(int rank, c10::intrusive_ptr<Work> inner)
      : Breakable(rank, inner->retrieveOpType()), inner_(std::move(inner)) {}

  bool wait(milliseconds timeout) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (given_up_) {
        timeout = kLastLook;
      }
      ++waiting_;
    }
    const Leave leave{*this};
    // False where it was interrupted.
    TORCH_CHECK(inner_->wait(timeout), kGivenUp);
    return true;
  }
  bool isCompleted() override {
    return inner_->isCompleted();
  }
  int sourceRank() const override {
    return inner_->sourceRank();
  }
  uint64_t getSequencenumber() const override {
    return inner_->getSequencenumber();
  }
  void abort() override {
    inner_->abort();
  }

  bool is_ending() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_ > 0;
  }
  void break_off() override {
    std::lock_guard<std::mutex> lock(mutex_);
    given_up_ = true;
    // Gloo would keep an interruption for the next wait, which could have the bytes.
    if (waiting_ > 0) {
      inner_->abort();
    }
  }

 private:
  struct Leave {
    Message& message;
    ~Leave() {
      std::lock_guard<std::mutex> lock(message.mutex_);
      --message.waiting_;
    }
  };

  const c10::intrusive_ptr<Work> inner_;
  int waiting_ = 0;       // under mutex_
  bool given_up_ = false; // under mutex_
};

// What is in flight, without holding it.
class InFlight {
 public:
  void keep(const c10::intrusive_ptr<Breakable>& work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (list_.size() >= limit_) {
      list_.erase(std::remove_if(list_.begin(), list_.end(), is_over), list_.end());
      limit_ = std::max(kLeast, 2 * list_.size());
    }
    list_.emplace_back(work);
  }

  // Gives what is in flight a moment to end by itself, with an error that says more, and breaks off the rest.
  void end(milliseconds grace) {
    const auto works = living();
    const auto is_ending = [](const auto& work) { return work->is_ending(); };
    const auto deadline = std::chrono::steady_clock::now() + grace;
    while (std::any_of(works.begin(), works.end(), is_ending) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    for (const auto& work : works) {
      work->break_off();
    }
  }

 private:
  using Weak = c10::weak_intrusive_ptr<Breakable>;
  static constexpr size_t kLeast = 64;

  static bool is_over(const Weak& weak) {
    const auto work = weak.lock();
    return !work || work->isCompleted();
  }

  std::vector<c10::intrusive_ptr<Breakable>> living() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<c10::intrusive_ptr<Breakable>> works;
    for (const auto& weak : list_) {
      if (auto work = weak.lock()) {
        works.push_back(std::move(work));
      }
    }
    return works;
  }

  std::mutex mutex_;
  std::vector<Weak> list_; // under mutex_
  size_t limit_ = kLeast;  // under mutex_
};

} // namespace breakable
