// The results of the operations on rows: what was not asked for is an empty tensor.
#pragma once

#include "sequences.h"
#include "top2.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

namespace LSP_NAMESPACE {

using SixTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// One float32 per row of a tensor [..., V] or [..., d], or nothing.
class Column {
 public:
  Column(const Tensor& rows, bool asked) : tensor(asked ? empty_rows(rows, aoti_torch_dtype_float32()) : nothing()) {
    if (asked) data = mutable_data_of<float>(tensor);
  }
  explicit operator bool() const { return data != nullptr; }
  float& operator[](int64_t i) const { return data[i]; }
  void fill(float value) {
    if (data) std::fill_n(data, tensor.numel(), value);
  }

  Tensor tensor;
  float* data = nullptr;

 private:
  static Tensor nothing() {
    const int64_t size = 0;
    return empty_cpu(&size, 1, aoti_torch_dtype_float32());
  }
};

// What token_stats gives. `others` is the number of allowed ids but one. Zeros have no sign, so that a result does not
// depend on which of two equal zeros came first.
struct StatsResults {
  StatsResults(const Tensor& rows, int64_t vocabulary, const Suppressed& suppressed, int64_t id_offset, bool noise, bool entropy)
      : tokens(empty_rows(rows, aoti_torch_dtype_int64())), top1(rows, true), top2(rows, true), log_odds(rows, true),
        entropies(rows, entropy), clean(rows, noise), token(mutable_data_of<int64_t>(tokens)),
        others(vocabulary - suppressed.count - 1), id_offset(id_offset) {}

  void write(int64_t i, const Top2& row) const {
    token[i] = row.token + id_offset;
    top1[i] = row.first + 0.0f;
    top2[i] = row.nan ? NAN : row.second + 0.0f;
    log_odds[i] = row.log_odds(others);
    if (entropies) entropies[i] = row.entropy(others);
    if (clean) clean[i] = row.clean + 0.0f;
  }
  SixTensors release() {
    return {std::move(tokens), std::move(top1.tensor), std::move(top2.tensor), std::move(log_odds.tensor),
            std::move(entropies.tensor), std::move(clean.tensor)};
  }

  Tensor tokens;
  Column top1, top2, log_odds, entropies, clean;
  int64_t* token;
  int64_t others, id_offset;
};

// What commit_prefix gives. Rows that are not scored keep -1 and -inf.
struct CommitResults {
  CommitResults(const Tensor& rows, int64_t vocabulary, const Suppressed& suppressed, bool with_log_odds)
      : tokens(empty_rows(rows, aoti_torch_dtype_int64())), margins(rows, true), top1(rows, true),
        log_odds(rows, with_log_odds), token(mutable_data_of<int64_t>(tokens)), others(vocabulary - suppressed.count - 1) {
    std::fill_n(token, tokens.numel(), -1);
    for (Column* column : {&margins, &top1, &log_odds}) column->fill(-INFINITY);
  }

  void write(int64_t i, const Top2& row) const {
    token[i] = row.token;
    margins[i] = row.margin();
    top1[i] = row.first + 0.0f;  // never -0.0
    if (log_odds) log_odds[i] = row.log_odds(others);
  }
  SixTensors release(const std::vector<Sequence>& sequences, const Rule& rule) {
    auto [lengths, finished] = select_all(sequences, rule, margins.data, token);
    return {std::move(lengths), std::move(finished), std::move(tokens), std::move(margins.tensor), std::move(top1.tensor),
            std::move(log_odds.tensor)};
  }

  Tensor tokens;
  Column margins, top1, log_odds;
  int64_t* token;
  int64_t others;
};

}  // namespace LSP_NAMESPACE
