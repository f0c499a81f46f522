// A block of queries against all its keys, for one instruction set. Included by foreach_isa.h only.
//
// Scores are computed transposed, S^T = K Q^T, with queries in the lanes: keys are broadcast from where they are stored,
// the softmax needs no sums across lanes, and the weights of a key are side by side for O += P V. Both products use one
// routine, which broadcasts the left factor and reads the right one in vectors.

#include "products.h"

constexpr int VECS = LSP_ISA_BITS == 512 ? 4 : 2;  // vectors per row of a tile: TILE * VECS accumulators fit the registers
constexpr int TILE = LSP_ISA_BITS ? 6 : 2;
constexpr int WIDTH = VECS * LANES;  // queries of a panel
constexpr int PANELS = QUERIES / WIDTH;
constexpr int TERMS = 64;  // products added one after the other; a longer score is a sum of such sums, which rounds less

// out[key][query] = keys . queries, for N vectors of queries
template <int N, class A>
inline void score(const A* keys, int64_t stride, int64_t count, const A* queries, int64_t depth, float* out) {
  for (int64_t key = 0; key < count; key += TILE) {
    prefetch_rows(keys + (key + TILE) * stride, stride, TILE, depth);
    with_constant<TILE>(count - key, [&](auto m) {
      constexpr int M = decltype(m)::value;
      for (int64_t begin = 0; begin < depth; begin += TERMS) {
        Vec sum[M][N];
        for (auto& row : sum)
          for (Vec& x : row) x = splat(0.0f);
        const int64_t terms = std::min<int64_t>(TERMS, depth - begin);
        multiply(sum, keys + key * stride + begin, stride, 1, queries + begin * WIDTH, WIDTH, terms);
        for (int i = 0; i < M; ++i)
          for (int n = 0; n < N; ++n) {
            float* to = out + (key + i) * WIDTH + n * LANES;
            store(to, begin ? add(load(to), sum[i][n]) : sum[i][n]);
          }
      }
    });
  }
}

// values[query] = carry[query] * values[query] + weights of the keys . their values
inline void add_values(const float* weights, const float* v, int64_t stride, int64_t count, int64_t rows, int64_t size,
                       const float* carry, float* values) {
  for (int64_t column = 0; column < size; column += WIDTH) {
    with_constant<VECS>((size - column) / LANES, [&](auto n) {
      constexpr int N = decltype(n)::value;
      for (int64_t row = 0; row < rows; row += TILE) {
        with_constant<TILE>(rows - row, [&](auto m) {
          constexpr int M = decltype(m)::value;
          float* out = values + row * size + column;
          Vec sum[M][N];
          for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) sum[i][j] = mul(load(out + i * size + j * LANES), splat(carry[row + i]));
          multiply(sum, weights + row, 1, WIDTH, v + column, stride, count);
          for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) store(out + i * size + j * LANES, sum[i][j]);
        });
      }
    });
  }
}

// 2^x in place for x <= 0, relative error below 2e-7; x below -125 counts as -125, NaN stays NaN.
template <int C>
inline void exp2(Vec (&x)[C]) {
  const Vec shift = splat(0x1.8p23f), lowest = splat(-125.0f);
  Vec biased[C], p[C];
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) x[k] = larger(lowest, x[k]);
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) biased[k] = add(x[k], shift);  // round(x) in the low bits
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) x[k] = sub(x[k], sub(biased[k], shift));
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) p[k] = fma(x[k], splat(0x1.5c08e2p-10f), splat(0x1.3d0c52p-7f));
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) p[k] = fma(x[k], p[k], splat(0x1.c6b6e4p-5f));
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) p[k] = fma(x[k], p[k], splat(0x1.ebf918p-3f));
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) p[k] = fma(x[k], p[k], splat(0x1.62e428p-1f));
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) p[k] = fma(x[k], p[k], splat(0x1.000002p+0f));
#pragma GCC unroll 8
  for (int k = 0; k < C; ++k) x[k] = scale2(p[k], biased[k]);
}

// Turns the scores of `count` keys into weights 2^(scale * score - most), where `most` is the largest scaled score so far.
// Sums of earlier keys must be multiplied by `carry`. One fma scales a score and subtracts `most`, so the scaled score is
// not rounded by itself; the rounding of `most` cancels, because the same number is subtracted everywhere. As long as all
// scores are -inf, 0 is subtracted: -inf - -inf would be NaN.
template <int N>
inline void weigh(float* scores, int64_t count, float scale, float* most, float* total, float* carry) {
  Vec largest[N], sum[N], before[N], below[N];
  const Vec factor = splat(scale);
  for (int n = 0; n < N; ++n) largest[n] = load(scores + n * LANES);
  for (int64_t key = 1; key < count; ++key)
    for (int n = 0; n < N; ++n) largest[n] = larger(largest[n], load(scores + key * WIDTH + n * LANES));
  for (int n = 0; n < N; ++n) {
    before[n] = load(most + n * LANES);
    const Vec now = larger(before[n], mul(largest[n], factor)), nothing = splat(-INFINITY);
    store(most + n * LANES, now);
    const Vec base = choose(equal(now, nothing), splat(0.0f), now);
    before[n] = sub(before[n], base);
    below[n] = sub(splat(0.0f), base);
  }
  exp2(before);
  for (int n = 0; n < N; ++n) {
    store(carry + n * LANES, before[n]);
    sum[n] = mul(load(total + n * LANES), before[n]);
  }
  constexpr int AT_ONCE = N < 3 ? 4 / N : 1;  // keys at once, so that enough exponentials are independent
  auto keys = [&](int64_t key, auto at_once) {
    constexpr int K = decltype(at_once)::value;
    Vec x[K * N];
    for (int i = 0; i < K * N; ++i) x[i] = fma(load(scores + (key + i / N) * WIDTH + i % N * LANES), factor, below[i % N]);
    exp2(x);
    for (int i = 0; i < K * N; ++i) {
      sum[i % N] = add(sum[i % N], x[i]);
      store(scores + (key + i / N) * WIDTH + i % N * LANES, x[i]);
    }
  };
  int64_t key = 0;
  for (; key + AT_ONCE <= count; key += AT_ONCE) keys(key, std::integral_constant<int, AT_ONCE>());
  for (; key < count; ++key) keys(key, std::integral_constant<int, 1>());
  for (int n = 0; n < N; ++n) store(total + n * LANES, sum[n]);
}

struct alignas(64) Scratch {
  float queries[PANELS][LARGEST_SIZE][WIDTH];
  float scores[KEYS][WIDTH];
  float keys[KEYS][LARGEST_SIZE], values[KEYS][LARGEST_SIZE];  // as float32
  float sums[QUERIES][LARGEST_SIZE];
  float most[QUERIES], total[QUERIES], carry[QUERIES];
};

template <class T>
struct Attention {
  using Key = Factor<T>;
  static constexpr int64_t PER_KEY = std::is_same_v<Key, Pair> ? 2 : 1;
  const Block<T>& block;
  Scratch& scratch;

  const T* row_of(int64_t row) const {
    const int64_t at = block.first + row;
    return block.q + at / block.group * block.q_token + at % block.group * block.q_head;
  }

  // Puts the queries side by side; lanes without a query hold zero.
  void pack() const {
    const int64_t depth = block.size / PER_KEY;
    for (int64_t panel = 0; panel * WIDTH < block.rows; ++panel) {
      auto* out = reinterpret_cast<Key*>(scratch.queries[panel]);
      const int64_t rows = std::min<int64_t>(WIDTH, block.rows - panel * WIDTH);
      if (rows < WIDTH) std::fill_n(out, depth * WIDTH, Key(0));
      for (int64_t row = 0; row < rows; ++row) {
        const T* q = row_of(panel * WIDTH + row);
        for (int64_t d = 0; d < depth; ++d) {
          if constexpr (PER_KEY == 2) {
            std::memcpy(out + d * WIDTH + row, q + 2 * d, sizeof(Pair));
            if (block.negative) out[d * WIDTH + row] ^= 0x80008000;
          } else {
            out[d * WIDTH + row] = block.negative ? -to_float(q[d]) : to_float(q[d]);
          }
        }
      }
    }
  }

  void add(const Segment<T>& segment, int64_t first, int64_t count) const {
    const int64_t size = block.size;
    int64_t k_stride = segment.k_stride, v_stride = segment.v_stride;
    const Key* keys = factors(Key(), segment.k + first * k_stride, k_stride, count, size, scratch.keys[0]);
    const float* values = factors(0.0f, segment.v + first * v_stride, v_stride, count, size, scratch.values[0]);
    for (int64_t row = 0; row < block.rows; row += WIDTH) {
      const int64_t rows = std::min<int64_t>(WIDTH, block.rows - row);
      const auto* queries = reinterpret_cast<const Key*>(scratch.queries[row / WIDTH]);
      with_constant<VECS>((rows + LANES - 1) / LANES, [&](auto n) {
        constexpr int N = decltype(n)::value;
        score<N>(keys, k_stride, count, queries, size / PER_KEY, scratch.scores[0]);
        weigh<N>(scratch.scores[0], count, block.scale, scratch.most + row, scratch.total + row, scratch.carry + row);
      });
      add_values(scratch.scores[0], values, v_stride, count, rows, size, scratch.carry + row, scratch.sums[0] + row * size);
    }
  }

  Found run() const {
    pack();
    std::fill_n(scratch.sums[0], block.rows * block.size, 0.0f);
    std::fill_n(scratch.most, QUERIES, -INFINITY);
    std::fill_n(scratch.total, QUERIES, 0.0f);
    for (const Segment<T>& segment : block.segments)
      for (int64_t first = 0; first < segment.count; first += KEYS)
        add(segment, first, std::min(KEYS, segment.count - first));
    return {scratch.sums[0], scratch.most, scratch.total};
  }
};

struct Blocks {
  using Memory = Scratch;
  template <class T>
  static Found attend(const Block<T>& block, Scratch& scratch) {
    return Attention<T>{block, scratch}.run();
  }
};
