// Runs tasks on torch's threads. A thread first takes the tasks of its own share, which are the same in every call, so that
// their data may still be in its cache. Then it takes tasks of the others, so that a slow core does not delay the call.
#pragma once

#include "errors.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace LSP_NAMESPACE {

constexpr int64_t SERIAL_WORK = 1 << 16;  // with fewer elements, waking threads costs more than it saves

struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

inline int64_t thread_count() {
  uint32_t threads;
  check(torch_get_num_threads(&threads), "counting threads");
  return threads;
}

template <class F>
void parallel_tasks(int64_t tasks, int64_t elements_per_task, const F& run) {
  const int64_t threads = std::min<int64_t>(tasks, thread_count());
  if (threads <= 1 || tasks * elements_per_task < SERIAL_WORK) {
    for (int64_t task = 0; task < tasks; ++task) run(task);
    return;
  }
  std::vector<Share> shares(threads);
  for (int64_t i = 0; i < threads; ++i) {
    shares[i].next = i * tasks / threads;
    shares[i].end = (i + 1) * tasks / threads;
  }
  const auto work = [&](int64_t own) {
    for (int64_t i = 0; i < threads; ++i) {
      Share& share = shares[(own + i) % threads];
      for (int64_t task; (task = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) run(task);
    }
  };
  using Work = decltype(work);
  const ParallelFunc call = [](int64_t own, int64_t, void* context) { (*static_cast<Work*>(context))(own); };
  check(torch_parallel_for(0, threads, 1, call, const_cast<void*>(static_cast<const void*>(&work))), "a parallel loop");
}

}  // namespace LSP_NAMESPACE
