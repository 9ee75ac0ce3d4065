// The thread that speaks to MPI.
//
// M-1  Only the driver's thread calls MPI, from MPI_Init_thread to MPI_Finalize: MPI_THREAD_FUNNELED is enough, which
//      every MPI has, and no call of ours can block another.
// M-2  What an operation reads and writes lives until MPI is done with it, also when its waiter gave up (a timeout).
// M-3  The collectives of a channel are started in the order in which they were submitted: MPI pairs them by it.
// M-4  Nothing here blocks but making a communicator and MPI_Finalize: an operation is started and then polled.
#pragma once

#include <mpi.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pstrain_mpi {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What who submitted an operation holds of it.
class MpiWork : public c10d::Work {
 public:
  MpiWork(int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs);

  // `timeout` limits this wait only; the operation has its own. None: until the operation ends.
  bool wait(milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  int sourceRank() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // By the driver, one of them, once.
  void succeed();
  void fail(std::exception_ptr why);
  // By the driver before `succeed`.
  void set_source(int rank);

 private:
  const std::string what_;
  const std::vector<at::Tensor> outputs_;
  int source_ = -1; // under mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

struct Operation;

// A communicator, and how it fares. Everything but the constants is the driver's thread's.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  size_t running = 0;                               // operations that MPI still works on
  size_t collectives = 0;                           // of them, those that count for M-3
  std::deque<std::shared_ptr<Operation>> waiting;   // collectives behind a barrier that has not started
  std::optional<std::string> broken;                // why no collective can be started any more
  bool given_up = false;                            // nothing at all can be started any more
  bool closed = false;
};

struct Operation {
  enum class Kind { kCollective, kBarrier, kSend, kReceive };
  using Requests = std::vector<MPI_Request>;
  using Statuses = std::vector<MPI_Status>;

  Kind kind;
  std::string what; // for messages: "allreduce of 8 elements of float on rank 1 of 4"
  std::shared_ptr<Channel> channel;
  c10::intrusive_ptr<MpiWork> work;
  milliseconds timeout;
  std::vector<at::Tensor> held;                         // M-2
  std::function<void(MPI_Comm, Requests&)> start;       // makes requests; may throw
  std::function<void(MpiWork&, Statuses&)> finish;      // when all are complete; may throw; may be empty

  // From here on the driver's.
  Clock::time_point deadline;
  Requests requests;
  Statuses statuses;
  bool reported = false; // the work has its verdict, but MPI may still be at it
};

class Driver {
 public:
  // The process's, never deleted: its thread may outlive every static.
  static Driver& get();

  // Initialises MPI if nobody has; throws where that is not possible.
  void open();
  // Runs `task` on the driver's thread and waits for it; rethrows what it throws.
  void call(std::function<void()> task);
  void submit(std::shared_ptr<Operation> operation);
  // Fails what is in flight and what is submitted later. MPI may be at the former still.
  void abort(std::shared_ptr<Channel> channel);
  void close(std::shared_ptr<Channel> channel);
  // Waits for what runs, then ends MPI if `open` started it. False if that takes longer than `timeout`.
  bool finalize(milliseconds timeout);

 private:
  void run();
  // False: too late, MPI has ended.
  bool post(std::function<void()> task);
  bool take_tasks(std::deque<std::function<void()>>& tasks);
  void initialize();

  void start_or_queue(const std::shared_ptr<Operation>& operation);
  void start(const std::shared_ptr<Operation>& operation);
  void start_waiting(Channel& channel);
  bool poll();
  bool is_over(Operation& operation);
  void expire(Operation& operation);
  void give_up(Operation& operation, std::exception_ptr why);
  void report(Operation& operation, std::exception_ptr why);
  void retire(const std::shared_ptr<Operation>& operation);

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_; // under mutex_
  bool opened_ = false;                     // under mutex_
  bool ended_ = false;                      // under mutex_: no task is taken any more
  std::shared_future<void> end_;            // under mutex_
  std::mutex opening_;

  // The driver's thread's.
  std::list<std::shared_ptr<Operation>> running_;
  bool is_ours_ = false;
  bool is_ending_ = false;
  Clock::time_point last_progress_;
};
} // namespace pstrain_mpi
