// Threads that wake up without pushing others off their cores.
#pragma once

#include <sched.h>

// What threads the caller starts while this lives are batch threads (SCHED_BATCH in sched(7)). They get the same share
// of the cores, but when they wake up they wait for a free core instead of taking one.
//
// Gloo needs that: its event thread spins while another thread, which is sending, holds a connection's lock. Had it
// taken the sender's core, and so on all ranks of the machine, they would spin until the next tick of the scheduler: 4 ms
// for an all-reduce that takes 0.3.
class BatchThreads {
 public:
  BatchThreads() : before(sched_getscheduler(0)) {
    // Where it may not be changed threads are as they always were.
    set(before == SCHED_OTHER ? SCHED_BATCH : before);
  }
  ~BatchThreads() {
    set(before);
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  static void set(int policy) {
    const sched_param none{};
    if (policy == SCHED_OTHER || policy == SCHED_BATCH) {
      sched_setscheduler(0, policy, &none);
    }
  }
  const int before;
};
