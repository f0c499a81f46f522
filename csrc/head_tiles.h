// Rows of values against rows of a weight, for one instruction set: hidden states against ids of the vocabulary, or the
// inputs of a linear against its outputs, which are called ids here too. Included by the blocks of an operation only.
//
// The results of a few ids are computed transposed, with rows in the lanes: weights are broadcast from where they are stored,
// so no copy of them is kept, and whoever receives the results has them lane by lane. Few rows would leave lanes
// empty; for them weights are transposed in registers, and ids are in the lanes. Both add the same products in the same
// order, so that a result does not depend on the number of rows.

#include "products.h"

constexpr int VECS = 2;  // vectors of a panel of rows: tile * vectors accumulators fit the registers
constexpr int TILE = LSP_ISA_BITS == 512 ? 12 : LSP_ISA_BITS ? 6 : 2;  // ids at once, for a full panel
constexpr int TALL = LSP_ISA_BITS ? 12 : 2;                            // for a panel of one vector
constexpr int WIDTH = VECS * LANES;
constexpr int FEW = LSP_ISA_BITS ? 4 : 1;                // rows for which ids are in the lanes,
constexpr int GROUPS = LSP_ISA_BITS == 512 ? 3 : 2;      // and vectors of ids then
constexpr int64_t STRETCH = LSP_ISA_BITS == 512 ? 16 : 64;  // factors between two prefetches: wide vectors wait sooner
static_assert(IDS % TILE == 0 && IDS % TALL == 0 && IDS % (GROUPS * LANES) == 0 && IDS % 4 == 0);

inline int64_t padded_rows(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

template <class T, class W = T>
struct Tiles {
  using F = std::conditional_t<std::is_same_v<W, int8_t>, float, Factor<T>>;
  static constexpr int64_t PER_FACTOR = std::is_same_v<F, Pair> ? 2 : 1;
  static constexpr int FACTORS_PER_LANE = PER_LANE<W> / PER_FACTOR;
  static constexpr int64_t STRIDE = DEPTH / PER_FACTOR;  // from id to id in copies of weights
  static constexpr int64_t LINE = 64 / sizeof(W);        // values of a cache line
  const Product<T, W>& task;
  HeadMemory& memory;
  const int64_t padded = padded_rows(task.count);
  const int64_t chunk = task.packed ? task.size : CHUNK;
  // Ids at once: with a single panel few, so that whole rows of the weight are read one after the other; with more panels so
  // many that a panel is used often while it is in the L1 cache.
  const int64_t step = task.count <= FEW ? GROUPS * LANES : padded < WIDTH ? TALL : padded == WIDTH ? TILE : IDS;

  static int64_t factors_of_values(int64_t n) { return (n + PER_FACTOR - 1) / PER_FACTOR; }

  // Puts the values [begin, begin + n) of rows side by side, panel after panel; lanes without a row hold zero. An odd last
  // value is paired with zero.
  static void pack(const T* const* rows, int64_t count, int64_t begin, int64_t n, float* packed) {
    const int64_t depth = factors_of_values(n), padded = padded_rows(count);
    auto* out = reinterpret_cast<F*>(packed);
    for (int64_t row = 0; row < padded; ++row) {
      F* to = out + row / WIDTH * WIDTH * depth + row % WIDTH;
      const int64_t width = std::min<int64_t>(WIDTH, padded - row / WIDTH * WIDTH);
      if (row >= count) {
        for (int64_t d = 0; d < depth; ++d) to[d * width] = F(0);
        continue;
      }
      const T* from = rows[row] + begin;
      for (int64_t d = 0; d < depth; ++d) {
        if constexpr (PER_FACTOR == 2) {
          F pair = 0;
          std::memcpy(&pair, from + 2 * d, 2 * d + 1 < n ? 4 : 2);
          to[d * width] = pair;
        } else {
          to[d * width] = to_float(from[d]);
        }
      }
    }
  }

  const W* weight_of(int64_t id, int64_t begin) const { return task.weight + id * task.stride + begin; }

  // Whether n values of some ids can be multiplied where they are: if they have the right type. Rows of a weight are often a
  // multiple of 4 KiB apart, so that those of a tall tile do not fit the L1 cache together: it is copied, unless it is used
  // only once.
  bool in_place(int64_t n) const {
    if constexpr (std::is_same_v<F, Pair>) return task.stride % 2 == 0 && n % 2 == 0;
    return std::is_same_v<W, float> && (padded == WIDTH || (padded % WIDTH == 0 && TILE < TALL));
  }

  // Copies n values of `count` ids as factors, STRIDE from id to id.
  static void convert(const W* from, int64_t stride, int64_t count, int64_t n, float* out) {
    for (int64_t m = 0; m < count; ++m, from += stride, out += STRIDE) {
      if constexpr (PER_FACTOR == 2) {
        out[factors_of_values(n) - 1] = 0;
        std::memcpy(out, from, 2 * n);
      } else {
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) store(out + i, load(from + i));
        for (; i < n; ++i) out[i] = to_float(from[i]);
      }
    }
  }

  // Adds `depth` products to the logits of M ids and N vectors of rows, or begins them.
  template <int M, int N>
#if defined(__GNUC__)
  __attribute__((always_inline))  // with a constant stride, which needs one register instead of one per id
#endif
  void add_panel(const F* weights, int64_t stride, const F* panel, int64_t depth, const W* next, float* logits, bool first) const {
    Vec sum[M][N];
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) sum[m][n] = splat(0.0f);
    for (int64_t k = 0; k < depth; k += STRETCH) {
      if (next) prefetch_rows(next + k * PER_FACTOR, task.stride, M, std::min(STRETCH, depth - k) * PER_FACTOR);
      multiply(sum, weights + k, stride, 1, panel + k * N * LANES, N * LANES, std::min(STRETCH, depth - k));
    }
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) {
        float* at = logits + m * padded + n * LANES;
        store(at, first ? sum[m][n] : add(load(at), sum[m][n]));
      }
    }
  }

  // Where the weights of `count` ids are that are needed after these n values of as many ids, or nullptr. The first panel
  // fetches them, a little at a time: all at once would stall.
  const W* after(int64_t id, int64_t count, int64_t begin, int64_t n) const {
    if (begin + n < task.size && (begin + n) % chunk) return weight_of(id, begin + n);
    return id + step + count <= task.end ? weight_of(id + step, begin / chunk * chunk) : nullptr;
  }

  // The same for some ids and one panel. The first panel copies the weights that cannot be multiplied where they are; other
  // panels find them.
  template <int M, int N>
  void add_tile(int64_t id, int64_t begin, int64_t n, const F* panel, bool first, float* copy, float* logits) const {
    const W* from = weight_of(id, begin);
    const W* next = first ? after(id, M, begin, n) : nullptr;
    if (in_place(n)) {
      const auto* weights = reinterpret_cast<const F*>(from);
      return add_panel<M, N>(weights, task.stride / PER_FACTOR, panel, factors_of_values(n), next, logits, begin == 0);
    }
    if (first) convert(from, task.stride, M, n, copy);
    add_panel<M, N>(reinterpret_cast<const F*>(copy), STRIDE, panel, factors_of_values(n), next, logits, begin == 0);
  }

  template <int M, int N>
  void add_tiles(int64_t id, int64_t count, int64_t begin, int64_t n, const F* panel, bool first, float* logits) const {
    float* copy = memory.weights.data();
    const int64_t apart = padded > WIDTH ? STRIDE : 0;  // a single panel can use the same memory again
    int64_t m = 0;
    for (; m + M <= count; m += M)
      add_tile<M, N>(id + m, begin, n, panel, first, copy + m * apart, logits + m * padded);
    for (; m < count; ++m) add_tile<1, N>(id + m, begin, n, panel, first, copy + m * apart, logits + m * padded);
  }

  // The same for GROUPS vectors of ids and R rows, which are the first in the lanes of the panel.
  template <int R>
  void add_few(int64_t id, int64_t begin, int64_t n, const F* panel, float* logits) const {
    Vec sum[GROUPS][R];
    for (auto& group : sum)
      for (Vec& x : group) x = splat(0.0f);
    const W* next = after(id, GROUPS * LANES, begin, n);
    // A line of every id at a time: ids are often a multiple of 4 KiB apart, and lines do not stay in the L1 cache then.
    for (int64_t k = 0; k < n; k += LINE) {
      if (next) prefetch_rows<2>(next + k, task.stride, GROUPS * LANES, LINE);
#pragma GCC unroll 4
      for (int g = 0; g < GROUPS; ++g) {
        for (int64_t part = k; part < k + LINE; part += LANES * PER_LANE<W>) {
          Vec w[LANES];
          for (int i = 0; i < LANES; ++i) w[i] = load_lanes(weight_of(id + g * LANES + i, begin + part));
          transpose(w);
          const F* hidden = panel + part / PER_FACTOR * LANES;
#pragma GCC unroll 16
          for (int i = 0; i < LANES; ++i)
            for (int j = 0; j < FACTORS_PER_LANE; ++j, hidden += LANES)
              for (int r = 0; r < R; ++r) sum[g][r] = fma(splat(hidden + r), factor_in(w[i], j, task.weight, F()), sum[g][r]);
        }
      }
    }
    for (int g = 0; g < GROUPS; ++g) {
      for (int r = 0; r < R; ++r) {
        float lane[LANES];
        store(lane, sum[g][r]);
        for (int i = 0; i < LANES; ++i) {
          float& at = logits[(g * LANES + i) * padded + r];
          at = begin ? at + lane[i] : lane[i];
        }
      }
    }
  }

  // Adds the products of the values [begin, begin + n) to the logits of `count` ids; `hidden` are the chunk's rows.
  void add_ids(int64_t id, int64_t count, int64_t begin, int64_t n, const F* hidden, float* logits) const {
    const int64_t in_chunk = std::min(chunk, task.size - begin / chunk * chunk);
    const int64_t depth = factors_of_values(in_chunk), at = begin % chunk / PER_FACTOR;
    for (; task.count <= FEW && n % LINE == 0 && count >= GROUPS * LANES; count -= GROUPS * LANES) {
      with_constant<FEW>(task.count, [&](auto r) { add_few<decltype(r)::value>(id, begin, n, hidden + at * LANES, logits); });
      id += GROUPS * LANES, logits += GROUPS * LANES * padded;
    }
    if (count == 0) return;
    for (int64_t row = 0; row < padded; row += WIDTH) {
      const F* panel = hidden + row * depth;
      if (padded - row >= WIDTH) {
        add_tiles<TILE, VECS>(id, count, begin, n, panel + at * WIDTH, row == 0, logits + row);
      } else {
        add_tiles<TALL, 1>(id, count, begin, n, panel + at * LANES, row == 0, logits + row);
      }
    }
  }

  const F* packed_chunk(int64_t begin) const {
    if (task.packed) return reinterpret_cast<const F*>(task.packed);
    pack(task.rows, task.count, begin, std::min(chunk, task.size - begin), memory.hidden.data());
    return reinterpret_cast<const F*>(memory.hidden.data());
  }

  // The logits of the ids [first, last), without bias.
  void multiply_ids(int64_t first, int64_t last) const {
    for (int64_t start = 0; start < task.size; start += chunk) {
      const F* hidden = packed_chunk(start);
      const int64_t stop = std::min(start + chunk, task.size);
      for (int64_t id = first; id < last; id += step)
        for (int64_t begin = start; begin < stop; begin += DEPTH)
          add_ids(id, std::min(step, last - id), begin, std::min(DEPTH, stop - begin), hidden,
                  memory.logits.data() + (id - first) * padded);
    }
  }

  // Hands `add_logits` the logits [ids][padded] of a few ids at a time, and the bias of each.
  template <class Receiver>
  void run(const Receiver& receiver) const {
    const int64_t kept = task.packed ? IDS : task.end - task.begin;
    memory.hidden.resize(task.packed ? 0 : padded * (chunk + 1));
    memory.weights.resize(IDS * DEPTH);
    memory.logits.resize(kept * padded);
    float bias[IDS] = {};
    for (int64_t first = task.begin; first < task.end; first += kept) {
      const int64_t last = std::min(task.end, first + kept);
      multiply_ids(first, last);
      for (int64_t id = first; id < last; id += IDS) {
        const int64_t ids = std::min(IDS, last - id);
        for (int64_t i = 0; task.bias && i < ids; ++i) bias[i] = to_float(task.bias[id + i]);
        receiver.add_logits(id, ids, memory.logits.data() + (id - first) * padded, bias);
      }
    }
  }
};

// Rows side by side: how many floats hold them, and these, as they are multiplied by a weight of W.
struct Packing {
  static int64_t packed_size(int64_t count, int64_t size) { return padded_rows(count) * (size + 1); }
  template <class W, class T>
  static void pack(const T* const* rows, int64_t count, int64_t size, float* out) {
    Tiles<T, W>::pack(rows, count, 0, size, out);
  }
};
