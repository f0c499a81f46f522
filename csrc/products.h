// Products of matrices in registers, for one instruction set: the left factor is broadcast from where it is stored, the right
// one is read in vectors. Included by the blocks of an operation only.

using Pair = uint32_t;  // two bfloat16
#if LSP_ISA_PAIRS
inline __m512bh load(const Pair* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline __m512bh splat(const Pair* p) { return (__m512bh)_mm512_set1_epi32(int(*p)); }
// both products of every pair, added to one float32
inline Vec fma(__m512bh a, __m512bh b, Vec c) { return _mm512_dpbf16_ps(c, a, b); }
#endif
inline Vec splat(const float* p) { return splat(*p); }
// A vector of values as transpose takes it: a lane has one value, two of bfloat16 or four of int8, which move together.
template <class T>
inline Vec load_lanes(const T* p) { return load(p); }
inline Vec load_lanes(const BFloat16* p) { return load(reinterpret_cast<const float*>(p)); }
inline Vec load_lanes(const int8_t* p) { return load(reinterpret_cast<const float*>(p)); }
template <class T>
constexpr int PER_LANE = std::is_same_v<T, int8_t> ? 4 : std::is_same_v<T, BFloat16> ? 2 : 1;
// Of the values in such a lane, the one that is number k as a factor.
template <class T>
inline Vec factor_in(Vec x, int k, const T*, float) {
  if constexpr (PER_LANE<T> == 1) return x;
  if constexpr (PER_LANE<T> == 4) return from_signed(shift_signed(shift_left(int_bits(x), 24 - 8 * k), 24));
  return float_bits(k ? both(int_bits(x), splat_int(0xffff0000)) : shift_left(int_bits(x), 16));
}
#if LSP_ISA_PAIRS
inline __m512bh factor_in(Vec x, int, const BFloat16*, Pair) { return (__m512bh)_mm512_castps_si512(x); }
#endif

// Calls f(n), 1 <= n <= MOST, with n as a compile-time constant.
template <int MOST, class F>
inline void with_constant(int64_t n, const F& f) {
  if constexpr (MOST > 1) {
    if (n < MOST) return with_constant<MOST - 1>(n, f);
  }
  f(std::integral_constant<int, MOST>());
}

// sum += A B. Strides: a_row from row to row of A, a_col from column to column of A, b_row from row to row of B.
template <class A, class B, int M, int N>
inline void multiply(Vec (&sum)[M][N], const A* a, int64_t a_row, int64_t a_col, const B* b, int64_t b_row, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    decltype(load(b)) right[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) right[n] = load(b + k * b_row + n * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const auto left = splat(a + m * a_row + k * a_col);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[m][n] = fma(left, right[n], sum[m][n]);
    }
  }
}

// Prefetches `rows` rows of n values: the processor's own prefetchers do not follow rows that are a few lines long. LEVEL is
// 3 for the L1 cache and 2 for the L2 cache.
template <int LEVEL = 3, class A>
inline void prefetch_rows(const A* x, int64_t stride, int64_t rows, int64_t n) {
#if defined(__GNUC__)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < n; i += 64 / sizeof(A)) __builtin_prefetch(x + row * stride + i, 0, LEVEL);
#endif
}

// The type in which the values of a tensor are multiplied: pairs for bfloat16 where the processor can, else float32.
template <class T>
using Factor = std::conditional_t<LSP_ISA_PAIRS && std::is_same_v<T, BFloat16>, Pair, float>;

// `count` rows as factors of the products: in place if they have the right type, else converted into `out`. `stride`
// becomes that of the result.
inline const float* factors(float, const float* x, int64_t&, int64_t, int64_t, float*) { return x; }
template <class T>
inline const float* factors(float, const T* x, int64_t& stride, int64_t count, int64_t size, float* out) {
  for (int64_t row = 0; row < count; ++row)
    for (int64_t i = 0; i < size; i += LANES) store(out + row * size + i, load(x + row * stride + i));
  stride = size;
  return out;
}
inline const Pair* factors(Pair, const BFloat16* x, int64_t& stride, int64_t count, int64_t size, float* out) {
  auto* copy = reinterpret_cast<Pair*>(out);
  const bool even = stride % 2 == 0;
  for (int64_t row = 0; !even && row < count; ++row) std::memcpy(copy + row * size / 2, x + row * stride, 2 * size);
  stride = (even ? stride : size) / 2;
  return even ? reinterpret_cast<const Pair*>(x) : copy;
}

