// Fresh contiguous CPU tensors.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace lsp {

// torch::stable::empty finds its operator by name, which takes longer than a small call has.
inline torch::stable::Tensor empty_cpu(const int64_t* sizes, int64_t dims, int32_t dtype) {
  int64_t strides[4], stride = 1;
  for (int64_t d = dims; d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides[d] = stride;
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dims, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  torch::stable::Tensor out(handle);
  const char* poison = std::getenv("LSP_POISON");  // tests: what nobody writes shall be seen
  if (poison && *poison == '1') std::memset(out.mutable_data_ptr(), 0xff, out.numel() * out.element_size());
  return out;
}

}  // namespace lsp
