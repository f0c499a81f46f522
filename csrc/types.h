// The two 16-bit storage types. They are converted to float32 when they are loaded; nothing is computed in 16 bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace lsp {

struct BFloat16 {
  static constexpr uint16_t INFINITE = 0x7f80;
  uint16_t bits;
};

struct Half {
  static constexpr uint16_t INFINITE = 0x7c00;
  uint16_t bits;
};

inline float to_float(float x) { return x; }

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

}  // namespace lsp
