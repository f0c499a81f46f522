// token_stats, select_prefix and commit_prefix for CPU tensors. Everything is checked here; Python only explains errors.
#include "checks.h"
#include "noise.h"
#include "operators.h"
#include "results.h"
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

// What is asked of a scan, beside the logits.
struct Scan {
  Want want;
  int64_t id_offset;
  NoiseTable noise;
  Suppressed suppressed;
};

// The ids [begin, end) of a row. A row that is greedy takes the same way in every batch.
template <class Blocks, Want WANT, class T>
Top2 scan_part(const T* logits, const Row& row, int64_t begin, int64_t end, const Scan& scan_for) {
  const RowNoise noise = scan_for.noise.data ? scan_for.noise.row(row.out) : RowNoise{};
  const bool noisy = noise.temperature > 0;
  if (WANT == Want::entropy || noisy)
    return scan_blocks<Blocks, WANT>(logits + row.offset, begin, end, scan_for.suppressed, scan_for.id_offset,
                                     noisy ? &noise : nullptr);
  if (WANT == Want::log_odds) return scan_sums<Blocks>(logits + row.offset, begin, end, scan_for.suppressed);
  return scan<Blocks>(logits + row.offset, begin, end, scan_for.suppressed);
}

template <class Blocks, Want WANT, class T, class Results>
void scan_rows(const T* logits, int64_t vocabulary, const std::vector<Row>& rows, const Scan& scan_for, const Results& results) {
  constexpr bool REST = WANT != Want::top2;
  const int64_t splits = splits_of<REST>(rows.size(), vocabulary);
  const int64_t length = ((vocabulary + splits - 1) / splits + BLOCK - 1) / BLOCK * BLOCK;
  std::vector<Top2> partial(splits > 1 ? rows.size() * splits : 0);

  parallel_tasks(rows.size() * splits, length, [&](int64_t task) {
    const Row& row = rows[task / splits];
    const int64_t begin = std::min(vocabulary, task % splits * length), end = std::min(vocabulary, begin + length);
    const Top2 found = scan_part<Blocks, WANT>(logits, row, begin, end, scan_for);
    if (splits > 1) {
      partial[task] = found;
    } else {
      results.write(row.out, found);
    }
  });
  for (size_t r = 0; splits > 1 && r < rows.size(); ++r) {
    Top2 row = partial[r * splits];
    for (int64_t s = 1; s < splits; ++s) merge<REST>(row, partial[r * splits + s]);
    results.write(rows[r].out, row);
  }
}

// scan_rows for the tensor's dtype on the current instruction set.
template <class Results>
void scan_logits(const Tensor& logits, const std::vector<Row>& rows, const Scan& scan_for, const Results& results) {
  const int64_t vocabulary = logits.size(logits.dim() - 1);
  on_current_isa([&](auto blocks) {
    with_dtype("logits", logits, [&](auto zero) {
      with_want(scan_for.want, [&](auto want) {
        const auto* data = data_of<decltype(zero)>(logits);
        scan_rows<decltype(blocks), decltype(want)::value>(data, vocabulary, rows, scan_for, results);
      });
    });
  });
}

// `partials` and `tickets` are the workspace of the GPU kernels, which is not needed here.
SixTensors token_stats(Tensor logits, MaybeTensor flags, MaybeTensor suppress, int64_t lowest, int64_t id_offset,
                       MaybeTensor noise, bool entropy, MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  check_logits(logits, flags, suppress, lowest);
  const int64_t vocabulary = logits.size(logits.dim() - 1);
  check_offset(id_offset, vocabulary);
  const std::vector<Sequence> sequences = sequences_of("logits", logits, logits.dim() - 1, {}, {}, {}, nullptr);
  const NoiseTable table = noise_of(noise, logits);
  const Suppressed suppressed = suppressed_of(suppress, lowest);
  StatsResults results(logits, vocabulary, suppressed, id_offset, noise.has_value(), entropy);
  const Scan scan_for{entropy ? Want::entropy : Want::log_odds, id_offset, table, suppressed};
  scan_logits(logits, all_rows(sequences), scan_for, results);
  return results.release();
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
  check_logits(logits, flags, suppress, lowest);
  const Rule rule = rule_of(flags, alpha_ppm, beta_ppm, min_length, window, floor, snap, keep);
  const std::vector<Sequence> sequences =
      sequences_of("logits", logits, logits.dim() - 1, cu_rows, n_active, starts, &rule);
  const NoiseTable table = noise_of(noise, logits);
  const Suppressed suppressed = suppressed_of(suppress, lowest);
  CommitResults results(logits, logits.size(logits.dim() - 1), suppressed, log_odds);
  const Scan scan_for{log_odds ? Want::log_odds : Want::top2, 0, table, suppressed};
  scan_logits(logits, scored_rows(sequences, rule), scan_for, results);
  return results.release(sequences, rule);
}

}  // namespace

void add_commit(CpuKernels& kernels) {
  kernels.add<&token_stats>("token_stats");
  kernels.add<&select_prefix>("select_prefix");
  kernels.add<&commit_prefix>("commit_prefix");
}

}  // namespace LSP_NAMESPACE
