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
constexpr int FEW = LSP_ISA_BITS ? 4 : 0;  // queries for which the values of a key are in the lanes
static_assert(FEW <= TILE && FEW <= LANES);
constexpr int TERMS = 64;  // products added one after the other; a longer score is a sum of such sums, which rounds less

// out[key][query] = keys . queries, for N vectors of queries. Few vectors leave registers for more keys, and with the sums of
// one tile of few keys alone every product would wait for an earlier one.
template <int N, class A>
inline void score(const A* keys, int64_t stride, int64_t count, const A* queries, int64_t depth, float* out) {
  constexpr int TALL = LSP_ISA_BITS == 512 && 2 * N <= VECS ? 2 * TILE : TILE;
  for (int64_t key = 0; key < count; key += TALL) {
    prefetch_rows(keys + (key + TALL) * stride, stride, TALL, depth);
    with_constant<TALL>(count - key, [&](auto m) {
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

// The sum of the products of two rows, lane by lane.
template <class A, class B>
inline Vec multiply_rows(const A* a, const B* b, int64_t depth) {
  Vec sum = splat(0.0f);
  for (int64_t d = 0; d < depth; d += LANES) sum = fma(load(a + d), load(b + d), sum);
  return sum;
}

// The same for few queries, which lie one after the other. With queries in the lanes most lanes would be empty, so the values
// of a key are there, and a score is a sum across them.
template <class A, class B>
inline void score_few(const A* keys, int64_t stride, int64_t count, const B* queries, int64_t rows, int64_t depth, float* out) {
  for (int64_t key = 0; key < count; key += LANES) {
    const int64_t here = std::min<int64_t>(LANES, count - key);
    prefetch_rows(keys + (key + LANES) * stride, stride, LANES, depth);
    Vec scores[LANES];
    for (Vec& x : scores) x = splat(0.0f);
    for (int64_t row = 0; row < rows; ++row) {
      Vec sum[LANES];
      for (int64_t i = 0; i < LANES; ++i)
        sum[i] = i < here ? multiply_rows(keys + (key + i) * stride, queries + row * depth, depth) : splat(0.0f);
      transpose(sum);
      for (const Vec& x : sum) scores[row] = add(scores[row], x);
    }
    transpose(scores);  // lanes without a query hold zero, as in a panel
    for (int64_t i = 0; i < here; ++i) store(out + (key + i) * WIDTH, scores[i]);
  }
}

// values[query] = carry[query] * values[query] + weights of the keys . their values
template <class V>
inline void add_values(const float* weights, const V* v, int64_t stride, int64_t count, int64_t rows, int64_t size,
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

  // Whether the values of queries and keys are in the lanes. It depends on the sequence alone, as all of a result does.
  bool few() const { return block.rows <= FEW && block.size % (LANES * PER_KEY) == 0; }

  const T* row_of(int64_t row) const {
    const int64_t at = block.first + row;
    return block.q + at / block.group * block.q_token + at % block.group * block.q_head;
  }

  // The factors of a query from q on, of which `left` are left, in the lanes; lanes past its end hold zero.
  Vec lanes_of(const T* q, int64_t left) const {
    constexpr uint32_t SIGNS = PER_KEY == 2 ? 0x80008000 : 0x80000000;
    T rest[LANES * PER_KEY] = {};
    if (left < LANES) {
      std::copy_n(q, left * PER_KEY, rest);
      q = rest;
    }
    Vec x;
    if constexpr (PER_KEY == 2) {
      x = load_lanes(q);
    } else {
      x = load(q);
    }
    return block.negative ? float_bits(flip(int_bits(x), splat_int(SIGNS))) : x;
  }

  // Puts the queries side by side; lanes without a query hold zero. Few queries follow one another.
  void pack() const {
    const int64_t depth = block.size / PER_KEY;
    for (int64_t row = 0; row < block.rows; row += LANES) {
      const int64_t here = std::min<int64_t>(LANES, block.rows - row);
      auto* out = reinterpret_cast<float*>(packed(row)) + row % WIDTH;
      const T* q[LANES];
      for (int64_t i = 0; i < here; ++i) q[i] = row_of(row + i);
      for (int64_t d = 0; d < depth; d += LANES) {
        Vec x[LANES];
        for (int64_t i = 0; i < LANES; ++i) x[i] = i < here ? lanes_of(q[i] + d * PER_KEY, depth - d) : splat(0.0f);
        if (few()) {
          for (int64_t i = 0; i < here; ++i) store(out + i * depth + d, x[i]);
        } else {
          transpose(x);
          for (int64_t i = 0; i < std::min<int64_t>(LANES, depth - d); ++i) store(out + (d + i) * WIDTH, x[i]);
        }
      }
    }
  }

  // The panel that has this row.
  Key* packed(int64_t row) const { return reinterpret_cast<Key*>(scratch.queries[row / WIDTH]); }

  void add(const Segment<T>& segment, int64_t first, int64_t count) const {
    const int64_t size = block.size;
    int64_t k_stride = segment.k_stride, v_stride = segment.v_stride;
    const Key* keys = factors(Key(), segment.k + first * k_stride, k_stride, count, size, scratch.keys[0]);
    const float* values = factors(0.0f, segment.v + first * v_stride, v_stride, count, size, scratch.values[0]);
    for (int64_t row = 0; row < block.rows; row += WIDTH) {
      const int64_t rows = std::min<int64_t>(WIDTH, block.rows - row);
      with_constant<VECS>((rows + LANES - 1) / LANES, [&](auto n) {
        constexpr int N = decltype(n)::value;
        score<N>(keys, k_stride, count, packed(row), size / PER_KEY, scratch.scores[0]);
        weigh<N>(scratch.scores[0], count, block.scale, scratch.most + row, scratch.total + row, scratch.carry + row);
      });
      add_values(scratch.scores[0], values, v_stride, count, rows, size, scratch.carry + row, scratch.sums[0] + row * size);
    }
  }

  // The same for few queries. They use keys and values once, so these are not converted beforehand, and the time is that of
  // reading them: values are fetched while the keys are multiplied.
  void add_few(const Segment<T>& segment, int64_t first, int64_t count) const {
    const T *k = segment.k + first * segment.k_stride, *v = segment.v + first * segment.v_stride;
    int64_t k_stride = segment.k_stride;
    prefetch_rows<2>(v, segment.v_stride, count, block.size);
    float* scores = scratch.scores[0];
    if constexpr (PER_KEY == 2) {
      const Key* keys = factors(Key(), k, k_stride, count, block.size, scratch.keys[0]);
      score_few(keys, k_stride, count, packed(0), block.rows, block.size / PER_KEY, scores);
    } else {
      score_few(k, k_stride, count, packed(0), block.rows, block.size, scores);
    }
    weigh<1>(scores, count, block.scale, scratch.most, scratch.total, scratch.carry);
    add_values(scores, v, segment.v_stride, count, block.rows, block.size, scratch.carry, scratch.sums[0]);
  }

  Found run() const {
    pack();
    std::fill_n(scratch.sums[0], block.rows * block.size, 0.0f);
    std::fill_n(scratch.most, QUERIES, -INFINITY);
    std::fill_n(scratch.total, QUERIES, 0.0f);
    const auto step = few() ? &Attention::add_few : &Attention::add;
    for (const Segment<T>& segment : block.segments)
      for (int64_t first = 0; first < segment.count; first += KEYS)
        (this->*step)(segment, first, std::min(KEYS, segment.count - first));
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
