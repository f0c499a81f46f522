// The LM head for one instruction set: the statistics of hidden states against some ids. Included by foreach_isa.h only.

#include "head_stats.h"
#include "head_tiles.h"

struct Blocks : Packing {
  template <class T>
  static void run(const Product<T>& task, const Scoring& scoring, HeadMemory& memory, Top2* out) {
    const Stats stats{scoring, memory, task.count, padded_rows(task.count)};
    stats.begin();
    Tiles<T>{task, memory}.run(stats);
    stats.finish(out);
  }
};
