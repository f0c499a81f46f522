// token_stats, select_prefix and commit_prefix for CPU tensors. Arguments were checked in Python; values that could lead
// outside a tensor are clamped here all the same.
#include "types.h"
#include "top2.h"

#define LSP_ISA_SOURCE "top2_blocks.h"
#include "foreach_isa.h"

#include "empty.h"
#include "parallel.h"
#include "rule.h"

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>
#include <vector>

namespace lsp {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

constexpr int64_t SPLIT = 32 * BLOCK;  // the least that is worth a task of its own

struct Row {
  int64_t offset;  // in elements from the first logit
  int64_t out;     // index in the outputs
};

struct Sequence {
  int64_t offset, row_stride;  // of its first active row in the input, in elements
  int64_t out;                 // of its first active row in the outputs
  int64_t rows, n_active;      // rows given from there on, and N
};

template <class T>
const T* data_or_null(const MaybeTensor& tensor) {
  return tensor ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

// A batch [B, L, ...] or packed rows [R, ...] with borders, as sequences. `dims` counts the row dimensions: 2 or 1.
std::vector<Sequence> sequences_of(const Tensor& rows, int64_t dims, const MaybeTensor& cu_rows, const MaybeTensor& n_active,
                                   const MaybeTensor& starts) {
  const int32_t *borders = data_or_null<int32_t>(cu_rows), *active = data_or_null<int32_t>(n_active),
                *first = data_or_null<int32_t>(starts);
  const int64_t length = rows.size(dims - 1), row_stride = rows.stride(dims - 1);
  const int64_t batch = dims == 2 ? rows.size(0) : borders ? cu_rows->numel() - 1 : 1;
  std::vector<Sequence> out(batch);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t begin = borders ? std::clamp<int64_t>(borders[b], 0, length) : 0;
    const int64_t end = borders ? std::clamp<int64_t>(borders[b + 1], begin, length) : length;
    const int64_t start = first ? std::clamp<int64_t>(first[b], 0, end - begin) : 0;
    const int64_t given = end - begin - start, row = begin + start;
    const int64_t base = dims == 2 ? b * rows.stride(0) : 0, out_base = dims == 2 ? b * length : 0;
    out[b] = {base + row * row_stride, row_stride, out_base + row, given, active ? std::max<int64_t>(active[b], 0) : given};
  }
  return out;
}

Suppressed suppressed_of(const MaybeTensor& ids) {
  if (!ids) return {};
  Suppressed out{data_or_null<int32_t>(ids), ids->numel(), 0};
  while (out.lowest_allowed < out.count && out.ids[out.lowest_allowed] == out.lowest_allowed) ++out.lowest_allowed;
  return out;
}

// How many tasks a row is cut into when there are few rows. What the tasks find is exact whatever the cut, but for the
// rounding of `rest`: with it the cut depends on the shape alone, so that the number of threads never shows in a result.
template <bool REST>
int64_t splits_of(int64_t rows, int64_t vocabulary) {
  const int64_t wanted = REST ? 64 : 6 * int64_t(torch::stable::get_num_threads());
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

// Calls scan_rows for the tensor's dtype on the current instruction set.
template <bool REST, class Write>
void scan_logits(const Tensor& logits, const std::vector<Row>& rows, const Suppressed& suppressed, Write write) {
  const int64_t vocabulary = logits.size(logits.dim() - 1);
  auto typed = [&](auto blocks) {
    using Blocks = decltype(blocks);
    auto scan = [&](auto* data) { scan_rows<Blocks, REST>(data, vocabulary, rows, suppressed, write); };
    const void* data = logits.const_data_ptr();
    switch (logits.scalar_type()) {
      case ScalarType::Float: return scan(static_cast<const float*>(data));
      case ScalarType::BFloat16: return scan(static_cast<const BFloat16*>(data));
      case ScalarType::Half: return scan(static_cast<const Half*>(data));
      default: STD_TORCH_CHECK(false, "Invalid dtype of logits: expected float32, bfloat16 or float16");
    }
  };
  switch (current_isa()) {
#if LSP_X86
    case Isa::avx512bf16:
    case Isa::avx512: return typed(avx512::Blocks{});
    case Isa::avx2: return typed(avx2::Blocks{});
#endif
    default: return typed(scalar::Blocks{});
  }
}

Tensor empty_rows(const Tensor& logits, int32_t dtype) {
  return empty_cpu(logits.sizes().data(), logits.dim() - 1, dtype);
}

// `partials` and `tickets` are the workspace of the GPU kernels; here the merge happens in one function and needs none.
std::tuple<Tensor, Tensor, Tensor, Tensor> token_stats(Tensor logits, MaybeTensor /*flags*/, MaybeTensor suppress,
                                                       MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  Tensor tokens = empty_rows(logits, aoti_torch_dtype_int64()), top1 = empty_rows(logits, aoti_torch_dtype_float32());
  Tensor top2 = empty_rows(logits, aoti_torch_dtype_float32()), rest = empty_rows(logits, aoti_torch_dtype_float32());
  const Suppressed suppressed = suppressed_of(suppress);
  const int64_t others = logits.size(logits.dim() - 1) - suppressed.count - 1;

  auto* token = static_cast<int64_t*>(tokens.mutable_data_ptr());
  auto *first = static_cast<float*>(top1.mutable_data_ptr()), *second = static_cast<float*>(top2.mutable_data_ptr()),
       *other = static_cast<float*>(rest.mutable_data_ptr());

  std::vector<Row> rows;
  rows.reserve(tokens.numel());
  for (const Sequence& sequence : sequences_of(logits, logits.dim() - 1, {}, {}, {}))
    for (int64_t i = 0; i < sequence.rows; ++i)
      rows.push_back({sequence.offset + i * sequence.row_stride, sequence.out + i});

  scan_logits<true>(logits, rows, suppressed, [=](int64_t i, const Top2& row) {
    token[i] = row.token;
    first[i] = row.first + 0.0f;  // no -0.0: which of two equal zeros came first is nobody's business
    second[i] = row.nan ? NAN : row.second + 0.0f;
    other[i] = rest_of(row, others);
  });
  return {tokens, top1, top2, rest};
}

Rule rule_of(const MaybeTensor& flags, int64_t alpha_ppm, int64_t beta_ppm, int64_t min_length, int64_t window,
             std::optional<double> floor, bool snap, bool keep) {
  return {alpha_ppm, beta_ppm, min_length, window, floor.has_value(), float(floor.value_or(0)), snap, keep,
          data_or_null<uint8_t>(flags), flags ? flags->numel() : 0};
}

// The rule for every sequence, on margins and tokens that lie one row after the other.
std::tuple<Tensor, Tensor> select_all(const std::vector<Sequence>& sequences, const Rule& rule, const float* margins,
                                      const int64_t* tokens) {
  const int64_t batch = sequences.size();
  Tensor lengths = empty_cpu(&batch, 1, aoti_torch_dtype_int32()), finished = empty_cpu(&batch, 1, aoti_torch_dtype_bool());
  auto* length = static_cast<int32_t*>(lengths.mutable_data_ptr());
  auto* done = static_cast<bool*>(finished.mutable_data_ptr());
  for (int64_t b = 0; b < batch; ++b) {
    const Sequence& s = sequences[b];
    const Selection chosen = rule.select(margins + s.out, tokens + s.out, s.n_active, s.rows);
    length[b] = chosen.length;
    done[b] = chosen.finished;
  }
  return {lengths, finished};
}

std::tuple<Tensor, Tensor> select_prefix(Tensor margins, Tensor tokens, MaybeTensor cu_rows, MaybeTensor n_active,
                                         MaybeTensor starts, MaybeTensor flags, int64_t alpha_ppm, int64_t beta_ppm,
                                         int64_t min_length, int64_t window, std::optional<double> floor, bool snap, bool keep) {
  const Rule rule = rule_of(flags, alpha_ppm, beta_ppm, min_length, window, floor, snap, keep);
  if (!margins.is_contiguous()) margins = torch::stable::contiguous(margins);
  if (!tokens.is_contiguous()) tokens = torch::stable::contiguous(tokens);
  return select_all(sequences_of(margins, margins.dim(), cu_rows, n_active, starts), rule,
                    static_cast<const float*>(margins.const_data_ptr()), static_cast<const int64_t*>(tokens.const_data_ptr()));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> commit_prefix(Tensor logits, MaybeTensor cu_rows, MaybeTensor n_active,
                                                         MaybeTensor starts, MaybeTensor flags, MaybeTensor suppress,
                                                         int64_t alpha_ppm, int64_t beta_ppm, int64_t min_length, int64_t window,
                                                         std::optional<double> floor, bool snap, bool keep,
                                                         MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  const Rule rule = rule_of(flags, alpha_ppm, beta_ppm, min_length, window, floor, snap, keep);
  Tensor tokens = empty_rows(logits, aoti_torch_dtype_int64()), margins = empty_rows(logits, aoti_torch_dtype_float32());
  auto* token = static_cast<int64_t*>(tokens.mutable_data_ptr());
  auto* margin = static_cast<float*>(margins.mutable_data_ptr());
  std::fill_n(token, tokens.numel(), -1);
  std::fill_n(margin, margins.numel(), -INFINITY);

  const std::vector<Sequence> sequences = sequences_of(logits, logits.dim() - 1, cu_rows, n_active, starts);
  std::vector<Row> rows;
  rows.reserve(tokens.numel());
  for (const Sequence& s : sequences)
    for (int64_t i = 0, scored = std::min(s.rows, rule.scored_rows(s.n_active)); i < scored; ++i)
      rows.push_back({s.offset + i * s.row_stride, s.out + i});

  scan_logits<false>(logits, rows, suppressed_of(suppress), [=](int64_t i, const Top2& row) {
    token[i] = row.token;
    margin[i] = row.margin();
  });
  auto [lengths, finished] = select_all(sequences, rule, margin, token);
  return {lengths, finished, tokens, margins};
}

}  // namespace
}  // namespace lsp

STABLE_TORCH_LIBRARY_IMPL(lsp, CPU, m) {
  m.impl("token_stats", TORCH_BOX(&lsp::token_stats));
  m.impl("select_prefix", TORCH_BOX(&lsp::select_prefix));
  m.impl("commit_prefix", TORCH_BOX(&lsp::commit_prefix));
}
