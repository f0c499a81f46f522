// What the operations share: tensors and their data, fresh outputs, and the choice of a dtype.
#pragma once

#include "errors.h"
#include "types.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

namespace LSP_NAMESPACE {

// A tensor of torch, owned.
class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle) : handle(handle) {}
  Tensor(Tensor&& other) noexcept : handle(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle, other.handle);
    return *this;
  }
  ~Tensor() {
    if (handle) aoti_torch_delete_tensor_object(handle);
  }
  AtenTensorHandle release() noexcept { return std::exchange(handle, nullptr); }
  AtenTensorHandle get() const { return handle; }

  int64_t dim() const { return ask<int64_t, aoti_torch_get_dim>(); }
  int64_t numel() const { return ask<int64_t, aoti_torch_get_numel>(); }
  int32_t dtype() const { return ask<int32_t, aoti_torch_get_dtype>(); }
  bool is_contiguous() const { return ask<bool, aoti_torch_is_contiguous>(); }
  const int64_t* sizes() const { return ask<int64_t*, aoti_torch_get_sizes>(); }
  int64_t size(int64_t d) const { return ask<int64_t, aoti_torch_get_size>(d); }
  int64_t stride(int64_t d) const { return ask<int64_t, aoti_torch_get_stride>(d); }
  const void* const_data_ptr() const { return ask<const void*, torch_get_const_data_ptr>(); }
  void* mutable_data_ptr() const { return ask<void*, torch_get_mutable_data_ptr>(); }

 private:
  template <class T, auto question, class... Arguments>
  T ask(Arguments... arguments) const {
    T out;
    check(question(handle, arguments..., &out), "reading the shape or the data of a tensor");
    return out;
  }

  AtenTensorHandle handle;
};

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

// A fresh contiguous CPU tensor.
inline Tensor empty_cpu(const int64_t* sizes, int64_t dims, int32_t dtype) {
  int64_t strides[4], stride = 1;
  for (int64_t d = dims; d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides[d] = stride;
  AtenTensorHandle handle;
  check(aoti_torch_empty_strided(dims, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle),
        "allocating a tensor");
  Tensor out(handle);
  const char* poison = std::getenv("LSP_POISON");  // set by tests: an output that is never written then holds NaN
  if (poison && *poison == '1')
    std::memset(out.mutable_data_ptr(), 0xff, out.numel() * aoti_torch_dtype_element_size(dtype));
  return out;
}

// The tensor itself if it is contiguous, else a copy that is.
inline Tensor contiguous(Tensor tensor) {
  if (tensor.is_contiguous()) return tensor;
  Tensor out = empty_cpu(tensor.sizes(), tensor.dim(), tensor.dtype());
  check(aoti_torch_copy_(out.get(), tensor.get(), 0), "copying a tensor");
  return out;
}

// Calls f with a value of the type that the tensor holds.
template <class F>
void with_dtype(const char* name, const Tensor& tensor, const F& f) {
  const int32_t dtype = tensor.dtype();
  if (dtype == aoti_torch_dtype_float32()) return f(float());
  if (dtype == aoti_torch_dtype_bfloat16()) return f(BFloat16());
  if (dtype == aoti_torch_dtype_float16()) return f(Half());
  fail(std::string("Invalid dtype of ") + name + ": expected float32, bfloat16 or float16");
}

}  // namespace LSP_NAMESPACE
