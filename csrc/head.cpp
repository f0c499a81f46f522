// linear_token_stats and linear_commit_prefix for CPU tensors: the LM head fused with the statistics. Logits never exist.
#include "head.h"
#include "checks.h"
#include "operators.h"
#include "sequences.h"

#include <algorithm>
#include <type_traits>

#define LSP_ISA_WITH_PAIRS
#define LSP_ISA_SOURCE "head_blocks.h"
#include "foreach_isa.h"

#include "parallel.h"

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace LSP_NAMESPACE {
namespace {

constexpr int64_t RANGES = 64;  // of the vocabulary, at most: each is one task, whatever the number of threads

// The hidden states [B, L, d] or packed [R, d], the weight [V, d] and the bias [V].
void check_operands(const Tensor& hidden, const Tensor& weight, const MaybeTensor& bias) {
  const int64_t dims = hidden.dim();
  if (dims != 2 && dims != 3) fail_shape("hidden", "[B, L, d] or [R, d]", hidden);
  if (weight.dim() != 2) fail_shape("weight", "[V, d]", weight);
  const int64_t size = hidden.size(dims - 1), vocabulary = weight.size(0);
  if (size < 1) fail_shape("hidden", "at least one value in the last dimension", hidden);
  if (weight.size(1) != size) fail_shape("weight", "[V, " + std::to_string(size) + "]", weight);
  if (vocabulary < 1 || vocabulary > MOST_ROWS) fail_shape("weight", "1 to 2^31 - 1 ids in the first dimension", weight);
  check_dtype("weight", weight, hidden.dtype(), "the dtype of hidden");
  check_last_stride("hidden", hidden, dims);
  check_last_stride("weight", weight, 2);
  if (bias && check_table("bias", *bias, hidden.dtype(), "the dtype of hidden") != vocabulary) fail_shape("bias", "[V]", *bias);
}

template <class Blocks, bool REST, class T, class Write>
void score_rows(const Tensor& hidden, const Tensor& weight, const MaybeTensor& bias, const std::vector<Row>& rows,
                const Suppressed& suppressed, Write write) {
  const int64_t count = rows.size(), vocabulary = weight.size(0), size = weight.size(1);
  std::vector<const T*> places(count);
  for (int64_t r = 0; r < count; ++r) places[r] = data_of<T>(hidden) + rows[r].offset;
  const int64_t grains = (vocabulary + GRAIN_OF_IDS - 1) / GRAIN_OF_IDS;
  const int64_t length = (grains + RANGES - 1) / RANGES * GRAIN_OF_IDS, at_once = ids_of(size);
  const int64_t ranges = (vocabulary + length - 1) / length, blocks = (count + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
  std::vector<Top2> found(ranges * count);

  // The tasks of a range follow each other, so that its weights may still be in the cache.
  parallel_tasks(ranges * blocks, length * size * std::min(count, ROWS_AT_ONCE), [&](int64_t task) {
    static thread_local std::unique_ptr<HeadMemory> memory(new HeadMemory);
    const int64_t range = task / blocks, row = task % blocks * ROWS_AT_ONCE, here = std::min(ROWS_AT_ONCE, count - row);
    const int64_t end = std::min(vocabulary, (range + 1) * length);
    Top2 part[ROWS_AT_ONCE];
    for (int64_t id = range * length; id < end; id += at_once) {
      const Product<T> product{places.data() + row, here, data_of<T>(weight), weight.stride(0),
                               bias ? data_of<T>(*bias) : nullptr, size, id, std::min(end, id + at_once), suppressed};
      Blocks::template run<REST>(product, *memory, part);
      for (int64_t r = 0; r < here; ++r) {
        Top2& whole = found[range * count + row + r];
        if (id == range * length) whole = part[r];
        else merge<REST>(whole, part[r]);
      }
    }
  });
  for (int64_t r = 0; r < count; ++r) {
    Top2 row = found[r];
    for (int64_t range = 1; range < ranges; ++range) merge<REST>(row, found[range * count + r]);
    write(rows[r].out, row);
  }
}

template <bool REST, class Write>
void score(const Tensor& hidden, const Tensor& weight, const MaybeTensor& bias, const std::vector<Row>& rows,
           const Suppressed& suppressed, Write write) {
  on_current_isa([&](auto blocks) {
    with_dtype("hidden", hidden, [&](auto zero) {
      score_rows<decltype(blocks), REST, decltype(zero)>(hidden, weight, bias, rows, suppressed, write);
    });
  });
}

SixTensors linear_token_stats(Tensor hidden, Tensor weight, MaybeTensor bias, MaybeTensor flags, MaybeTensor suppress,
                              int64_t lowest, int64_t id_offset, MaybeTensor noise, bool entropy, MaybeTensor /*partials*/,
                              MaybeTensor /*tickets*/) {
  check_operands(hidden, weight, bias);
  check_tables(flags, suppress, lowest, weight.size(0));
  check_offset(id_offset, weight.size(0));
  if (noise || entropy) fail("noise and entropy are not served yet");
  const std::vector<Sequence> sequences = sequences_of("hidden", hidden, hidden.dim() - 1, {}, {}, {}, nullptr);
  Tensor tokens = empty_rows(hidden, aoti_torch_dtype_int64()), top1 = empty_rows(hidden, aoti_torch_dtype_float32());
  Tensor top2 = empty_rows(hidden, aoti_torch_dtype_float32()), log_odds = empty_rows(hidden, aoti_torch_dtype_float32());
  const Suppressed suppressed = suppressed_of(suppress, lowest);
  const int64_t others = weight.size(0) - suppressed.count - 1;
  auto* token = mutable_data_of<int64_t>(tokens);
  auto *first = mutable_data_of<float>(top1), *second = mutable_data_of<float>(top2), *odds = mutable_data_of<float>(log_odds);
  score<true>(hidden, weight, bias, all_rows(sequences), suppressed, [=](int64_t i, const Top2& row) {
    token[i] = row.token + id_offset;
    first[i] = row.first + 0.0f;  // never -0.0
    second[i] = row.nan ? NAN : row.second + 0.0f;
    odds[i] = row.log_odds(others);
  });
  return {std::move(tokens), std::move(top1), std::move(top2), std::move(log_odds), nothing(), nothing()};
}

SixTensors linear_commit_prefix(Tensor hidden, Tensor weight, MaybeTensor bias, MaybeTensor cu_rows, MaybeTensor n_active,
                                MaybeTensor starts, MaybeTensor flags, MaybeTensor suppress, int64_t lowest, int64_t alpha_ppm,
                                int64_t beta_ppm, int64_t min_length, int64_t window, std::optional<double> floor, bool snap,
                                bool keep, MaybeTensor noise, bool log_odds, MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  if (noise || log_odds) fail("noise and log-odds are not served yet");
  check_operands(hidden, weight, bias);
  check_tables(flags, suppress, lowest, weight.size(0));
  const Rule rule = rule_of(flags, alpha_ppm, beta_ppm, min_length, window, floor, snap, keep);
  const std::vector<Sequence> sequences =
      sequences_of("hidden", hidden, hidden.dim() - 1, cu_rows, n_active, starts, &rule);
  Tensor tokens = empty_rows(hidden, aoti_torch_dtype_int64()), margins = empty_rows(hidden, aoti_torch_dtype_float32());
  auto* token = mutable_data_of<int64_t>(tokens);
  Tensor top1 = empty_rows(hidden, aoti_torch_dtype_float32());
  auto *margin = mutable_data_of<float>(margins), *first = mutable_data_of<float>(top1);
  std::fill_n(token, tokens.numel(), -1);
  std::fill_n(margin, margins.numel(), -INFINITY);
  std::fill_n(first, top1.numel(), -INFINITY);
  score<false>(hidden, weight, bias, scored_rows(sequences, rule), suppressed_of(suppress, lowest),
               [=](int64_t i, const Top2& row) {
                 token[i] = row.token;
                 margin[i] = row.margin();
                 first[i] = row.first + 0.0f;  // never -0.0
               });
  auto [lengths, finished] = select_all(sequences, rule, margin, token);
  return {std::move(lengths), std::move(finished), std::move(tokens), std::move(margins), std::move(top1), nothing()};
}

}  // namespace

void add_head(CpuKernels& kernels) {
  kernels.add<&linear_token_stats>("linear_token_stats");
  kernels.add<&linear_commit_prefix>("linear_commit_prefix");
}

}  // namespace LSP_NAMESPACE
