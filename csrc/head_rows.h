// The rows of a call, for every instruction set: where they are, and side by side if they are one chunk.
#pragma once

#include "head.h"
#include "parallel.h"
#include "tensors.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace LSP_NAMESPACE {

template <class Blocks, class T, class W = T>
struct PackedRows {
  PackedRows(std::vector<const T*> given, int64_t size) : count(given.size()), size(size), places(std::move(given)) {
    if (!one_chunk(count, size)) return;
    packed.reset(new float[Blocks::packed_size(count, size)]);
    parallel_tasks((count + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, ROWS_AT_ONCE * size, [&](int64_t task) {
      const int64_t row = task * ROWS_AT_ONCE, here = std::min(ROWS_AT_ONCE, count - row);
      Blocks::template pack<W>(places.data() + row, here, size, packed.get() + Blocks::packed_size(row, size));
    });
  }

  // The rows of a task, from `row` on, against the ids [begin, end).
  Product<T, W> product(const Tensor& weight, const MaybeTensor& bias, int64_t row, int64_t begin, int64_t end) const {
    return {places.data() + row,
            std::min(ROWS_AT_ONCE, count - row),
            packed ? packed.get() + Blocks::packed_size(row, size) : nullptr,
            data_of<W>(weight),
            weight.stride(0),
            data_or_null<T>(bias),
            size,
            begin,
            end};
  }
  // Ids of a product, at most: the results of all of them are kept where rows are several chunks.
  int64_t at_once() const { return packed ? 2048 : 6 * IDS; }

  int64_t count, size;
  std::vector<const T*> places;
  std::unique_ptr<float[]> packed;
};

}  // namespace LSP_NAMESPACE
