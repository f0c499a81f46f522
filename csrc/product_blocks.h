// A linear for one instruction set. Included by foreach_isa.h only.

#include "head_tiles.h"

// Receives results with rows in the lanes, and writes them row by row.
template <class T>
struct Writer {
  const float* scales;  // per output, or nullptr
  T* out;               // of the first row
  int64_t outputs, count, padded;

  void add_logits(int64_t id, int64_t ids, const float* found, const float* bias) const {
    for (int64_t row = 0; row < count; row += LANES) {
      for (int64_t i = 0; i < ids; i += LANES) {
        const int64_t here = std::min<int64_t>(LANES, ids - i);
        Vec x[LANES];
        for (int64_t k = 0; k < LANES; ++k) x[k] = k < here ? finished(id, i + k, found + (i + k) * padded + row, bias) : splat(0.0f);
        transpose(x);
        for (int64_t r = 0; r < std::min<int64_t>(LANES, count - row); ++r) write(x[r], out + (row + r) * outputs + id + i, here);
      }
    }
  }

  Vec finished(int64_t id, int64_t i, const float* found, const float* bias) const {
    return fma(load(found), splat(scales ? scales[id + i] : 1.0f), splat(bias[i]));
  }

  static void write(Vec x, T* to, int64_t n) {
    if (n == LANES) return store(to, x);
    float lane[LANES];
    store(lane, x);
    for (int64_t i = 0; i < n; ++i) round_to(lane[i], to[i]);
  }
};

struct Blocks : Packing {
  template <class T, class W>
  static void run(const Product<T, W>& task, const float* scales, T* out, int64_t outputs, HeadMemory& memory) {
    Tiles<T, W>{task, memory}.run(Writer<T>{scales, out, outputs, task.count, padded_rows(task.count)});
  }
};
