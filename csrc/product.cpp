// linear for CPU tensors: x W^T + b by the tiles of the LM head. A result does not depend on the other rows, so it is the same
// in every batch.
#include "checks.h"
#include "head.h"
#include "operators.h"

#include <algorithm>
#include <type_traits>

#define LSP_ISA_WITH_PAIRS
#define LSP_ISA_SOURCE "product_blocks.h"
#include "foreach_isa.h"

#include "head_rows.h"
#include "parallel.h"

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace LSP_NAMESPACE {
namespace {

constexpr int64_t RANGES = 64;  // of the outputs, at most: each is one task, whatever the number of threads

void check_operands(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const MaybeTensor& scales) {
  const int64_t dims = x.dim();
  if (dims != 2 && dims != 3) fail_shape("x", "[T, d] or [B, T, d]", x);
  if (weight.dim() != 2) fail_shape("weight", "[F, d]", weight);
  const int64_t size = x.size(dims - 1), outputs = weight.size(0);
  if (size < 1) fail_shape("x", "at least one value in the last dimension", x);
  if (dims == 3 && x.size(1) > 0 && x.size(0) > MOST_ROWS / x.size(1)) fail_shape("x", "less than 2^31 rows", x);
  if (dims == 2 && x.size(0) > MOST_ROWS) fail_shape("x", "less than 2^31 rows", x);
  if (weight.size(1) != size) fail_shape("weight", "[F, " + std::to_string(size) + "]", weight);
  if (outputs < 1 || outputs > MOST_ROWS) fail_shape("weight", "1 to 2^31 - 1 rows", weight);
  if (scales) {
    check_dtype("weight", weight, aoti_torch_dtype_int8(), "int8 with scales");
    if (check_table("scales", *scales, aoti_torch_dtype_float32(), "float32") != outputs) fail_shape("scales", "[F]", *scales);
  } else {
    check_dtype("weight", weight, x.dtype(), "the dtype of x, or int8 with scales");
  }
  check_last_stride("x", x, dims);
  check_last_stride("weight", weight, 2);
  if (bias && check_table("bias", *bias, x.dtype(), "the dtype of x") != outputs) fail_shape("bias", "[F]", *bias);
}

template <class T>
std::vector<const T*> rows_of(const Tensor& x) {
  const int64_t dims = x.dim(), batch = dims == 3 ? x.size(0) : 1, length = x.size(dims - 2);
  std::vector<const T*> out;
  out.reserve(batch * length);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < length; ++t)
      out.push_back(data_of<T>(x) + (dims == 3 ? b * x.stride(0) : 0) + t * x.stride(dims - 2));
  return out;
}

template <class Blocks, class T, class W>
void multiply(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const MaybeTensor& scales, T* to) {
  const PackedRows<Blocks, T, W> rows(rows_of<T>(x), weight.size(1));
  const int64_t count = rows.count, outputs = weight.size(0), grains = (outputs + IDS - 1) / IDS;
  const int64_t length = (grains + RANGES - 1) / RANGES * IDS, ranges = (outputs + length - 1) / length;
  const int64_t blocks = (count + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
  parallel_tasks(ranges * blocks, length * rows.size, [&](int64_t task) {
    static thread_local std::unique_ptr<HeadMemory> memory(new HeadMemory);
    const int64_t range = task / blocks, row = task % blocks * ROWS_AT_ONCE, end = std::min(outputs, (range + 1) * length);
    for (int64_t id = range * length; id < end; id += rows.at_once()) {
      const Product<T, W> product = rows.product(weight, bias, row, id, std::min(end, id + rows.at_once()));
      Blocks::run(product, data_or_null<float>(scales), to + row * outputs, outputs, *memory);
    }
  });
}

std::tuple<Tensor> linear(Tensor x, Tensor weight, MaybeTensor bias, MaybeTensor scales) {
  check_operands(x, weight, bias, scales);
  const int64_t dims = x.dim();
  int64_t sizes[3];
  std::copy_n(x.sizes(), dims - 1, sizes);
  sizes[dims - 1] = weight.size(0);
  Tensor out = empty_cpu(sizes, dims, x.dtype());
  on_current_isa([&](auto blocks) {
    with_dtype("x", x, [&](auto zero) {
      using Blocks = decltype(blocks);
      using T = decltype(zero);
      T* to = mutable_data_of<T>(out);
      if (scales) return multiply<Blocks, T, int8_t>(x, weight, bias, scales, to);
      multiply<Blocks, T, T>(x, weight, bias, scales, to);
    });
  });
  return {std::move(out)};
}

}  // namespace

void add_product(CpuKernels& kernels) { kernels.add<&linear>("linear"); }

}  // namespace LSP_NAMESPACE
