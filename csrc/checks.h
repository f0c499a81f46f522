// What the operators check of their arguments before they touch any data: dimensions, sizes, dtypes, strides and, of lengths
// and borders, the values. Every error names the argument. That all tensors are on the CPU is known: torch chooses a kernel
// by the devices of all its arguments.
#pragma once

#include "tensors.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

namespace LSP_NAMESPACE {

constexpr int64_t MOST_ROWS = std::numeric_limits<int32_t>::max();  // of all sequences together; lengths are int32

[[noreturn]] inline void fail_shape(const char* name, const std::string& expected, const Tensor& tensor) {
  std::string got;
  for (int64_t d = 0; d < tensor.dim(); ++d) got += (d ? ", " : "") + std::to_string(tensor.size(d));
  fail(std::string("Invalid shape of ") + name + ": expected " + expected + ", got [" + got + "]");
}

[[noreturn]] inline void fail_value(const std::string& name, const std::string& expected, int64_t got) {
  fail("Invalid " + name + ": expected " + expected + ", got " + std::to_string(got));
}

inline std::string at(const char* name, int64_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

inline void check_dtype(const char* name, const Tensor& tensor, int32_t dtype, const char* expected) {
  if (tensor.dtype() != dtype) fail(std::string("Invalid dtype of ") + name + ": expected " + expected + ", got another");
}

inline void check_last_stride(const char* name, const Tensor& tensor, int64_t dims) {
  if (tensor.size(dims - 1) > 1 && tensor.stride(dims - 1) != 1)
    fail(std::string("Invalid strides of ") + name + ": expected the last dimension to be contiguous, got a stride of " +
         std::to_string(tensor.stride(dims - 1)));
}

// Checks a contiguous table of one dimension with entries of this dtype; returns how many there are.
inline int64_t check_table(const char* name, const Tensor& tensor, int32_t dtype, const char* expected) {
  if (tensor.dim() != 1) fail_shape(name, "one dimension", tensor);
  check_dtype(name, tensor, dtype, expected);
  const int64_t size = tensor.size(0);
  if (size > 1 && tensor.stride(0) != 1)
    fail(std::string("Invalid strides of ") + name + ": expected contiguous, got a stride of " + std::to_string(tensor.stride(0)));
  return size;
}

inline void check_lengths(const char* name, const MaybeTensor& tensor, int64_t batch) {
  if (tensor && check_table(name, *tensor, aoti_torch_dtype_int32(), "int32") != batch)
    fail_shape(name, "[" + std::to_string(batch) + "]", *tensor);
}

// Checks the shape of borders [B + 1] and returns B.
inline int64_t check_borders(const char* name, const Tensor& tensor) {
  const int64_t size = check_table(name, tensor, aoti_torch_dtype_int32(), "int32");
  if (size < 1) fail_shape(name, "[B + 1]", tensor);
  return size - 1;
}

struct Span {
  int64_t begin, end;
};

// The rows of sequence b, from borders that must not decrease and stay within `length` rows; all rows without borders.
inline Span rows_of(const char* name, const int32_t* borders, int64_t b, int64_t length) {
  if (!borders) return {0, length};
  const int64_t begin = borders[b], end = borders[b + 1];
  if (begin < 0 || end < begin || end > length)
    fail_value(at(name, b + 1), "non-decreasing borders from 0 to " + std::to_string(length), end);
  return {begin, end};
}

// A value from `least` to `most`.
inline int64_t in_range(const char* name, int64_t b, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail_value(at(name, b), std::to_string(least) + " to " + std::to_string(most), value);
  return value;
}

}  // namespace LSP_NAMESPACE
