#include "driver.h"

#include <ATen/ATen.h>
#include <c10/util/thread_name.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "types.h"

namespace pstrain_mpi {
namespace {

// How long the driver polls without a pause after something happened: large messages move only while we poll. Then it
// pauses for a hundredth of the time that nothing happened, within limits, and leaves the cores to whoever computes
// while we wait for a late peer.
constexpr auto kSpin = std::chrono::microseconds(300);
constexpr std::chrono::nanoseconds kShortestPause = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kLongestPause = std::chrono::microseconds(200);
// For ending MPI when the process ends by itself.
constexpr auto kEnd = std::chrono::seconds(10);

// What src/group/peers.rs looks for.
constexpr auto kGivenUp = "mpi: this rank has given the group up";
constexpr auto kFinalized = "mpi: MPI has been finalised in this process, and cannot be started twice";

std::exception_ptr error_of(const std::string& message) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, message));
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    return known.what_without_backtrace();
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

bool is_collective(const Operation& operation) {
  return operation.kind == Operation::Kind::kCollective || operation.kind == Operation::Kind::kBarrier;
}

} // namespace

MpiWork::MpiWork(int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs)
    : Work(rank, type),
      what_(std::move(what)),
      outputs_(std::move(outputs)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

bool MpiWork::wait(milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_done = [&] { return completed_; };
  if (timeout <= kNoTimeout) {
    cv_.wait(lock, is_done);
  } else if (!cv_.wait_for(lock, timeout, is_done)) {
    C10_THROW_ERROR(DistBackendError, c10::str("mpi: timed out after ", timeout.count(), " ms: ", what_));
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

std::vector<at::Tensor> MpiWork::result() {
  return outputs_;
}

int MpiWork::sourceRank() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return source_;
}

c10::intrusive_ptr<c10::ivalue::Future> MpiWork::getFuture() {
  return future_;
}

void MpiWork::set_source(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  source_ = rank;
}

// First the work, then the future: whoever is called back by the future may ask the work.
void MpiWork::succeed() {
  finish();
  future_->markCompleted(c10::IValue(outputs_));
}

void MpiWork::fail(std::exception_ptr why) {
  finish(why);
  future_->setError(why);
}

Driver& Driver::get() {
  static auto* driver = new Driver;
  return *driver;
}

void Driver::open() {
  std::lock_guard<std::mutex> opening(opening_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!ended_, kFinalized);
    if (opened_) {
      return;
    }
  }
  std::promise<void> started, ended;
  auto start = started.get_future();
  std::shared_future<void> end = ended.get_future().share();
  std::thread([this, started = std::move(started), ended = std::move(ended)]() mutable {
    c10::setThreadName("pstrain_mpi");
    try {
      initialize();
      started.set_value();
    } catch (...) {
      started.set_exception(std::current_exception());
      return;
    }
    run();
    ended.set_value();
  }).detach();
  start.get();
  std::lock_guard<std::mutex> lock(mutex_);
  opened_ = true;
  end_ = end;
  // For a process that ends without `finalize`. Not after a failure: then mpirun should see it, and end the others.
  on_exit([](int status, void*) { status == 0 && get().finalize(kEnd); }, nullptr);
}

void Driver::initialize() {
  int is_initialized = 0, is_finalized = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  TORCH_CHECK(!is_finalized, kFinalized);
  if (is_initialized) {
    // Its other user calls MPI from threads of its own.
    MPI_Query_thread(&level);
    TORCH_CHECK(
        level == MPI_THREAD_MULTIPLE,
        "mpi: MPI was initialised by someone else in this process, without MPI_THREAD_MULTIPLE");
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
    is_ours_ = true;
  }
  // An error is for the one who called; by default MPI would abort all ranks.
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  make_types();
}

bool Driver::post(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) {
      return false;
    }
    tasks_.push_back(std::move(task));
  }
  posted_.notify_one();
  return true;
}

void Driver::call(std::function<void()> task) {
  auto done = std::make_shared<std::promise<void>>();
  const bool is_posted = post([task = std::move(task), done] {
    try {
      task();
      done->set_value();
    } catch (...) {
      done->set_exception(std::current_exception());
    }
  });
  TORCH_CHECK(is_posted, kFinalized);
  done->get_future().get();
}

void Driver::submit(std::shared_ptr<Operation> operation) {
  operation->deadline = Clock::now() + operation->timeout;
  const bool is_posted = post([this, operation = std::move(operation)] { start_or_queue(operation); });
  TORCH_CHECK(is_posted, kFinalized);
}

void Driver::abort(std::shared_ptr<Channel> channel) {
  post([this, channel = std::move(channel)] {
    channel->given_up = true;
    for (auto& operation : running_) {
      if (operation->channel == channel) {
        give_up(*operation, error_of(kGivenUp));
      }
    }
    start_waiting(*channel);
  });
}

void Driver::close(std::shared_ptr<Channel> channel) {
  post([channel = std::move(channel)] {
    channel->closed = true;
    if (channel->running == 0 && channel->waiting.empty()) {
      MPI_Comm_free(&channel->comm);
    }
  });
}

bool Driver::finalize(milliseconds timeout) {
  std::shared_future<void> end;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!opened_) {
      return true;
    }
    end = end_;
    if (!ended_) {
      tasks_.emplace_back([this] {
        is_ending_ = true;
        // Nobody is left who would take what these receive.
        for (auto& operation : running_) {
          expire(*operation);
        }
      });
      posted_.notify_one();
    }
  }
  return end.wait_for(timeout) == std::future_status::ready;
}

void Driver::run() {
  at::NoGradGuard no_grad;
  std::deque<std::function<void()>> tasks;
  for (;;) {
    if (take_tasks(tasks)) {
      last_progress_ = Clock::now();
    }
    for (auto& task : tasks) {
      task();
    }
    tasks.clear();
    if (is_ending_ && running_.empty()) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (tasks_.empty()) {
        ended_ = true;
        break;
      }
    }
    if (poll()) {
      last_progress_ = Clock::now();
    }
  }
  free_types();
  if (is_ours_) {
    MPI_Finalize();
  }
}

// Waits while there is nothing to poll; between two polls only as said above.
bool Driver::take_tasks(std::deque<std::function<void()>>& tasks) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_tasks = [&] { return !tasks_.empty(); };
  if (running_.empty()) {
    // At the end nobody posts any more.
    posted_.wait(lock, [&] { return has_tasks() || is_ending_; });
  } else if (!has_tasks()) {
    const std::chrono::nanoseconds idle = Clock::now() - last_progress_;
    if (idle < kSpin) {
      lock.unlock();
      sched_yield();
      return false;
    }
    posted_.wait_for(lock, std::clamp(idle / 100, kShortestPause, kLongestPause), has_tasks);
  }
  tasks.swap(tasks_);
  return !tasks.empty();
}

// A barrier is passed only when what was submitted before it is complete, and MPI's own promises less: it waits here,
// and by M-3 what comes after it does too.
void Driver::start_or_queue(const std::shared_ptr<Operation>& operation) {
  Channel& channel = *operation->channel;
  if (!is_collective(*operation)) {
    start(operation);
    return;
  }
  channel.waiting.push_back(operation);
  start_waiting(channel);
}

void Driver::start_waiting(Channel& channel) {
  while (!channel.waiting.empty()) {
    const auto next = channel.waiting.front();
    const bool is_over = channel.broken || channel.given_up;
    if (next->kind == Operation::Kind::kBarrier && channel.collectives > 0 && !is_over) {
      return;
    }
    channel.waiting.pop_front();
    start(next);
  }
}

void Driver::start(const std::shared_ptr<Operation>& operation) {
  Channel& channel = *operation->channel;
  if (channel.given_up) {
    report(*operation, error_of(kGivenUp));
    return;
  }
  if (is_collective(*operation) && channel.broken) {
    report(*operation, error_of(c10::str("mpi: ", operation->what, ": not started, because of ", *channel.broken)));
    return;
  }
  try {
    operation->start(channel.comm, operation->requests);
  } catch (...) {
    report(*operation, std::current_exception());
  }
  operation->statuses.resize(operation->requests.size());
  ++channel.running;
  channel.collectives += is_collective(*operation);
  running_.push_back(operation);
}

// Something ended?
bool Driver::poll() {
  std::vector<std::shared_ptr<Operation>> over, late;
  const auto now = Clock::now();
  for (auto it = running_.begin(); it != running_.end();) {
    if (is_over(**it)) {
      over.push_back(*it);
      it = running_.erase(it);
      continue;
    }
    if (!(*it)->reported && now >= (*it)->deadline) {
      late.push_back(*it);
    }
    ++it;
  }
  for (const auto& operation : over) {
    retire(operation);
  }
  for (const auto& operation : late) {
    expire(*operation);
    start_waiting(*operation->channel);
  }
  return !over.empty();
}

bool Driver::is_over(Operation& operation) {
  bool is_over = true;
  for (size_t i = 0; i < operation.requests.size(); ++i) {
    if (operation.requests[i] == MPI_REQUEST_NULL) {
      continue;
    }
    int is_complete = 0;
    const int code = MPI_Test(&operation.requests[i], &is_complete, &operation.statuses[i]);
    if (code != MPI_SUCCESS) {
      report(operation, error_of(c10::str("mpi: ", operation.what, ": ", text_of(code))));
      // Complete, with an error; not every MPI says so here.
      operation.requests[i] = MPI_REQUEST_NULL;
    }
    is_over = is_over && operation.requests[i] == MPI_REQUEST_NULL;
  }
  return is_over;
}

void Driver::expire(Operation& operation) {
  give_up(operation, error_of(c10::str("mpi: timed out after ", operation.timeout.count(), " ms: ", operation.what)));
}

// The waiter gets its error now; MPI may need the buffers until it is done (M-2). Only a receive can be taken back.
void Driver::give_up(Operation& operation, std::exception_ptr why) {
  report(operation, std::move(why));
  if (operation.kind == Operation::Kind::kReceive) {
    for (auto& request : operation.requests) {
      if (request != MPI_REQUEST_NULL) {
        MPI_Cancel(&request);
      }
    }
  }
}

// Fails the work. The other ranks may have finished a collective that failed here, or be stuck in it: the next one
// would meet it.
void Driver::report(Operation& operation, std::exception_ptr why) {
  if (is_collective(operation) && !operation.channel->broken) {
    operation.channel->broken = "an earlier failure: " + message_of(why);
  }
  if (!operation.reported) {
    operation.reported = true;
    operation.work->fail(std::move(why));
  }
}

void Driver::retire(const std::shared_ptr<Operation>& operation) {
  Channel& channel = *operation->channel;
  --channel.running;
  channel.collectives -= is_collective(*operation);
  if (!operation->reported) {
    try {
      if (operation->finish) {
        operation->finish(*operation->work, operation->statuses);
      }
    } catch (...) {
      report(*operation, std::current_exception());
    }
  }
  if (!operation->reported) {
    operation->reported = true;
    operation->work->succeed();
  }
  start_waiting(channel);
  if (channel.closed && channel.running == 0 && channel.waiting.empty() && channel.comm != MPI_COMM_NULL) {
    MPI_Comm_free(&channel.comm);
  }
}
} // namespace pstrain_mpi
