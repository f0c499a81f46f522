// Runs tasks on torch's threads. A thread first takes the tasks of its own share, which are the same in every call, so that
// their data may still be in its cache. Then it takes tasks of the others, so that a slow core does not delay the call.
#pragma once

#include <torch/csrc/stable/ops.h>

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

template <class F>
void parallel_tasks(int64_t tasks, int64_t elements_per_task, const F& run) {
  const int64_t threads = std::min<int64_t>(tasks, torch::stable::get_num_threads());
  if (threads <= 1 || tasks * elements_per_task < SERIAL_WORK) {
    for (int64_t task = 0; task < tasks; ++task) run(task);
    return;
  }
  std::vector<Share> shares(threads);
  for (int64_t i = 0; i < threads; ++i) {
    shares[i].next = i * tasks / threads;
    shares[i].end = (i + 1) * tasks / threads;
  }
  torch::stable::parallel_for(0, threads, 1, [&](int64_t own, int64_t) {
    for (int64_t i = 0; i < threads; ++i) {
      Share& share = shares[(own + i) % threads];
      for (int64_t task; (task = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) run(task);
    }
  });
}

}  // namespace LSP_NAMESPACE
