// The two 16-bit storage types. Values are converted to float32 when they are loaded, or multiplied exactly and added in
// float32; only results are rounded to 16 bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace LSP_NAMESPACE {

struct BFloat16 {
  static constexpr uint16_t INFINITE = 0x7f80;
  uint16_t bits;
};

struct Half {
  static constexpr uint16_t INFINITE = 0x7c00;
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(int8_t x) { return float(x); }

inline float to_float(BFloat16 x) {
  uint32_t wide = uint32_t(x.bits) << 16;
  float out;
  std::memcpy(&out, &wide, 4);
  return out;
}

inline float to_float(Half x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31, mantissa = x.bits & 1023;
  uint32_t wide;
  float out;
  if (exponent == 31) {  // infinity and NaN
    wide = 0x7f800000u | mantissa << 13;
  } else if (exponent != 0) {
    wide = (exponent + 112) << 23 | mantissa << 13;
  } else {  // zero and subnormal: mantissa * 2^-24, exact in float32
    out = float(mantissa) * 0x1p-24f;
    std::memcpy(&wide, &out, 4);
  }
  wide |= sign;
  std::memcpy(&out, &wide, 4);
  return out;
}

// Rounds to the nearest value, ties to even.
inline void round_to(float x, float& out) { out = x; }

inline void round_to(float x, BFloat16& out) {
  uint32_t wide;
  std::memcpy(&wide, &x, 4);
  out.bits = x != x ? 0x7fc0 : uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

inline void round_to(float x, Half& out) {
  uint32_t wide;
  std::memcpy(&wide, &x, 4);
  const uint32_t sign = wide >> 16 & 0x8000, size = wide & 0x7fffffff;
  if (size > 0x7f800000) {
    out.bits = uint16_t(sign | 0x7e00);
  } else if (size >= 0x477ff000) {  // rounds to 65536 or more
    out.bits = uint16_t(sign | 0x7c00);
  } else if (size >= 0x38800000) {  // normal: drop 13 bits
    out.bits = uint16_t(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
  } else {  // subnormal: the addition rounds to a multiple of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &size, 4);
    magnitude += 0.5f;
    std::memcpy(&wide, &magnitude, 4);
    out.bits = uint16_t(sign | (wide - 0x3f000000));
  }
}

}  // namespace LSP_NAMESPACE
