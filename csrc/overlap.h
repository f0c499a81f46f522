// Whether tensors share memory that a kernel would write. What is written must not share elements with itself (as after
// expand), with what else is written, or with what is read: caches with the tokens of a pass, heads with tables, a residual
// with what is added to it.
#pragma once

#include "checks.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>

namespace LSP_NAMESPACE {

// The memory of a tensor with up to four dimensions. Dimensions of one element are left out.
struct Extent {
  const char *begin, *end;
  int64_t count = 0, bytes;      // dimensions, and bytes of an element
  int64_t sizes[4], strides[4];  // by falling stride, in elements
  bool empty = false;

  explicit Extent(const Tensor& tensor) : bytes(aoti_torch_dtype_element_size(tensor.dtype())) {
    begin = static_cast<const char*>(tensor.const_data_ptr());
    int64_t last = 0;
    const int64_t dims = tensor.dim();
    for (int64_t d = 0; d < dims; ++d) {
      const int64_t size = tensor.size(d), stride = tensor.stride(d);
      empty |= size == 0;
      if (size == 1) continue;
      last += (size - 1) * stride;
      int64_t i = count++;
      for (; i > 0 && strides[i - 1] < stride; --i) strides[i] = strides[i - 1], sizes[i] = sizes[i - 1];
      strides[i] = stride, sizes[i] = size;
    }
    end = begin + (last + 1) * bytes;
  }

  // How far dimension d and those after it reach, in elements.
  int64_t reach(int64_t d) const {
    int64_t out = 0;
    for (; d < count; ++d) out += (sizes[d] - 1) * strides[d];
    return out;
  }

  // Whether every index has an element of its own. A layout in which dimensions interlock counts as one that does not.
  bool overlaps_itself() const {
    for (int64_t d = 0; d < count && !empty; ++d)
      if (strides[d] <= reach(d + 1)) return true;
    return false;
  }

  bool meets(const Extent& other) const { return !empty && !other.empty && begin < other.end && other.begin < end; }

  // Whether two indices differ by `distance` elements in memory.
  bool contains(int64_t distance, int64_t d = 0) const {
    if (d == count) return distance == 0;
    const int64_t stride = strides[d], rest = reach(d + 1);
    for (int64_t step = std::max(1 - sizes[d], (distance - rest) / stride - 1); step < sizes[d]; ++step) {
      const int64_t left = distance - step * stride;
      if (left < -rest) break;
      if (left <= rest && contains(left, d + 1)) return true;
    }
    return false;
  }

  // Exact for tensors of one layout, such as two slices of one block; others share memory if their ranges meet.
  bool shares_with(const Extent& other) const {
    if (!meets(other)) return false;
    const bool alike = count == other.count && std::equal(strides, strides + count, other.strides) &&
                       std::equal(sizes, sizes + count, other.sizes) && (other.begin - begin) % bytes == 0;
    return !alike || contains((other.begin - begin) / bytes);
  }
};

inline void check_overlap(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache) {
  const Extent caches[] = {Extent(k_cache), Extent(v_cache)}, tokens[] = {Extent(q), Extent(k), Extent(v)};
  const char *cache_names[] = {"k_cache", "v_cache"}, *token_names[] = {"q", "k", "v"};
  for (int i = 0; i < 2; ++i) {
    if (caches[i].overlaps_itself())
      fail(std::string("Invalid strides of ") + cache_names[i] + ": expected an element of its own for every index, got overlap");
    for (int j = 0; j < 3; ++j)
      if (caches[i].meets(tokens[j]))
        fail(std::string("Invalid ") + token_names[j] + ": expected memory outside of the caches, got memory of " + cache_names[i]);
  }
  if (caches[0].shares_with(caches[1])) fail("Invalid v_cache: expected memory of its own, got memory of k_cache");
}

// A tensor that is written in place: an element of its own for every index, and memory that none of `others` has.
inline void check_written(const char* name, const Tensor& tensor, std::initializer_list<const Tensor*> others) {
  const Extent own(tensor);
  if (own.overlaps_itself())
    fail(std::string("Invalid strides of ") + name + ": expected an element of its own for every index, got overlap");
  for (const Tensor* other : others)
    if (own.meets(Extent(*other))) fail(std::string("Invalid ") + name + ": expected memory of its own, got memory of another operand");
}

// Heads [T, H, D] of two kinds. Side by side in every token, as in a fused projection, they share no memory; heads that
// take turns count as shared.
inline void check_apart(const Tensor& q, const Tensor& k) {
  const Extent a(q), b(k);
  if (!a.meets(b)) return;
  const int64_t step = q.stride(0), bytes = b.begin - a.begin;
  const auto end = [](const Tensor& x) { return (x.size(1) - 1) * x.stride(1) + (x.size(2) - 1) * x.stride(2); };
  if (bytes % a.bytes == 0 && k.stride(0) == step && step > 0) {
    const int64_t distance = (bytes / a.bytes % step + step) % step;
    if (end(q) < distance && distance < step - end(k)) return;
  }
  fail("Invalid k: expected memory of its own, got memory of q");
}

// A result that the caller gives: contiguous, of these sizes, and memory of its own.
inline void check_result(const char* name, const Tensor& result, const int64_t* sizes, int64_t dims, int32_t dtype,
                         const char* its_dtype, std::initializer_list<const Tensor*> others) {
  if (result.dim() != dims || !std::equal(sizes, sizes + dims, result.sizes())) fail_shape(name, "the shape of the queries", result);
  check_dtype(name, result, dtype, its_dtype);
  if (!result.is_contiguous()) fail(std::string("Invalid strides of ") + name + ": expected contiguous, got others");
  const Extent own(result);
  for (const Tensor* other : others)
    if (own.meets(Extent(*other))) fail(std::string("Invalid ") + name + ": expected memory of its own, got memory of another operand");
}

}  // namespace LSP_NAMESPACE
