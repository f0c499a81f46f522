// Which noise the rows of a call get: the table of a `Noise`, checked. The noise itself is made in noise_blocks.h.
#pragma once

#include "checks.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

namespace LSP_NAMESPACE {

constexpr double LARGEST_NOISE = 22.9;  // no noise is larger, at a temperature of 1
constexpr float HIGHEST_TEMPERATURE = 1e30f;

// What the noise of one row is made of.
struct RowNoise {
  uint32_t seed[2], position, pass;
  float temperature;
};

// The table of a call, [..., 3] for rows [...]: seed; position and pass; the bits of the temperature.
struct NoiseTable {
  const int64_t* data = nullptr;  // nullptr without noise

  RowNoise row(int64_t i) const {
    const int64_t* at = data + 3 * i;
    RowNoise out{{uint32_t(at[0]), uint32_t(uint64_t(at[0]) >> 32)}, uint32_t(at[1]), uint32_t(uint64_t(at[1]) >> 32), 0};
    const auto bits = uint32_t(at[2]);
    std::memcpy(&out.temperature, &bits, 4);
    return out;
  }
};

inline void check_noise_values(const NoiseTable& table, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    const RowNoise noise = table.row(i);
    if (noise.position > MOST_ROWS) fail_value("positions of noise", "0 to 2^31 - 1", noise.position);
    if (noise.pass > MOST_ROWS) fail_value("passes of noise", "0 to 2^31 - 1", int32_t(noise.pass));
    if (!(noise.temperature >= 0 && noise.temperature <= HIGHEST_TEMPERATURE))
      fail("Invalid temperature of noise: expected 0 to 1e30, got " + std::to_string(noise.temperature));
  }
}

// The noise of the rows of a tensor [..., V] or [..., d].
inline NoiseTable noise_of(const MaybeTensor& noise, const Tensor& rows) {
  if (!noise) return {};
  const int64_t dims = rows.dim();
  if (noise->dim() != dims || !std::equal(rows.sizes(), rows.sizes() + dims - 1, noise->sizes()) || noise->size(dims - 1) != 3)
    fail_shape("noise", "three numbers for each row", *noise);
  check_dtype("noise", *noise, aoti_torch_dtype_int64(), "int64");
  if (!noise->is_contiguous()) fail("Invalid strides of noise: expected contiguous, got others");
  const NoiseTable table{data_of<int64_t>(*noise)};
  check_noise_values(table, noise->numel() / 3);
  return table;
}

// An integer from which on the noise may exceed `level`; 2^32 if it never does. The noise of an integer grows with it, and
// noise_blocks.h is wrong by less than the 1e-4 that are taken off the level.
inline uint64_t least_integer(double level) {
  if (level - 1e-4 > LARGEST_NOISE) return uint64_t(1) << 32;
  const double u = std::exp(-std::exp(1e-4 - level));
  return uint64_t(std::max(std::floor(u * 0x1p32) - 1, 0.0));
}

}  // namespace LSP_NAMESPACE
