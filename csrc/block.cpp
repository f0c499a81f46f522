// add_norm, rotate_ and silu_mul for CPU tensors: what surrounds products and attention in a transformer's block. Every row
// is computed by one thread, so results do not depend on their number.
#include "checks.h"
#include "operators.h"
#include "overlap.h"
#include "tensors.h"

#include <initializer_list>

#define LSP_ISA_SOURCE "block_rows.h"
#include "foreach_isa.h"

#include "parallel.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

namespace LSP_NAMESPACE {
namespace {

constexpr int64_t LONGEST_ROW = 1 << 15, LONGEST_HEAD = 256;  // as in _checks.py
constexpr int64_t TASK = 1 << 13;                             // values of a task, about

// The rows of a tensor [T, d] or [T, H, d].
struct Rows {
  explicit Rows(const Tensor& x) : inner(x.dim() == 3 ? x.size(1) : 1) {
    outer_stride = x.stride(0);
    inner_stride = x.dim() == 3 ? x.stride(1) : 0;
  }
  int64_t offset(int64_t row) const { return row / inner * outer_stride + row % inner * inner_stride; }

  int64_t inner, outer_stride, inner_stride;
};

// Checks the dtype and the layout of a tensor of rows, of which there are less than 2^31; returns how many.
int64_t check_rows(const char* name, const Tensor& x, const char* shape, bool right) {
  if (!right) fail_shape(name, shape, x);
  const int64_t dims = x.dim();
  with_dtype(name, x, [](auto) {});
  check_last_stride(name, x, dims);
  const int64_t inner = dims == 3 ? x.size(1) : 1, outer = x.size(0);
  if (inner > 0 && outer > MOST_ROWS / inner) fail_shape(name, "less than 2^31 rows", x);
  return outer * inner;
}

void check_eps(double eps) {
  if (!(eps >= 0) || std::isinf(eps)) fail("Invalid eps: expected a finite number >= 0, got " + std::to_string(eps));
}

// Calls f(row) for every row of `size` values, several rows a task.
template <class F>
void each_row(int64_t rows, int64_t size, const F& f) {
  const int64_t at_once = std::max<int64_t>(1, TASK / std::max<int64_t>(size, 1));
  parallel_tasks((rows + at_once - 1) / at_once, at_once * size, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * at_once);
    for (int64_t row = task * at_once; row < end; ++row) f(row);
  });
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.dim() == b.dim() && std::equal(a.sizes(), a.sizes() + a.dim(), b.sizes());
}

std::tuple<Tensor> add_norm(Tensor x, MaybeTensor residual, Tensor weight, double eps) {
  const int64_t dims = x.dim(), rows = check_rows("x", x, "[T, d] or [T, H, d]", dims == 2 || dims == 3);
  const int64_t size = x.size(dims - 1);
  if (size < 1 || size > LONGEST_ROW) fail_shape("x", "1 to 32768 values in the last dimension", x);
  if (residual) {
    check_dtype("residual", *residual, x.dtype(), "the dtype of x");
    if (!same_shape(*residual, x)) fail_shape("residual", "the shape of x", *residual);
    check_last_stride("residual", *residual, dims);
  }
  if (check_table("weight", weight, x.dtype(), "the dtype of x") != size) fail_shape("weight", "[d]", weight);
  check_eps(eps);
  if (residual) check_written("residual", *residual, {&x, &weight});

  Tensor out = empty_cpu(x.sizes(), dims, x.dtype());
  on_current_isa([&](auto blocks) {
    with_dtype("x", x, [&](auto zero) {
      using T = decltype(zero);
      const T *from = data_of<T>(x), *scales = data_of<T>(weight);
      T *sums = residual ? mutable_data_of<T>(*residual) : nullptr, *to = mutable_data_of<T>(out);
      const Rows given(x), added(residual ? *residual : x);
      each_row(rows, size, [&](int64_t row) {
        T* sum = sums ? sums + added.offset(row) : nullptr;
        decltype(blocks)::norm_row(from + given.offset(row), sum, scales, to + row * size, size, float(eps));
      });
    });
  });
  return {std::move(out)};
}

// Weights of norms for the heads of both kinds, or none.
void check_head_norms(const Tensor& q, const MaybeTensor& q_norm, const MaybeTensor& k_norm) {
  if (bool(q_norm) != bool(k_norm))
    fail(std::string("Invalid ") + (q_norm ? "q_norm" : "k_norm") + ": expected norms of q and of k or neither, got one");
  for (const auto& [name, weight] : {std::pair<const char*, const MaybeTensor*>("q_norm", &q_norm), {"k_norm", &k_norm}})
    if (*weight && check_table(name, **weight, q.dtype(), "the dtype of q") != q.size(2)) fail_shape(name, "[D]", **weight);
}

std::tuple<> rotate_(Tensor q, Tensor k, Tensor cos, Tensor sin, MaybeTensor q_norm, MaybeTensor k_norm, double eps) {
  for (const auto& [name, x] : {std::pair<const char*, const Tensor*>("q", &q), {"k", &k}}) {
    check_rows(name, *x, "[T, H, D]", x->dim() == 3);
    if (x->size(2) % 2 || x->size(2) < 2 || x->size(2) > LONGEST_HEAD)
      fail_shape(name, "an even head dimension from 2 to 256", *x);
  }
  check_dtype("k", k, q.dtype(), "the dtype of q");
  const int64_t tokens = q.size(0), half = q.size(2) / 2;
  if (k.size(0) != tokens || k.size(2) != 2 * half) fail_shape("k", "[T, H, D] with T and D of q", k);
  if (tokens > 0 && q.size(1) + k.size(1) > MOST_ROWS / tokens)
    fail_shape("k", "less than 2^31 heads of all tokens together with those of q", k);
  for (const auto& [name, x] : {std::pair<const char*, const Tensor*>("cos", &cos), {"sin", &sin}}) {
    check_dtype(name, *x, aoti_torch_dtype_float32(), "float32");
    if (x->dim() != 2 || x->size(0) != tokens || x->size(1) != half) fail_shape(name, "[T, D / 2]", *x);
    if (!x->is_contiguous()) fail(std::string("Invalid strides of ") + name + ": expected contiguous, got others");
  }
  check_head_norms(q, q_norm, k_norm);
  check_eps(eps);
  for (const auto& [name, x] : {std::pair<const char*, const Tensor*>("q", &q), {"k", &k}})
    if (q_norm)
      check_written(name, *x, {&cos, &sin, &*q_norm, &*k_norm});
    else
      check_written(name, *x, {&cos, &sin});
  check_apart(q, k);

  on_current_isa([&](auto blocks) {
    with_dtype("q", q, [&](auto zero) {
      using T = decltype(zero);
      const float *cosines = data_of<float>(cos), *sines = data_of<float>(sin);
      const std::tuple<T*, Rows, const T*> kinds[] = {{mutable_data_of<T>(q), Rows(q), data_or_null<T>(q_norm)},
                                                      {mutable_data_of<T>(k), Rows(k), data_or_null<T>(k_norm)}};
      each_row(tokens, (q.size(1) + k.size(1)) * 2 * half, [&](int64_t token) {
        for (const auto& [heads, places, weight] : kinds)
          for (int64_t head = 0; head < places.inner; ++head)
            decltype(blocks)::rotate_head(heads + places.offset(token * places.inner + head), weight,
                                          cosines + token * half, sines + token * half, half, float(eps));
      });
    });
  });
  return {};
}

std::tuple<Tensor> silu_mul(Tensor gate_up) {
  const int64_t rows = check_rows("gate_up", gate_up, "[T, 2 F]", gate_up.dim() == 2);
  const int64_t size = gate_up.size(1) / 2;
  if (gate_up.size(1) % 2 || size < 1 || gate_up.size(1) > MOST_ROWS)
    fail_shape("gate_up", "2 F values in the last dimension, F of gates and F to multiply", gate_up);

  const int64_t sizes[] = {rows, size};
  Tensor out = empty_cpu(sizes, 2, gate_up.dtype());
  on_current_isa([&](auto blocks) {
    with_dtype("gate_up", gate_up, [&](auto zero) {
      using T = decltype(zero);
      const T* from = data_of<T>(gate_up);
      T* to = mutable_data_of<T>(out);
      const Rows given(gate_up);
      each_row(rows, size, [&](int64_t row) {
        const T* gate = from + given.offset(row);
        decltype(blocks)::silu_mul_row(gate, gate + size, to + row * size, size);
      });
    });
  });
  return {std::move(out)};
}

}  // namespace

void add_block(CpuKernels& kernels) {
  kernels.add<&add_norm>("add_norm");
  kernels.add<&rotate_>("rotate_");
  kernels.add<&silu_mul>("silu_mul");
}

}  // namespace LSP_NAMESPACE
