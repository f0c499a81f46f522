// Hidden states against some ids of the vocabulary, for one instruction set. Included by foreach_isa.h only.
//
// Logits are computed transposed, with rows in the lanes: weights are broadcast from where they are stored, so no copy of
// them is kept, and the two largest logits of every row are found lane by lane. A logit leaves the registers only if the
// hidden size has more than one chunk.

#include "products.h"

constexpr int VECS = 2;  // vectors of a panel of rows: TILE * VECS accumulators fit the registers
constexpr int TILE = LSP_ISA_BITS == 512 ? 12 : LSP_ISA_BITS ? 6 : 2;  // ids at once
constexpr int WIDTH = VECS * LANES;
constexpr int64_t STRETCH = 64;  // factors between two prefetches

inline Vec splat_bits(int32_t x) {
  float out;
  std::memcpy(&out, &x, 4);
  return splat(out);
}

// What is known of the rows in the lanes of one vector.
struct State {
  Vec first, second, token, nan, sum;

  static constexpr int PARTS = 5;
  static State load_from(const float* p, int64_t rows) {
    return {load(p), load(p + rows), load(p + 2 * rows), load(p + 3 * rows), load(p + 4 * rows)};
  }
  void store_to(float* p, int64_t rows) const {
    store(p, first), store(p + rows, second), store(p + 2 * rows, token), store(p + 3 * rows, nan), store(p + 4 * rows, sum);
  }
};

// e^(x - base) for four vectors, 1 where both are equal, also if they are infinite
inline void weights_below(Vec (&x)[4], Vec base) {
  for (Vec& value : x) value = choose(equal(value, base), splat(0.0f), sub(value, base));
  exp(x);
}

// Adds the logits of one id after the other. With REST, `sum` is that of e^(z - second) over all ids but the best.
template <bool REST, int M>
inline void add_ids(State& state, const Vec (&logits)[M], const bool (&hidden)[M], int64_t id) {
  constexpr int GROUPS = (M + 3) / 4;
  const Vec nothing = splat(-INFINITY), before = state.second;
  Vec losers[4 * GROUPS];
  if (REST)
    for (Vec& loser : losers) loser = nothing;
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    if (hidden[m]) continue;
    const Vec z = logits[m];
    const Mask better = above(z, state.first);
    if (REST) losers[m] = choose(better, state.first, z);
    state.nan = choose(unordered(z, z), splat(1.0f), state.nan);
    state.second = larger(smaller(z, state.first), state.second);
    state.first = larger(z, state.first);
    state.token = choose(better, splat_bits(int32_t(id + m)), state.token);
  }
  if (REST) {
    const Vec base = choose(equal(state.second, nothing), splat(0.0f), state.second);
    Vec carry[4] = {before, nothing, nothing, nothing}, total = splat(0.0f);
    weights_below(carry, base);
    for (int g = 0; g < GROUPS; ++g) {
      Vec x[4] = {losers[4 * g], losers[4 * g + 1], losers[4 * g + 2], losers[4 * g + 3]};
      weights_below(x, base);
      total = add(total, add(add(x[0], x[1]), add(x[2], x[3])));
    }
    const Vec same = splat(1.0f);  // exactly, because it is multiplied with once per tile
    state.sum = fma(state.sum, choose(equal(before, state.second), same, carry[0]), total);
  }
}

template <class T>
struct Head {
  using F = Factor<T>;
  static constexpr int64_t PER_FACTOR = std::is_same_v<F, Pair> ? 2 : 1;
  const Product<T>& task;
  HeadMemory& memory;
  const int64_t padded = (task.count + LANES - 1) / LANES * LANES;  // rows

  // Puts the values [begin, begin + n) of all rows side by side, panel after panel; lanes without a row hold zero. An odd
  // last value is paired with zero.
  void pack(int64_t begin, int64_t n) const {
    const int64_t depth = (n + PER_FACTOR - 1) / PER_FACTOR;
    auto* out = reinterpret_cast<F*>(memory.hidden.data());
    for (int64_t row = 0; row < padded; ++row) {
      F* to = out + row / WIDTH * WIDTH * depth + row % WIDTH;
      const int64_t step = std::min<int64_t>(WIDTH, padded - row / WIDTH * WIDTH);
      if (row >= task.count) {
        for (int64_t d = 0; d < depth; ++d) to[d * step] = F(0);
        continue;
      }
      const T* from = task.rows[row] + begin;
      for (int64_t d = 0; d < depth; ++d) {
        if constexpr (PER_FACTOR == 2) {
          F pair = 0;
          std::memcpy(&pair, from + 2 * d, 2 * d + 1 < n ? 4 : 2);
          to[d * step] = pair;
        } else {
          to[d * step] = to_float(from[d]);
        }
      }
    }
  }

  // The values [begin, begin + n) of M ids as factors: where they are if they have the right type, else converted.
  template <int M>
  const F* factors_of(int64_t id, int64_t begin, int64_t n, int64_t& stride) const {
    const T* from = task.weight + id * task.stride + begin;
    stride = task.stride / PER_FACTOR;
    if constexpr (std::is_same_v<T, float>) return from;
    if constexpr (PER_FACTOR == 2) {
      if (task.stride % 2 == 0 && n % 2 == 0) return reinterpret_cast<const F*>(from);
    }
    auto* out = memory.weights.data();
    stride = (depth_of(task.size) + PER_FACTOR - 1) / PER_FACTOR;
    for (int m = 0; m < M; ++m, from += task.stride) {
      if constexpr (PER_FACTOR == 2) {
        std::memset(out + m * stride, 0, 4 * stride);
        std::memcpy(out + m * stride, from, 2 * n);
      } else {
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) store(out + m * stride + i, load(from + i));
        for (; i < n; ++i) out[m * stride + i] = to_float(from[i]);
      }
    }
    return reinterpret_cast<const F*>(out);
  }

  template <bool REST, int M, int N>
  void add_panel(const F* weights, int64_t stride, const F* panel, int64_t depth, const T* next, int64_t id, int64_t row,
                 bool first, bool last, const bool (&hidden)[M]) const {
    Vec sum[M][N];
    float* at = memory.logits.data() + (id - task.begin) * padded + row;
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) sum[m][n] = splat(0.0f);
    // The first panel fetches the next ids, a little at a time: all at once would stall.
    for (int64_t k = 0; k < depth; k += STRETCH) {
      if (next) prefetch_rows(next + k * PER_FACTOR, task.stride, M, STRETCH * PER_FACTOR);
      multiply(sum, weights + k, stride, 1, panel + k * N * LANES, N * LANES, std::min(STRETCH, depth - k));
    }
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) {
        if (!first) sum[m][n] = add(sum[m][n], load(at + m * padded + n * LANES));
        if (!last) store(at + m * padded + n * LANES, sum[m][n]);
        if (last && task.bias) sum[m][n] = add(sum[m][n], splat(to_float(task.bias[id + m])));
      }
    }
    if (!last) return;
    for (int n = 0; n < N; ++n) {
      float* p = memory.state.data() + row + n * LANES;
      State state = State::load_from(p, padded);
      Vec logits[M];
      for (int m = 0; m < M; ++m) logits[m] = sum[m][n];
      add_ids<REST>(state, logits, hidden, id);
      state.store_to(p, padded);
    }
  }

  template <bool REST, int M>
  void add_tile(int64_t id, int64_t begin, int64_t n) const {
    int64_t stride;
    const F* weights = factors_of<M>(id, begin, n, stride);
    bool hidden[M];
    for (int m = 0; m < M; ++m) hidden[m] = is_suppressed(id + m);
    const int64_t depth = (n + PER_FACTOR - 1) / PER_FACTOR;
    const bool first = begin == 0, last = begin + n == task.size;
    const F* panel = reinterpret_cast<const F*>(memory.hidden.data());
    const T* next = id + 2 * M <= task.end ? task.weight + (id + M) * task.stride + begin : nullptr;
    for (int64_t row = 0; row < padded; row += WIDTH, panel += WIDTH * depth, next = nullptr) {
      if (padded - row >= WIDTH) {
        add_panel<REST, M, VECS>(weights, stride, panel, depth, next, id, row, first, last, hidden);
      } else {
        add_panel<REST, M, 1>(weights, stride, panel, depth, next, id, row, first, last, hidden);
      }
    }
  }

  bool is_suppressed(int64_t id) const {
    const Suppressed& s = task.suppressed;
    return s.count > 0 && std::binary_search(s.ids, s.ids + s.count, int32_t(id));
  }

  template <bool REST>
  void run(Top2* out) const {
    const int64_t depth = depth_of(task.size);
    memory.hidden.resize(padded * (depth + 1));
    memory.weights.resize(TILE * (depth + 1));
    memory.logits.resize(task.size > depth ? (task.end - task.begin) * padded : 0);
    memory.state.assign(State::PARTS * padded, 0.0f);
    std::fill_n(memory.state.data(), 2 * padded, -INFINITY);
    for (int64_t begin = 0; begin < task.size; begin += depth) {
      const int64_t n = std::min(depth, task.size - begin);
      pack(begin, n);
      int64_t id = task.begin;
      for (; id + TILE <= task.end; id += TILE) add_tile<REST, TILE>(id, begin, n);
      for (; id < task.end; ++id) add_tile<REST, 1>(id, begin, n);
    }
    for (int64_t row = 0; row < task.count; ++row) {
      const float* p = memory.state.data() + row;
      int32_t token;
      std::memcpy(&token, p + 2 * padded, 4);
      const bool found = p[0] > -INFINITY;
      out[row] = {p[0], p[padded], p[3 * padded] != 0, found ? token : task.suppressed.lowest, p[4 * padded]};
    }
  }
};

struct Blocks {
  template <bool REST, class T>
  static void run(const Product<T>& task, HeadMemory& memory, Top2* out) {
    Head<T>{task, memory}.template run<REST>(out);
  }
};
