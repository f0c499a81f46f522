// Tasks over torch's threads. Threads take the next task when they are free, so that a slow core does not hold up the rest.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdint>

namespace lsp {

constexpr int64_t SERIAL_WORK = 1 << 16;  // under this many elements a wake-up costs more than it saves

template <class F>
void parallel_tasks(int64_t tasks, int64_t elements_per_task, const F& run) {
  const int64_t threads = std::min<int64_t>(tasks, torch::stable::get_num_threads());
  if (threads <= 1 || tasks * elements_per_task < SERIAL_WORK) {
    for (int64_t task = 0; task < tasks; ++task) run(task);
    return;
  }
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) run(task);
  });
}

}  // namespace lsp
