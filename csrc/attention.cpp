// suffix_attention for CPU tensors. Everything is checked here; Python only explains errors.
#include "attention.h"
#include "checks.h"
#include "operators.h"
#include "overlap.h"
#include "tensors.h"

#include <algorithm>
#include <type_traits>

#define LSP_ISA_WITH_PAIRS
#define LSP_ISA_SOURCE "attention_blocks.h"
#include "foreach_isa.h"

#include "parallel.h"

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace LSP_NAMESPACE {
namespace {

constexpr int64_t TASKS = 16;             // a sequence has at least as many, if it has enough keys
constexpr int64_t LEAST_KEYS = 256;       // keys of a task; one with fewer costs more than it saves
constexpr int64_t WORK_PER_ELEMENT = 16;  // multiplications that take as long as one element of parallel.h

// A tensor [B, N, H, D] or, packed, [T, H, D]; strides in elements.
template <class T>
struct Tokens {
  T* data;
  int64_t sequence, token, head;

  Tokens(const Tensor& x, bool packed)
      : data(static_cast<T*>(const_cast<void*>(x.const_data_ptr()))),
        sequence(packed ? 0 : x.stride(0)),
        token(x.stride(x.dim() - 3)),
        head(x.stride(x.dim() - 2)) {}
  T* at(int64_t b, int64_t t, int64_t h) const { return data + b * sequence + t * token + h * head; }
};

template <class T>
struct Cache {
  T* data;
  int64_t sequence, head, slot;

  explicit Cache(Tensor& x)
      : data(static_cast<T*>(x.mutable_data_ptr())), sequence(x.stride(0)), head(x.stride(1)), slot(x.stride(2)) {}
  T* at(int64_t b, int64_t h, int64_t s) const { return data + b * sequence + h * head + s * slot; }
};

struct Sequence {
  int64_t begin, tokens, prefix, append, slot;  // `slot`: its row of the cache
};

// The rows [row, row + rows) of one head of keys against the keys [first, last); keys count from the frozen prefix on
// through the pass.
struct Task {
  int64_t sequence, head, row, rows, first, last;
  int64_t part;  // offset of its sums in the memory for parts, or -1 if the task sees all keys
  bool appends;  // whether it also copies the sequence's tokens of this head to the cache
};

template <class T>
struct Call {
  Tokens<const T> q, k, v;
  Tokens<T> out;
  Cache<T> k_cache, v_cache;
  int64_t heads, group, size;
  float scale;
  bool negative;
  float* lse;  // of every row of the output, or nullptr
  std::vector<Sequence> sequences;

  int64_t row_count(const Sequence& s) const { return s.tokens * group; }

  // How a sequence is divided into tasks depends on the sequence alone, so a result depends neither on the threads nor on
  // the other sequences. `floats` becomes the size of all parts.
  std::vector<Task> tasks(int64_t& floats) const {
    std::vector<Task> out;
    floats = 0;
    for (int64_t b = 0; b < int64_t(sequences.size()); ++b) {
      const Sequence& s = sequences[b];
      const int64_t rows = row_count(s), keys = s.prefix + s.tokens;
      const int64_t units = heads * ((rows + QUERIES - 1) / QUERIES);
      if (units == 0) continue;
      const int64_t splits = std::clamp<int64_t>((TASKS + units - 1) / units, 1, std::max<int64_t>(keys / LEAST_KEYS, 1));
      const int64_t length = ((keys + splits - 1) / splits + KEYS - 1) / KEYS * KEYS;
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t row = 0; row < rows; row += QUERIES)
          for (int64_t first = 0; first < keys; first += length) {
            const int64_t here = std::min(QUERIES, rows - row), last = std::min(keys, first + length);
            out.push_back({b, head, row, here, first, last, length < keys ? floats : -1, row == 0 && first == 0});
            if (length < keys) floats += here * (size + 2);
          }
    }
    return out;
  }

  Block<T> block(const Task& task) const {
    const Sequence& s = sequences[task.sequence];
    const int64_t b = task.sequence, h = task.head;
    const int64_t old = std::min(task.first, s.prefix), old_end = std::min(task.last, s.prefix);
    const int64_t now = std::max(task.first, s.prefix) - s.prefix, now_end = std::max(task.last, s.prefix) - s.prefix;
    return {q.at(b, s.begin, h * group), q.token, q.head, group, task.row, task.rows, size, scale, negative,
            {{k_cache.at(s.slot, h, old), v_cache.at(s.slot, h, old), k_cache.slot, v_cache.slot, old_end - old},
             {k.at(b, s.begin + now, h), v.at(b, s.begin + now, h), k.token, v.token, now_end - now}}};
  }

  // No task reads the slots that are written here: every task takes these tokens from k and v.
  void append(const Task& task) const {
    const Sequence& s = sequences[task.sequence];
    const int64_t b = task.sequence, h = task.head;
    for (int64_t i = 0; i < s.append; ++i) {
      std::copy_n(k.at(b, s.begin + i, h), size, k_cache.at(s.slot, h, s.prefix + i));
      std::copy_n(v.at(b, s.begin + i, h), size, v_cache.at(s.slot, h, s.prefix + i));
    }
  }

  // Writes a row from the weighted sum of its values, its largest scaled score and the sum of its weights. Where all keys
  // score -inf the output is 0, as torch's attention defines it; `total` then only tells whether a score was NaN.
  void write(const Task& task, int64_t row, const float* values, float most, float total) const {
    const int64_t at = task.row + row;
    T* to = out.at(task.sequence, sequences[task.sequence].begin + at / group, task.head * group + at % group);
    const bool nothing = most == -INFINITY && total == total;
    const float factor = nothing ? 0 : 1 / total;
    for (int64_t d = 0; d < size; ++d) round_to(values[d] * factor, to[d]);
    if (lse) lse[(to - out.data) / size] = nothing ? -INFINITY : (most + std::log2(total)) * 0.6931471805599453f;
  }

  template <class Blocks>
  void run() const {
    int64_t floats, work = 0;
    const std::vector<Task> all = tasks(floats);
    std::unique_ptr<float[]> parts(new float[floats]);
    for (const Task& task : all) work += task.rows * (task.last - task.first) * size;

    parallel_tasks(all.size(), work / std::max<int64_t>(all.size(), 1) / WORK_PER_ELEMENT, [&](int64_t i) {
      static thread_local std::unique_ptr<typename Blocks::Memory> scratch(new typename Blocks::Memory);
      const Task& task = all[i];
      if (task.appends) append(task);
      const Found found = Blocks::attend(block(task), *scratch);
      if (task.part < 0) {
        for (int64_t row = 0; row < task.rows; ++row)
          write(task, row, found.values + row * size, found.most[row], found.total[row]);
      } else {
        float* part = parts.get() + task.part;
        std::copy_n(found.most, task.rows, part);
        std::copy_n(found.total, task.rows, part + task.rows);
        std::copy_n(found.values, task.rows * size, part + 2 * task.rows);
      }
    });
    for (size_t i = 0; i < all.size();) {
      size_t end = i + 1;
      while (end < all.size() && all[end].first > 0) ++end;
      if (end > i + 1) merge(all, i, end, parts.get());
      i = end;
    }
  }

  // Rows past the last border belong to nobody.
  void clear(int64_t first, int64_t last) const {
    const int64_t row = heads * group;
    std::fill(out.data + first * row * size, out.data + last * row * size, T{});
    if (lse) std::fill(lse + first * row, lse + last * row, -INFINITY);
  }

  // Merges the tasks [i, end), which have the same rows and consecutive keys.
  void merge(const std::vector<Task>& all, size_t i, size_t end, const float* parts) const {
    std::vector<float> sum(size);
    const int64_t rows = all[i].rows;
    for (int64_t row = 0; row < rows; ++row) {
      float most = -INFINITY, total = 0;
      for (size_t p = i; p < end; ++p) most = std::max(most, parts[all[p].part + row]);
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (size_t p = i; p < end; ++p) {
        const float* part = parts + all[p].part;
        const float weight = part[row] == most ? 1 : std::exp2(part[row] - most);
        total += weight * part[rows + row];
        for (int64_t d = 0; d < size; ++d) sum[d] += weight * part[2 * rows + row * size + d];
      }
      write(all[i], row, sum.data(), most, total);
    }
  }
};

// The shapes, dtypes and strides of q, k, v and the caches; returns the number of sequences.
int64_t check_tensors(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
                      const MaybeTensor& cu_seqlens, bool slots) {
  const bool packed = cu_seqlens.has_value();
  const int64_t dims = packed ? 3 : 4;
  if (q.dim() != dims) fail_shape("q", packed ? "[T, Hq, D] with cu_seqlens" : "[B, N, Hq, D] without cu_seqlens", q);
  const int64_t size = q.size(dims - 1), heads = q.size(dims - 2);
  if (size % 16 || size < 32 || size > LARGEST_SIZE)
    fail_shape("q", "a head dimension that is a multiple of 16 from 32 to 256", q);
  if (heads < 1) fail_shape("q", "at least one head", q);
  if (k.dim() != dims || k.size(dims - 1) != size || k.size(dims - 3) != q.size(dims - 3) || k.size(0) != q.size(0))
    fail_shape("k", "the tokens and the head dimension of q", k);
  const int64_t kv_heads = k.size(dims - 2);
  if (kv_heads < 1 || heads % kv_heads) fail_shape("k", "a number of heads that divides that of q", k);
  if (v.dim() != dims || !std::equal(k.sizes(), k.sizes() + dims, v.sizes())) fail_shape("v", "the shape of k", v);

  const int64_t batch = packed ? check_borders("cu_seqlens", *cu_seqlens) : q.size(0);
  if (k_cache.dim() != 4 || (!slots && k_cache.size(0) != batch) || k_cache.size(1) != kv_heads || k_cache.size(3) != size)
    fail_shape("k_cache", slots ? "[rows, Hkv, S, D]" : "[B, Hkv, S, D]", k_cache);
  if (v_cache.dim() != 4 || !std::equal(k_cache.sizes(), k_cache.sizes() + 4, v_cache.sizes()))
    fail_shape("v_cache", "the shape of k_cache", v_cache);
  if (batch > MOST_ROWS || q.size(dims - 3) > MOST_ROWS / heads) fail_shape("q", "at most 2^31 - 1 rows per sequence", q);
  if (k_cache.size(2) > MOST_ROWS) fail_shape("k_cache", "at most 2^31 - 1 slots", k_cache);

  const int32_t dtype = q.dtype();
  const auto check_one = [&](const char* name, const Tensor& tensor, int64_t its_dims) {
    check_dtype(name, tensor, dtype, "the dtype of q");
    check_last_stride(name, tensor, its_dims);
  };
  check_one("q", q, dims);
  check_one("k", k, dims);
  check_one("v", v, dims);
  check_one("k_cache", k_cache, 4);
  check_one("v_cache", v_cache, 4);
  return batch;
}

// The sequences of `length` tokens. Those with tokens in the pass have distinct rows of the cache, which has `rows`.
std::vector<Sequence> sequences_of(int64_t batch, int64_t length, int64_t rows, int64_t capacity,
                                   const MaybeTensor& cu_seqlens, const Tensor& prefix_lens,
                                   const MaybeTensor& append_lens, const MaybeTensor& slots) {
  const int32_t *prefixes = data_of<int32_t>(prefix_lens), *appends = data_or_null<int32_t>(append_lens),
                *borders = data_or_null<int32_t>(cu_seqlens), *places = data_or_null<int32_t>(slots);
  if (borders && borders[0] != 0) fail_value("cu_seqlens[0]", "0", borders[0]);
  std::vector<Sequence> out(batch);
  std::vector<bool> taken(places ? rows : 0);
  for (int64_t b = 0; b < batch; ++b) {
    const Span span = rows_of("cu_seqlens", borders, b, length);
    const int64_t tokens = span.end - span.begin;
    const int64_t prefix = in_range("prefix_lens", b, prefixes[b], 0, capacity);
    const int64_t append = appends ? in_range("append_lens", b, appends[b], 0, std::min(tokens, capacity - prefix)) : 0;
    const int64_t slot = places ? in_range("slots", b, places[b], 0, rows - 1) : b;
    if (places && tokens > 0) {
      if (taken[slot]) fail_value(at("slots", b), "a row of its own", slot);
      taken[slot] = true;
    }
    out[b] = {span.begin, tokens, prefix, append, slot};
  }
  return out;
}

// The arguments that both operators have. `partials` and `tickets` are the workspace of the GPU kernels, which is not
// needed here.
struct Operands {
  Tensor q, k, v, k_cache, v_cache;
  MaybeTensor cu_seqlens;
  Tensor prefix_lens;
  MaybeTensor append_lens, slots;
  double scale;

  bool packed() const { return cu_seqlens.has_value(); }

  std::vector<Sequence> check() const {
    const int64_t batch = check_tensors(q, k, v, k_cache, v_cache, cu_seqlens, slots.has_value());
    if (check_table("prefix_lens", prefix_lens, aoti_torch_dtype_int32(), "int32") != batch)
      fail_shape("prefix_lens", "[" + std::to_string(batch) + "]", prefix_lens);
    check_lengths("append_lens", append_lens, batch);
    check_lengths("slots", slots, batch);
    if (!std::isfinite(scale)) fail("Invalid scale: expected a finite number, got " + std::to_string(scale));
    if (append_lens) check_overlap(q, k, v, k_cache, v_cache);
    return sequences_of(batch, q.size(packed() ? 0 : 1), k_cache.size(0), k_cache.size(2), cu_seqlens, prefix_lens,
                        append_lens, slots);
  }

  void attend(Tensor& out, float* lse, std::vector<Sequence> sequences) {
    const bool flat = packed();
    const int64_t heads = k.size(k.dim() - 2);
    with_dtype("q", q, [&](auto zero) {
      using T = decltype(zero);
      const Call<T> call{{q, flat}, {k, flat}, {v, flat}, {out, flat}, Cache<T>(k_cache), Cache<T>(v_cache), heads,
                         q.size(q.dim() - 2) / heads, q.size(q.dim() - 1),
                         float(std::abs(scale) * 1.4426950408889634), scale < 0, lse, std::move(sequences)};
      on_current_isa([&](auto blocks) { call.template run<decltype(blocks)>(); });
      if (flat) call.clear(data_of<int32_t>(*cu_seqlens)[call.sequences.size()], q.size(0));
    });
  }
};

std::tuple<Tensor> suffix_attention(Tensor q, Tensor k, Tensor v, Tensor k_cache, Tensor v_cache, MaybeTensor cu_seqlens,
                                    Tensor prefix_lens, MaybeTensor append_lens, MaybeTensor slots, double scale,
                                    MaybeTensor /*partials*/, MaybeTensor /*tickets*/) {
  Operands given{std::move(q), std::move(k), std::move(v), std::move(k_cache), std::move(v_cache), std::move(cu_seqlens),
                 std::move(prefix_lens), std::move(append_lens), std::move(slots), scale};
  std::vector<Sequence> sequences = given.check();
  Tensor out = empty_cpu(given.q.sizes(), given.q.dim(), given.q.dtype());
  given.attend(out, nullptr, std::move(sequences));
  return {std::move(out)};
}

std::tuple<> suffix_attention_into(Tensor q, Tensor k, Tensor v, Tensor k_cache, Tensor v_cache, MaybeTensor cu_seqlens,
                                   Tensor prefix_lens, MaybeTensor append_lens, MaybeTensor slots, double scale,
                                   MaybeTensor /*partials*/, MaybeTensor /*tickets*/, Tensor out, MaybeTensor lse) {
  Operands given{std::move(q), std::move(k), std::move(v), std::move(k_cache), std::move(v_cache), std::move(cu_seqlens),
                 std::move(prefix_lens), std::move(append_lens), std::move(slots), scale};
  std::vector<Sequence> sequences = given.check();
  const std::initializer_list<const Tensor*> others = {&given.q, &given.k, &given.v, &given.k_cache, &given.v_cache};
  const int64_t dims = given.q.dim();
  check_result("out", out, given.q.sizes(), dims, given.q.dtype(), "the dtype of q", others);
  if (lse) {
    check_result("lse", *lse, given.q.sizes(), dims - 1, aoti_torch_dtype_float32(), "float32", others);
    check_result("lse", *lse, given.q.sizes(), dims - 1, aoti_torch_dtype_float32(), "float32", {&out});
  }
  given.attend(out, lse ? mutable_data_of<float>(*lse) : nullptr, std::move(sequences));
  return {};
}

}  // namespace

void add_attention(CpuKernels& kernels) {
  kernels.add<&suffix_attention>("suffix_attention");
  kernels.add<&suffix_attention_into>("suffix_attention_into");
}

}  // namespace LSP_NAMESPACE
