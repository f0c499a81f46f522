// linear_token_stats and linear_commit_prefix for CPU tensors: the LM head fused with the statistics. Logits never exist.
#include "head.h"
#include "checks.h"
#include "noise.h"
#include "operators.h"
#include "results.h"
#include "sequences.h"

#include <algorithm>
#include <type_traits>

#define LSP_ISA_WITH_PAIRS
#define LSP_ISA_SOURCE "head_blocks.h"
#include "foreach_isa.h"

#include "head_rows.h"
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

// The operands of a call.
struct Operands {
  const Tensor& hidden;
  const Tensor& weight;
  const MaybeTensor& bias;
  Suppressed suppressed;
  NoiseTable noise;
  int64_t id_offset;
};

// The hidden states of some rows, and their noise.
template <class Blocks, class T>
struct Rows {
  Rows(const Operands& operands, const std::vector<Row>& rows) : packed(places_of(operands, rows), operands.weight.size(1)) {
    for (const Row& row : rows)
      if (operands.noise.data) noise.push_back(operands.noise.row(row.out));
  }
  static std::vector<const T*> places_of(const Operands& operands, const std::vector<Row>& rows) {
    std::vector<const T*> out;
    for (const Row& row : rows) out.push_back(data_of<T>(operands.hidden) + row.offset);
    return out;
  }

  Product<T> product(const Operands& operands, int64_t row, int64_t begin, int64_t end) const {
    return packed.product(operands.weight, operands.bias, row, begin, end);
  }
  Scoring scoring(const Operands& operands, int64_t row, Want want) const {
    return {operands.suppressed, noise.empty() ? nullptr : noise.data() + row, operands.id_offset, want};
  }

  PackedRows<Blocks, T> packed;
  std::vector<RowNoise> noise;
};

// What a range of the vocabulary says of a row, in as few bytes as the sums need, which were made in float32.
struct Found {
  float first, second, clean, most, sum, tilt;
  int32_t token;
  bool nan;

  Found() = default;
  explicit Found(const Top2& x)
      : first(x.first), second(x.second), clean(x.clean), most(x.rest.most), sum(float(x.rest.sum)), tilt(float(x.rest.tilt)),
        token(int32_t(x.token)), nan(x.nan) {}
  Top2 whole() const { return {first, second, nan, token, clean, {most, sum, tilt}}; }
};

// The two largest logits of each row, and the weight of the others if it is wanted.
template <class Blocks, class T>
std::vector<Top2> score_rows(const Operands& operands, const std::vector<Row>& rows, Want want) {
  const Rows<Blocks, T> hidden(operands, rows);
  const int64_t count = hidden.packed.count, size = hidden.packed.size, vocabulary = operands.weight.size(0);
  const int64_t grains = (vocabulary + GRAIN_OF_IDS - 1) / GRAIN_OF_IDS;
  const int64_t length = (grains + RANGES - 1) / RANGES * GRAIN_OF_IDS, at_once = hidden.packed.at_once();
  const int64_t ranges = (vocabulary + length - 1) / length, blocks = (count + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
  const auto join = want == Want::top2 ? merge<false> : merge<true>;
  std::unique_ptr<Found[]> found(new Found[ranges * count]);

  // The tasks of a range follow each other, so that its weights may still be in the cache.
  parallel_tasks(ranges * blocks, length * size * std::min(count, ROWS_AT_ONCE), [&](int64_t task) {
    static thread_local std::unique_ptr<HeadMemory> memory(new HeadMemory);
    const int64_t range = task / blocks, row = task % blocks * ROWS_AT_ONCE, here = std::min(ROWS_AT_ONCE, count - row);
    const int64_t end = std::min(vocabulary, (range + 1) * length);
    Top2 whole[ROWS_AT_ONCE], part[ROWS_AT_ONCE];
    for (int64_t id = range * length; id < end; id += at_once) {
      const bool first = id == range * length;
      const Product<T> product = hidden.product(operands, row, id, std::min(end, id + at_once));
      Blocks::run(product, hidden.scoring(operands, row, want), *memory, first ? whole : part);
      for (int64_t r = 0; !first && r < here; ++r) join(whole[r], part[r]);
    }
    for (int64_t r = 0; r < here; ++r) found[range * count + row + r] = Found(whole[r]);
  });
  std::vector<Top2> out;
  for (int64_t r = 0; r < count; ++r) {
    out.push_back(found[r].whole());
    for (int64_t range = 1; range < ranges; ++range) join(out[r], found[range * count + r].whole());
  }
  return out;
}

template <class Results>
void score(const Operands& operands, const std::vector<Row>& rows, Want want, const Results& results) {
  std::vector<Top2> found;
  on_current_isa([&](auto blocks) {
    with_dtype("hidden", operands.hidden,
               [&](auto zero) { found = score_rows<decltype(blocks), decltype(zero)>(operands, rows, want); });
  });
  for (size_t r = 0; r < rows.size(); ++r) results.write(rows[r].out, found[r]);
}

SixTensors linear_token_stats(Tensor hidden, Tensor weight, MaybeTensor bias, MaybeTensor flags, MaybeTensor suppress,
                              int64_t lowest, int64_t id_offset, MaybeTensor noise, bool entropy, MaybeTensor /*partials*/,
                              MaybeTensor /*tickets*/) {
  check_operands(hidden, weight, bias);
  check_tables(flags, suppress, lowest, weight.size(0));
  check_offset(id_offset, weight.size(0));
  const std::vector<Sequence> sequences = sequences_of("hidden", hidden, hidden.dim() - 1, {}, {}, {}, nullptr);
  const Operands operands{hidden, weight, bias, suppressed_of(suppress, lowest), noise_of(noise, hidden), id_offset};
  StatsResults results(hidden, weight.size(0), operands.suppressed, id_offset, noise.has_value(), entropy);
  score(operands, all_rows(sequences), entropy ? Want::entropy : Want::log_odds, results);
  return results.release();
}

SixTensors linear_commit_prefix(Tensor hidden, Tensor weight, MaybeTensor bias, MaybeTensor cu_rows, MaybeTensor n_active,
                                MaybeTensor starts, MaybeTensor flags, MaybeTensor suppress, int64_t lowest, int64_t alpha_ppm,
                                int64_t beta_ppm, int64_t min_length, int64_t window, std::optional<double> floor, bool snap,
                                bool keep, MaybeTensor noise, bool log_odds, MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  check_operands(hidden, weight, bias);
  check_tables(flags, suppress, lowest, weight.size(0));
  const Rule rule = rule_of(flags, alpha_ppm, beta_ppm, min_length, window, floor, snap, keep);
  const std::vector<Sequence> sequences =
      sequences_of("hidden", hidden, hidden.dim() - 1, cu_rows, n_active, starts, &rule);
  const Operands operands{hidden, weight, bias, suppressed_of(suppress, lowest), noise_of(noise, hidden), 0};
  CommitResults results(hidden, weight.size(0), operands.suppressed, log_odds);
  score(operands, scored_rows(sequences, rule), log_odds ? Want::log_odds : Want::top2, results);
  return results.release(sequences, rule);
}

}  // namespace

void add_head(CpuKernels& kernels) {
  kernels.add<&linear_token_stats>("linear_token_stats");
  kernels.add<&linear_commit_prefix>("linear_commit_prefix");
}

}  // namespace LSP_NAMESPACE
