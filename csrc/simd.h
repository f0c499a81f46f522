// The vector operations that the kernels are written in, for one instruction set. Included by foreach_isa.h only, once per
// set, inside its namespace and target. LSP_ISA_BITS is 512, 256, or 0 for plain C++ that any compiler can vectorise.
//
//   load      LANES values as float32; store rounds them to the type that is written, to the nearest, ties to even
//                                          larger(a, b)    a > b ? a : b, so a NaN in `a` is ignored; smaller likewise
//   Mask      one bit per lane             unordered(a, b) lanes where either is NaN
//   scale2    p * 2^k, for k held in the low bits of the float `biased` (see exp)
//   Ints      32-bit integers              Wide            64-bit slots, two lanes each, of which often the low half counts
//   pair      low halves of two Wide, lane by lane in turns: the slots of `low` give the even lanes
//   transpose lane j of x[i] becomes lane i of x[j]
//   in_order  the four words of each slot side by side: first those of the even slots, then those of the odd ones

#if LSP_ISA_BITS == 512

constexpr int LANES = 16;
using Vec = __m512;
using Mask = __mmask16;

inline Vec splat(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const BFloat16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Vec load(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec load(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline void store(Half* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline void store(BFloat16* p, Vec x) {
  const __m512i wide = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(wide, 16), _mm512_set1_epi32(1));
  const __m512i near = _mm512_srli_epi32(_mm512_add_epi32(wide, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i out = _mm512_mask_mov_epi32(near, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(out));
}
inline Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec smaller(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Mask unordered(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
inline Mask above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask either(Mask a, Mask b) { return Mask(a | b); }
inline Vec choose(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
inline float max_lane(Vec x) { return _mm512_reduce_max_ps(x); }
inline uint32_t bits(Mask m) { return m; }
using Vec16 = __m512i;  // 16-bit values as the integers that hold them
constexpr int LANES16 = 32;
inline Vec16 splat16(uint16_t x) { return _mm512_set1_epi16(int16_t(x)); }
inline Vec16 load16(const void* p) { return _mm512_loadu_si512(p); }
inline Vec16 max_signed(Vec16 a, Vec16 b) { return _mm512_max_epi16(a, b); }
inline Vec16 min_signed(Vec16 a, Vec16 b) { return _mm512_min_epi16(a, b); }
inline Vec16 max_unsigned(Vec16 a, Vec16 b) { return _mm512_max_epu16(a, b); }
inline Vec16 flip_bits(Vec16 a, Vec16 b) { return _mm512_xor_si512(a, b); }
inline bool any_above(Vec16 a, Vec16 b) { return _mm512_cmpgt_epi16_mask(a, b) != 0; }
inline Vec16 where_negative(Vec16 x, Vec16 yes) { return _mm512_mask_mov_epi16(x, _mm512_movepi16_mask(x), yes); }
inline __m128i max_of_eighths(Vec16 x) {
  const __m256i half = _mm256_max_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
  return _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
inline Vec scale2(Vec p, Vec biased) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(biased), 23)));
}
inline void transpose(Vec (&x)[16]) {
  Vec a[16], b[16];
  for (int i = 0; i < 16; i += 2) a[i] = _mm512_unpacklo_ps(x[i], x[i + 1]), a[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  for (int i = 0; i < 16; i += 4) {  // b[i + j]: columns j, j + 4, j + 8, j + 12 of rows i to i + 3
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44), b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44), b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int j = 0; j < 4; ++j) {
    const Vec left = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88), right = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);
    x[j] = _mm512_shuffle_f32x4(left, right, 0x88), x[j + 8] = _mm512_shuffle_f32x4(left, right, 0xdd);
    const Vec odd_left = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xdd), odd_right = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xdd);
    x[j + 4] = _mm512_shuffle_f32x4(odd_left, odd_right, 0x88), x[j + 12] = _mm512_shuffle_f32x4(odd_left, odd_right, 0xdd);
  }
}
using Ints = __m512i;
using Wide = __m512i;
inline Ints splat_int(uint32_t x) { return _mm512_set1_epi32(int32_t(x)); }
inline Ints load_int(const uint32_t* p) { return _mm512_loadu_si512(p); }
inline void store_int(uint32_t* p, Ints x) { _mm512_storeu_si512(p, x); }
inline Ints int_bits(Vec x) { return _mm512_castps_si512(x); }
inline Vec float_bits(Ints x) { return _mm512_castsi512_ps(x); }
inline Vec from_signed(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints any(Ints a, Ints b) { return _mm512_or_si512(a, b); }
inline Ints flip(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
inline Ints shift_left(Ints x, int count) { return _mm512_slli_epi32(x, count); }
inline Ints shift_right(Ints x, int count) { return _mm512_srli_epi32(x, count); }
inline Ints shift_signed(Ints x, int count) { return _mm512_srai_epi32(x, count); }
inline Ints sign_of(Ints x) { return shift_signed(x, 31); }
inline Mask negative(Ints x) { return _mm512_cmplt_epi32_mask(x, _mm512_setzero_si512()); }
inline Ints max_int(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
inline Mask at_least(Ints a, Ints b) { return _mm512_cmpge_epu32_mask(a, b); }
inline Wide splat_wide(uint64_t x) { return _mm512_set1_epi64(int64_t(x)); }
inline Wide load_wide(const uint64_t* p) { return _mm512_loadu_si512(p); }
inline Wide add_wide(Wide a, Wide b) { return _mm512_add_epi64(a, b); }
inline Wide multiply_low(Wide a, Wide b) { return _mm512_mul_epu32(a, b); }
inline Wide high_half(Wide x) { return _mm512_srli_epi64(x, 32); }
inline Wide even_lanes(Ints x) { return x; }  // in low halves; the high ones hold something
inline Wide odd_lanes(Ints x) { return high_half(x); }
inline Ints pair(Wide low, Wide high) { return _mm512_mask_shuffle_epi32(low, 0xaaaa, high, _MM_PERM_CCAA); }
inline void in_order(const Wide (&words)[4], Ints (&out)[2]) {
  const Ints left = pair(words[0], words[1]), right = pair(words[2], words[3]);
  out[0] = _mm512_unpacklo_epi64(left, right), out[1] = _mm512_unpackhi_epi64(left, right);
}

#elif LSP_ISA_BITS == 256

constexpr int LANES = 8;
using Vec = __m256;
using Mask = __m256;

inline Vec splat(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const BFloat16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Vec load(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec load(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline void store(Half* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline void store(BFloat16* p, Vec x) {
  const __m256i wide = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(wide, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_srli_epi32(_mm256_add_epi32(wide, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i out = _mm256_blendv_epi8(near, _mm256_set1_epi32(0x7fc0), nan);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
inline Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec smaller(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Mask unordered(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
inline Mask above(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
inline Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
inline Vec choose(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
inline float max_lane(Vec x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
inline uint32_t bits(Mask m) { return uint32_t(_mm256_movemask_ps(m)); }
using Vec16 = __m256i;  // 16-bit values as the integers that hold them
constexpr int LANES16 = 16;
inline Vec16 splat16(uint16_t x) { return _mm256_set1_epi16(int16_t(x)); }
inline Vec16 load16(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Vec16 max_signed(Vec16 a, Vec16 b) { return _mm256_max_epi16(a, b); }
inline Vec16 min_signed(Vec16 a, Vec16 b) { return _mm256_min_epi16(a, b); }
inline Vec16 max_unsigned(Vec16 a, Vec16 b) { return _mm256_max_epu16(a, b); }
inline Vec16 flip_bits(Vec16 a, Vec16 b) { return _mm256_xor_si256(a, b); }
inline bool any_above(Vec16 a, Vec16 b) { return _mm256_movemask_epi8(_mm256_cmpgt_epi16(a, b)) != 0; }
inline Vec16 where_negative(Vec16 x, Vec16 yes) { return _mm256_blendv_epi8(x, yes, _mm256_srai_epi16(x, 15)); }
inline __m128i max_of_eighths(Vec16 x) { return _mm_max_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)); }
inline Vec scale2(Vec p, Vec biased) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(biased), 23)));
}
inline void transpose(Vec (&x)[8]) {
  Vec a[8], b[8];
  for (int i = 0; i < 8; i += 2) a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]), a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  for (int i = 0; i < 8; i += 4) {  // b[i + j]: columns j and j + 4 of rows i to i + 3
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44), b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44), b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int j = 0; j < 4; ++j)
    x[j] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x20), x[j + 4] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x31);
}
using Ints = __m256i;
using Wide = __m256i;
inline Ints splat_int(uint32_t x) { return _mm256_set1_epi32(int32_t(x)); }
inline Ints load_int(const uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_int(uint32_t* p, Ints x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline Ints int_bits(Vec x) { return _mm256_castps_si256(x); }
inline Vec float_bits(Ints x) { return _mm256_castsi256_ps(x); }
inline Vec from_signed(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints any(Ints a, Ints b) { return _mm256_or_si256(a, b); }
inline Ints flip(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
inline Ints shift_left(Ints x, int count) { return _mm256_slli_epi32(x, count); }
inline Ints shift_right(Ints x, int count) { return _mm256_srli_epi32(x, count); }
inline Ints shift_signed(Ints x, int count) { return _mm256_srai_epi32(x, count); }
inline Ints sign_of(Ints x) { return shift_signed(x, 31); }
inline Mask negative(Ints x) { return _mm256_castsi256_ps(x); }  // a Mask is the sign bit of each lane
inline Ints max_int(Ints a, Ints b) { return _mm256_max_epu32(a, b); }
inline Mask at_least(Ints a, Ints b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a)); }
inline Wide splat_wide(uint64_t x) { return _mm256_set1_epi64x(int64_t(x)); }
inline Wide load_wide(const uint64_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Wide add_wide(Wide a, Wide b) { return _mm256_add_epi64(a, b); }
inline Wide multiply_low(Wide a, Wide b) { return _mm256_mul_epu32(a, b); }
inline Wide high_half(Wide x) { return _mm256_srli_epi64(x, 32); }
inline Wide even_lanes(Ints x) { return x; }  // in low halves; the high ones hold something
inline Wide odd_lanes(Ints x) { return high_half(x); }
inline Ints pair(Wide low, Wide high) { return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa); }
inline void in_order(const Wide (&words)[4], Ints (&out)[2]) {
  const Ints left = pair(words[0], words[1]), right = pair(words[2], words[3]);
  out[0] = _mm256_unpacklo_epi64(left, right), out[1] = _mm256_unpackhi_epi64(left, right);
}

#else

constexpr int LANES = 8;  // loops of constant length over small arrays, which compilers vectorise by themselves
struct Vec {
  float lane[LANES];
};
using Mask = uint32_t;

template <class F>
inline Vec each(F f) {
  Vec out;
  for (int i = 0; i < LANES; ++i) out.lane[i] = f(i);
  return out;
}
template <class F>
inline Mask where(F f) {
  Mask out = 0;
  for (int i = 0; i < LANES; ++i) out |= Mask(f(i)) << i;
  return out;
}
inline Vec splat(float x) { return each([=](int) { return x; }); }
template <class T>
inline Vec load(const T* p) {
  return each([=](int i) { return to_float(p[i]); });
}
inline void store(float* p, Vec x) { std::memcpy(p, x.lane, sizeof x.lane); }
template <class T>
inline void store(T* p, Vec x) {
  for (int i = 0; i < LANES; ++i) round_to(x.lane[i], p[i]);
}
inline Vec larger(Vec a, Vec b) { return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; }); }
inline Vec smaller(Vec a, Vec b) { return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; }); }
inline Vec add(Vec a, Vec b) { return each([&](int i) { return a.lane[i] + b.lane[i]; }); }
inline Vec sub(Vec a, Vec b) { return each([&](int i) { return a.lane[i] - b.lane[i]; }); }
inline Vec mul(Vec a, Vec b) { return each([&](int i) { return a.lane[i] * b.lane[i]; }); }
inline Vec div(Vec a, Vec b) { return each([&](int i) { return a.lane[i] / b.lane[i]; }); }
inline Vec fma(Vec a, Vec b, Vec c) { return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; }); }
inline Mask unordered(Vec a, Vec b) { return where([&](int i) { return std::isunordered(a.lane[i], b.lane[i]); }); }
inline Mask above(Vec a, Vec b) { return where([&](int i) { return a.lane[i] > b.lane[i]; }); }
inline Mask equal(Vec a, Vec b) { return where([&](int i) { return a.lane[i] == b.lane[i]; }); }
inline Mask either(Mask a, Mask b) { return a | b; }
inline Vec choose(Mask m, Vec yes, Vec no) { return each([&](int i) { return m >> i & 1 ? yes.lane[i] : no.lane[i]; }); }
inline float max_lane(Vec x) {
  float out = x.lane[0];
  for (float value : x.lane) out = value > out ? value : out;
  return out;
}
inline uint32_t bits(Mask m) { return m; }
inline Vec scale2(Vec p, Vec biased) {
  uint32_t a[LANES], k[LANES];
  std::memcpy(a, p.lane, sizeof a);
  std::memcpy(k, biased.lane, sizeof k);
  for (int i = 0; i < LANES; ++i) a[i] += k[i] << 23;
  std::memcpy(p.lane, a, sizeof a);
  return p;
}
inline void transpose(Vec (&x)[LANES]) {
  for (int i = 0; i < LANES; ++i)
    for (int j = 0; j < i; ++j) std::swap(x[i].lane[j], x[j].lane[i]);
}
struct Ints {
  uint32_t lane[LANES];
};
struct Wide {
  uint64_t slot[LANES / 2];
};
template <class F>
inline Ints each_int(F f) {
  Ints out;
  for (int i = 0; i < LANES; ++i) out.lane[i] = f(i);
  return out;
}
template <class F>
inline Wide each_slot(F f) {
  Wide out;
  for (int i = 0; i < LANES / 2; ++i) out.slot[i] = f(i);
  return out;
}
inline Ints splat_int(uint32_t x) { return each_int([=](int) { return x; }); }
inline Ints load_int(const uint32_t* p) { return each_int([=](int i) { return p[i]; }); }
inline void store_int(uint32_t* p, Ints x) { std::memcpy(p, x.lane, sizeof x.lane); }
inline Ints int_bits(Vec x) {
  Ints out;
  std::memcpy(out.lane, x.lane, sizeof out.lane);
  return out;
}
inline Vec float_bits(Ints x) {
  Vec out;
  std::memcpy(out.lane, x.lane, sizeof out.lane);
  return out;
}
inline Vec from_signed(Ints x) { return each([&](int i) { return float(int32_t(x.lane[i])); }); }
inline Ints both(Ints a, Ints b) { return each_int([&](int i) { return a.lane[i] & b.lane[i]; }); }
inline Ints any(Ints a, Ints b) { return each_int([&](int i) { return a.lane[i] | b.lane[i]; }); }
inline Ints flip(Ints a, Ints b) { return each_int([&](int i) { return a.lane[i] ^ b.lane[i]; }); }
inline Ints shift_left(Ints x, int count) { return each_int([&](int i) { return x.lane[i] << count; }); }
inline Ints shift_right(Ints x, int count) { return each_int([&](int i) { return x.lane[i] >> count; }); }
inline Ints shift_signed(Ints x, int count) { return each_int([&](int i) { return uint32_t(int32_t(x.lane[i]) >> count); }); }
inline Ints sign_of(Ints x) { return shift_signed(x, 31); }
inline Mask negative(Ints x) { return where([&](int i) { return x.lane[i] >> 31 != 0; }); }
inline Ints max_int(Ints a, Ints b) { return each_int([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; }); }
inline Mask at_least(Ints a, Ints b) { return where([&](int i) { return a.lane[i] >= b.lane[i]; }); }
inline Wide splat_wide(uint64_t x) { return each_slot([=](int) { return x; }); }
inline Wide load_wide(const uint64_t* p) { return each_slot([=](int i) { return p[i]; }); }
inline Wide add_wide(Wide a, Wide b) { return each_slot([&](int i) { return a.slot[i] + b.slot[i]; }); }
inline Wide flip(Wide a, Wide b) { return each_slot([&](int i) { return a.slot[i] ^ b.slot[i]; }); }
inline Wide multiply_low(Wide a, Wide b) {
  return each_slot([&](int i) { return uint64_t(uint32_t(a.slot[i])) * uint32_t(b.slot[i]); });
}
inline Wide high_half(Wide x) { return each_slot([&](int i) { return x.slot[i] >> 32; }); }
inline Wide even_lanes(Ints x) { return each_slot([&](int i) { return uint64_t(x.lane[2 * i]); }); }
inline Wide odd_lanes(Ints x) { return each_slot([&](int i) { return uint64_t(x.lane[2 * i + 1]); }); }
inline Ints pair(Wide low, Wide high) {
  return each_int([&](int i) { return uint32_t((i % 2 ? high : low).slot[i / 2]); });
}
inline void in_order(const Wide (&words)[4], Ints (&out)[2]) {
  for (int k = 0; k < 2; ++k)
    out[k] = each_int([&](int i) { return uint32_t(words[i % 4].slot[i / 4 * 2 + k]); });
}

#endif

#if LSP_ISA_BITS
// The largest lane as a signed integer. The instruction at hand finds the smallest of eight unsigned ones.
inline uint16_t max_lane16(Vec16 x) {
  const __m128i falling = _mm_xor_si128(max_of_eighths(x), _mm_set1_epi16(0x7fff));
  return uint16_t(_mm_cvtsi128_si32(_mm_minpos_epu16(falling)) ^ 0x7fff);
}
#endif

// The number of the lowest bit that is set; there is one.
inline int lowest_bit(uint32_t bits) {
#if defined(__GNUC__)
  return __builtin_ctz(bits);
#else
  int out = 0;
  while ((bits >> out & 1) == 0) ++out;
  return out;
#endif
}

// Prefetches the n values that are 4 KiB further on: the processor's own prefetchers stop at the end of a page.
template <class T>
inline void prefetch_ahead(const T* x, int n) {
#if defined(__GNUC__)
  const char* p = reinterpret_cast<const char*>(x) + 4096;
  for (size_t line = 0; line < n * sizeof(T); line += 64) __builtin_prefetch(p + line);
#endif
}

inline float sum_lanes(Vec x) {
  float lane[LANES], out = 0;
  store(lane, x);
  for (float value : lane) out += value;
  return out;
}

// e^x in place for four vectors of x <= 80, relative error below 4e-6; x below -87 counts as -87. Four vectors go through
// each stage together, because one alone is a chain of instructions that wait for each other.
inline void exp(Vec (&x)[4]) {
  const Vec log2e = splat(1.44269504f), shift = splat(0x1.8p23f), lowest = splat(-87.0f);
  Vec biased[4], p[4];
  for (int k = 0; k < 4; ++k) x[k] = larger(x[k], lowest);
  for (int k = 0; k < 4; ++k) biased[k] = fma(x[k], log2e, shift);  // round(x * log2 e) in the low bits
  for (int k = 0; k < 4; ++k) x[k] = fma(x[k], log2e, sub(shift, biased[k]));
  for (int k = 0; k < 4; ++k) p[k] = fma(x[k], splat(9.56051021e-3f), splat(5.59170392e-2f));
  for (int k = 0; k < 4; ++k) p[k] = fma(x[k], p[k], splat(2.40249811e-1f));
  for (int k = 0; k < 4; ++k) p[k] = fma(x[k], p[k], splat(6.93121968e-1f));
  for (int k = 0; k < 4; ++k) p[k] = fma(x[k], p[k], splat(9.99999191e-1f));
  for (int k = 0; k < 4; ++k) x[k] = scale2(p[k], biased[k]);
}
