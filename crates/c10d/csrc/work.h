// Operations in flight.
#pragma once

#include "handles.h"

#include <cstdint>

extern "C" {

// Waits until the operation ends, at most `timeout_ms` (0: as long as the operation's own timeout lets it run).
char* shim_work_wait(const WorkBox* work, int64_t timeout_ms);

// For collectives. Gloo's send and receive only learn of their end in `wait`.
char* shim_work_is_completed(const WorkBox* work, bool* completed);

// The rank that a receive from anyone got its message from; after the wait.
char* shim_work_source(const WorkBox* work, int* rank);

// `call(state, message)` is called once, on any thread, when the operation ends: with null for success. Then, or when
// it can no longer be called, `drop(state)` is. Where this returns a message, neither was nor will be called.
char* shim_work_on_done(
    const WorkBox* work,
    void* state,
    void (*call)(void* state, const char* message),
    void (*drop)(void* state));

void shim_work_drop(WorkBox* work);
}
