// What the operations share: their tensors' data, fresh outputs, the rows of a sequence, and the choice of a dtype.
#pragma once

#include "types.h"

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace LSP_NAMESPACE {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

template <class T>
const T* data_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <class T>
const T* data_or_null(const MaybeTensor& tensor) {
  return tensor ? data_of<T>(*tensor) : nullptr;
}

template <class T>
T* mutable_data_of(Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// A fresh contiguous CPU tensor. torch::stable::empty looks its operator up by name, which takes longer than a small call.
inline Tensor empty_cpu(const int64_t* sizes, int64_t dims, int32_t dtype) {
  int64_t strides[4], stride = 1;
  for (int64_t d = dims; d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides[d] = stride;
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dims, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  Tensor out(handle);
  const char* poison = std::getenv("LSP_POISON");  // set by tests: an output that is never written then holds NaN
  if (poison && *poison == '1') std::memset(out.mutable_data_ptr(), 0xff, out.numel() * out.element_size());
  return out;
}

struct Span {
  int64_t begin, end;
};

// The rows of sequence b: those between its borders, clamped to the `length` rows there are, or all without borders.
inline Span rows_of(const int32_t* borders, int64_t b, int64_t length) {
  if (!borders) return {0, length};
  const int64_t begin = std::clamp<int64_t>(borders[b], 0, length);
  return {begin, std::clamp<int64_t>(borders[b + 1], begin, length)};
}

// Calls f with a value of the type that the tensor holds.
template <class F>
void with_dtype(const char* name, const Tensor& tensor, const F& f) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return f(float());
    case ScalarType::BFloat16: return f(BFloat16());
    case ScalarType::Half: return f(Half());
    default: STD_TORCH_CHECK(false, "Invalid dtype of ", name, ": expected float32, bfloat16 or float16");
  }
}

}  // namespace LSP_NAMESPACE
