// What the operations on rows share: which rows belong to which sequence, the tables of the vocabulary, and the rule.
#pragma once

#include "checks.h"
#include "rule.h"
#include "tensors.h"
#include "top2.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace LSP_NAMESPACE {

struct Row {
  int64_t offset;  // elements from the tensor's first to that of the row
  int64_t out;     // index in the outputs
};

struct Sequence {
  int64_t offset, row_stride;  // elements from the tensor's first to the first active row, and from row to row
  int64_t out;                 // index of the first active row in the outputs
  int64_t rows, n_active;      // number of rows given from there on, and N
};

inline void check_tables(const MaybeTensor& flags, const MaybeTensor& suppressed, int64_t lowest, int64_t vocabulary) {
  if (flags && check_table("flags", *flags, aoti_torch_dtype_uint8(), "uint8") != vocabulary)
    fail_shape("flags", "[V]", *flags);
  if (suppressed) check_table("suppressed", *suppressed, aoti_torch_dtype_int32(), "int32");
  if (lowest < 0 || lowest >= vocabulary) fail_value("lowest", "an id from 0 to " + std::to_string(vocabulary - 1), lowest);
}

// All ids of a shard that begins with `id_offset` fit into 31 bits.
inline void check_offset(int64_t id_offset, int64_t vocabulary) {
  if (id_offset < 0 || id_offset > MOST_ROWS - vocabulary)
    fail_value("id_offset", "0 to " + std::to_string(MOST_ROWS - vocabulary), id_offset);
}

inline void check_rule(const Rule& rule) {
  const auto within = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) fail_value(name, std::to_string(least) + " to " + std::to_string(most), value);
  };
  within("beta_ppm", rule.beta_ppm, 1, MILLION);
  if (!rule.has_floor) within("alpha_ppm", rule.alpha_ppm, 1, rule.beta_ppm);
  within("min_length", rule.min_length, 1, MOST_ROWS);
  within("window", rule.window, 0, MOST_ROWS);
  if (rule.has_floor && !(rule.floor >= 0)) fail("Invalid floor: expected a number >= 0, got " + std::to_string(rule.floor));
}

// The sequences of a batch [B, L, ...] (dims 2) or of packed rows [R, ...] (dims 1). Without a rule, N is not limited.
inline std::vector<Sequence> sequences_of(const char* name, const Tensor& rows, int64_t dims, const MaybeTensor& cu_rows,
                                   const MaybeTensor& n_active, const MaybeTensor& starts, const Rule* rule) {
  if (dims == 2 && cu_rows) fail("Invalid cu_rows: expected None with a batch of sequences, got a tensor");
  const int64_t length = rows.size(dims - 1), row_stride = rows.stride(dims - 1);
  const int64_t batch = dims == 2 ? rows.size(0) : cu_rows ? check_borders("cu_rows", *cu_rows) : 1;
  if (length > MOST_ROWS || batch > MOST_ROWS || (dims == 2 && batch * length > MOST_ROWS))
    fail_shape(name, "at most 2^31 - 1 rows", rows);
  check_lengths("n_active", n_active, batch);
  check_lengths("starts", starts, batch);
  const int32_t *borders = data_or_null<int32_t>(cu_rows), *active = data_or_null<int32_t>(n_active),
                *first = data_or_null<int32_t>(starts);
  std::vector<Sequence> out(batch);
  for (int64_t b = 0; b < batch; ++b) {
    const Span span = rows_of("cu_rows", borders, b, length);
    const int64_t start = first ? in_range("starts", b, first[b], 0, span.end - span.begin) : 0;
    const int64_t row = span.begin + start, given = span.end - row;
    const int64_t n = active ? in_range("n_active", b, active[b], 0, MOST_ROWS) : given;
    if (rule && rule->scored_rows(n) > given)
      fail_value(at("n_active", b), "as many rows as the rule looks at, " + std::to_string(rule->scored_rows(n)), given);
    const int64_t base = dims == 2 ? b * rows.stride(0) : 0, out_base = dims == 2 ? b * length : 0;
    out[b] = {base + row * row_stride, row_stride, out_base + row, given, n};
  }
  return out;
}

inline std::vector<Row> all_rows(const std::vector<Sequence>& sequences) {
  std::vector<Row> out;
  for (const Sequence& s : sequences)
    for (int64_t i = 0; i < s.rows; ++i) out.push_back({s.offset + i * s.row_stride, s.out + i});
  return out;
}

// The rows that the rule looks at.
inline std::vector<Row> scored_rows(const std::vector<Sequence>& sequences, const Rule& rule) {
  std::vector<Row> out;
  for (const Sequence& s : sequences)
    for (int64_t i = 0, scored = rule.scored_rows(s.n_active); i < scored; ++i)
      out.push_back({s.offset + i * s.row_stride, s.out + i});
  return out;
}

inline Suppressed suppressed_of(const MaybeTensor& ids, int64_t lowest) {
  return {data_or_null<int32_t>(ids), ids ? ids->numel() : 0, lowest};
}

inline Tensor empty_rows(const Tensor& rows, int32_t dtype) {
  return empty_cpu(rows.sizes(), rows.dim() - 1, dtype);
}

inline Rule rule_of(const MaybeTensor& flags, int64_t alpha_ppm, int64_t beta_ppm, int64_t min_length, int64_t window,
             std::optional<double> floor, bool snap, bool keep) {
  const Rule rule{alpha_ppm, beta_ppm, min_length, window, floor.has_value(), float(floor.value_or(0)), snap, keep,
                  data_or_null<uint8_t>(flags), flags ? flags->numel() : 0};
  check_rule(rule);
  return rule;
}

// The rule for every sequence, on contiguous margins and tokens.
inline std::tuple<Tensor, Tensor> select_all(const std::vector<Sequence>& sequences, const Rule& rule, const float* margins,
                                      const int64_t* tokens) {
  const int64_t batch = sequences.size();
  Tensor lengths = empty_cpu(&batch, 1, aoti_torch_dtype_int32()), finished = empty_cpu(&batch, 1, aoti_torch_dtype_bool());
  auto* length = mutable_data_of<int32_t>(lengths);
  auto* done = mutable_data_of<bool>(finished);
  for (int64_t b = 0; b < batch; ++b) {
    const Sequence& s = sequences[b];
    const Selection chosen = rule.select(margins + s.out, tokens + s.out, s.n_active);
    length[b] = chosen.length;
    done[b] = chosen.finished;
  }
  return {std::move(lengths), std::move(finished)};
}

}  // namespace LSP_NAMESPACE
