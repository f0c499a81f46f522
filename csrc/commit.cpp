// token_stats, select_prefix and commit_prefix for CPU tensors. Everything is checked here; Python only explains errors.
#include "checks.h"
#include "operators.h"
#include "sequences.h"
#include "tensors.h"
#include "top2.h"

#define LSP_ISA_SOURCE "top2_blocks.h"
#include "foreach_isa.h"

#include "parallel.h"

#include <tuple>
#include <utility>
#include <vector>

namespace LSP_NAMESPACE {
namespace {

constexpr int64_t SPLIT = 32 * BLOCK;  // ids; a task with fewer costs more than it saves

// The logits [B, L, V] or packed [R, V] of an operator, and the tables of its vocabulary.
void check_logits(const Tensor& logits, const MaybeTensor& flags, const MaybeTensor& suppressed, int64_t lowest) {
  const int64_t dims = logits.dim();
  if (dims != 2 && dims != 3) fail_shape("logits", "[B, L, V] or [R, V]", logits);
  const int64_t vocabulary = logits.size(dims - 1);
  if (vocabulary < 1 || vocabulary > MOST_ROWS) fail_shape("logits", "1 to 2^31 - 1 ids in the last dimension", logits);
  check_last_stride("logits", logits, dims);
  check_tables(flags, suppressed, lowest, vocabulary);
}

// How many tasks share a row when there are few rows. Tokens and logits are exact for any number, but the sum behind the
// log-odds is rounded; with REST the number therefore depends on the shape alone and not on the threads.
template <bool REST>
int64_t splits_of(int64_t rows, int64_t vocabulary) {
  const int64_t wanted = REST ? 64 : 6 * thread_count();
  return std::clamp<int64_t>((wanted + rows - 1) / std::max<int64_t>(rows, 1), 1, std::max<int64_t>(vocabulary / SPLIT, 1));
}

template <class Blocks, bool REST, class T, class Write>
void scan_rows(const T* logits, int64_t vocabulary, const std::vector<Row>& rows, const Suppressed& suppressed, Write write) {
  const int64_t splits = splits_of<REST>(rows.size(), vocabulary);
  const int64_t length = ((vocabulary + splits - 1) / splits + BLOCK - 1) / BLOCK * BLOCK;
  std::vector<Top2> partial(splits > 1 ? rows.size() * splits : 0);

  parallel_tasks(rows.size() * splits, length, [&](int64_t task) {
    const Row& row = rows[task / splits];
    const int64_t begin = std::min(vocabulary, task % splits * length), end = std::min(vocabulary, begin + length);
    const Top2 found = scan<Blocks, REST>(logits + row.offset, begin, end, suppressed);
    if (splits > 1) {
      partial[task] = found;
    } else {
      write(row.out, found);
    }
  });
  for (size_t r = 0; splits > 1 && r < rows.size(); ++r) {
    Top2 row = partial[r * splits];
    for (int64_t s = 1; s < splits; ++s) merge<REST>(row, partial[r * splits + s]);
    write(rows[r].out, row);
  }
}

// scan_rows for the tensor's dtype on the current instruction set.
template <bool REST, class Write>
void scan_logits(const Tensor& logits, const std::vector<Row>& rows, const Suppressed& suppressed, Write write) {
  const int64_t vocabulary = logits.size(logits.dim() - 1);
  on_current_isa([&](auto blocks) {
    with_dtype("logits", logits, [&](auto zero) {
      scan_rows<decltype(blocks), REST>(data_of<decltype(zero)>(logits), vocabulary, rows, suppressed, write);
    });
  });
}

// `partials` and `tickets` are the workspace of the GPU kernels, which is not needed here.
SixTensors token_stats(Tensor logits, MaybeTensor flags, MaybeTensor suppress, int64_t lowest, int64_t id_offset,
                       MaybeTensor noise, bool entropy, MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  check_logits(logits, flags, suppress, lowest);
  check_offset(id_offset, logits.size(logits.dim() - 1));
  if (noise || entropy) fail("noise and entropy are not served yet");
  const std::vector<Sequence> sequences = sequences_of("logits", logits, logits.dim() - 1, {}, {}, {}, nullptr);
  Tensor tokens = empty_rows(logits, aoti_torch_dtype_int64()), top1 = empty_rows(logits, aoti_torch_dtype_float32());
  Tensor top2 = empty_rows(logits, aoti_torch_dtype_float32()), log_odds = empty_rows(logits, aoti_torch_dtype_float32());
  const Suppressed suppressed = suppressed_of(suppress, lowest);
  const int64_t others = logits.size(logits.dim() - 1) - suppressed.count - 1;

  auto* token = mutable_data_of<int64_t>(tokens);
  auto *first = mutable_data_of<float>(top1), *second = mutable_data_of<float>(top2), *odds = mutable_data_of<float>(log_odds);

  scan_logits<true>(logits, all_rows(sequences), suppressed, [=](int64_t i, const Top2& row) {
    token[i] = row.token + id_offset;
    first[i] = row.first + 0.0f;  // never -0.0, so that the result does not depend on which of two equal zeros came first
    second[i] = row.nan ? NAN : row.second + 0.0f;
    odds[i] = row.log_odds(others);
  });
  return {std::move(tokens), std::move(top1), std::move(top2), std::move(log_odds), nothing(), nothing()};
}

std::tuple<Tensor, Tensor> select_prefix(Tensor margins, Tensor tokens, MaybeTensor cu_rows, MaybeTensor n_active,
                                         MaybeTensor starts, MaybeTensor flags, int64_t alpha_ppm, int64_t beta_ppm,
                                         int64_t min_length, int64_t window, std::optional<double> floor, bool snap, bool keep) {
  const int64_t dims = margins.dim();
  if (dims != 1 && dims != 2) fail_shape("margins", "[B, L] or [R]", margins);
  check_dtype("margins", margins, aoti_torch_dtype_float32(), "float32");
  check_dtype("tokens", tokens, aoti_torch_dtype_int64(), "int64");
  if (tokens.dim() != dims || tokens.size(0) != margins.size(0) || tokens.size(dims - 1) != margins.size(dims - 1))
    fail_shape("tokens", "the shape of the margins", tokens);
  if (flags) check_table("flags", *flags, aoti_torch_dtype_uint8(), "uint8");
  const Rule rule = rule_of(flags, alpha_ppm, beta_ppm, min_length, window, floor, snap, keep);
  const std::vector<Sequence> sequences = sequences_of("margins", margins, dims, cu_rows, n_active, starts, &rule);
  margins = contiguous(std::move(margins));
  tokens = contiguous(std::move(tokens));
  return select_all(sequences, rule, data_of<float>(margins), data_of<int64_t>(tokens));
}

SixTensors commit_prefix(Tensor logits, MaybeTensor cu_rows, MaybeTensor n_active, MaybeTensor starts, MaybeTensor flags,
                         MaybeTensor suppress, int64_t lowest, int64_t alpha_ppm, int64_t beta_ppm, int64_t min_length,
                         int64_t window, std::optional<double> floor, bool snap, bool keep, MaybeTensor noise, bool log_odds,
                         MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  if (noise || log_odds) fail("noise and log-odds are not served yet");
  check_logits(logits, flags, suppress, lowest);
  const Rule rule = rule_of(flags, alpha_ppm, beta_ppm, min_length, window, floor, snap, keep);
  const std::vector<Sequence> sequences =
      sequences_of("logits", logits, logits.dim() - 1, cu_rows, n_active, starts, &rule);
  Tensor tokens = empty_rows(logits, aoti_torch_dtype_int64()), margins = empty_rows(logits, aoti_torch_dtype_float32());
  auto* token = mutable_data_of<int64_t>(tokens);
  Tensor top1 = empty_rows(logits, aoti_torch_dtype_float32());
  auto *margin = mutable_data_of<float>(margins), *first = mutable_data_of<float>(top1);
  std::fill_n(token, tokens.numel(), -1);
  std::fill_n(margin, margins.numel(), -INFINITY);
  std::fill_n(first, top1.numel(), -INFINITY);

  scan_logits<false>(logits, scored_rows(sequences, rule), suppressed_of(suppress, lowest), [=](int64_t i, const Top2& row) {
    token[i] = row.token;
    margin[i] = row.margin();
    first[i] = row.first + 0.0f;  // never -0.0
  });
  auto [lengths, finished] = select_all(sequences, rule, margin, token);
  return {std::move(lengths), std::move(finished), std::move(tokens), std::move(margins), std::move(top1), nothing()};
}

}  // namespace

void add_commit(CpuKernels& kernels) {
  kernels.add<&token_stats>("token_stats");
  kernels.add<&select_prefix>("select_prefix");
  kernels.add<&commit_prefix>("commit_prefix");
}

}  // namespace LSP_NAMESPACE
